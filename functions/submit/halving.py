"""Halving: a batch that the API refuses as a whole is cut in two until the bad record stands alone.

The batch is marked first, so that nobody submits it again; then both halves are staged and created; then one write
makes the batch `halved`. Each step finds what an earlier run left and goes on from there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shared import keys
from shared.errors import StorageError
from shared.observability import count, logger, of_batch
from shared.queues import SUBMIT_GRACE, BatchMessage
from shared.sidecar import Rows, Staged, body_of, decode_rows, encode_rows, spans
from shared.words import Batch, BatchState, Fault, Job, Work

if TYPE_CHECKING:
    from shared.services import Services

SAME_REFUSALS = 8
"""Lone records refused with one code, and nothing accepted, after which a job tries no further."""


def halve(services: Services, batch: Batch, reason: Fault) -> None:
    """Halve a batch that is marked for it, or end it when its job has halved enough.

    Raises:
        StorageError: a service refused or broke off; the batch's `due_at` brings it up again.
    """
    now = services.now()
    if _spent(services, batch):
        services.ledger.end_unanswered(batch, _not_alone(reason), now)
        return
    staged = services.store.get(keys.staged(batch.job_id, batch.number))
    rows = decode_rows(staged[batch.body_size :])
    places = spans(rows)
    middle = _middle(rows)
    pause = 8 * services.budget.interval / 1000  # a quarter of the submit rate, itself half of all calls
    # The second half first: it holds the end behind which split goes on, whatever happens in between.
    for half, (begin, end) in ((1, (middle, len(rows))), (0, (0, middle))):
        number = f"{batch.number}.{half}"
        requests = [staged[start : start + length] for start, length in places[begin:end] if length]
        body = body_of(requests)
        held = Staged(end - begin, len(requests), len(body), batch.end if half else None)
        sidecar = encode_rows(rows.section(begin, end))
        services.store.put_once(keys.staged(batch.job_id, number), body + sidecar, held.metadata())
        child = Batch(
            job_id=batch.job_id,
            number=number,
            state=BatchState.READY,
            first_id=batch.first_id + (middle if half else 0),
            requests=held.requests,
            sendable=held.sendable,
            body_size=held.body_size,
            created_at=now,
            end=held.end,
            due_at=now + half * pause + SUBMIT_GRACE,
            work=Work.SUBMIT,
        )
        services.ledger.create_batch(child)
    if services.ledger.halve(batch, now):
        count("BatchesHalved")
        logger.info("batch halved", **of_batch(batch))
        for half in (0, 1):
            services.queues.send(BatchMessage(batch.job_id, f"{batch.number}.{half}"), delay=half * pause)


def refuse_alone(services: Services, job: Job, batch: Batch, code: str, reason: Fault) -> None:
    """A lone record was refused: it ends `rejected`; after enough of the same the whole job tries no further."""
    now = services.now()
    noted = services.ledger.note_refused_alone(job.job_id, batch.number, code)
    services.ledger.end_unanswered(batch, reason, now)
    if (
        noted
        and not noted.seen_accepted
        and sum(1 for one in noted.refused_alone if one.startswith(f"{code}/")) >= SAME_REFUSALS
    ):
        services.ledger.stop_job(job.job_id, _not_alone(reason), now)


def _not_alone(reason: Fault) -> Fault:
    return Fault("rejected", f"Not tried alone: {reason.message}", reason.said)


def _middle(rows: Rows) -> int:
    """Index that parts the rows so that both sides have a sendable one."""
    sendable = [index for index, length in enumerate(rows.lengths) if length]
    if len(sendable) < 2:  # noqa: PLR2004
        raise StorageError("a batch of one record cannot be halved")
    return sendable[len(sendable) // 2]


def _spent(services: Services, batch: Batch) -> bool:
    """Whether this batch's tree has used its submits: 4·log2(n)+16 for each bad record found, and for the first."""
    submits = found = requests = 0
    for one in services.ledger.batches(batch.job_id, prefix=batch.number[:8]):
        requests = max(requests, one.requests)
        submits += one.attempt
        found += one.sendable == 1 and one.ending is not None
    return submits > (found + 1) * (4 * math.log2(max(requests, 2)) + 16)

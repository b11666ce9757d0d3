"""Isolation of bad records.

A batch that the API refused, or failed, is divided until each bad record is alone.

A batch that is to be isolated is divided into up to 16 pieces. How many is decided once, in one
write to the batch. From then on every run carries out that decision: it stages and creates the
pieces, the last one first, and then makes the batch `divided`. A piece is a batch like any other,
so a piece that fails is divided too.

Before the decision, the job item counts the submits that the pieces will cost, in a write of its
own. A function that dies between the two counts them twice: fewer batches are divided, and none
more. Batches are no longer divided when the job has used up its submits, or when these have shown
nothing but refusals.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dropbatch.core.read.index import build_body, record_spans
from shared import keys
from shared.aws.queues import SUBMIT_GRACE_SECONDS, SubmitMessage
from shared.claims import MAX_SECONDS_TO_ACCEPTANCE
from shared.errors import InvariantError
from shared.models import Batch, BatchState, DueKind, ErrorDetail, Isolation
from shared.observability import batch_log_fields, count, logger
from shared.staged_batch import StagedInfo, decode_index, encode_index, original_spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropbatch.core.read.index import RecordIndex
    from shared.models import Job
    from shared.services import Services

MAX_PIECES = 16
"""Pieces of one batch: one hexadecimal digit."""
MAX_ISOLATION_SUBMITS = 2_000
"""Submits that isolation may cause in one job.

Finding one bad record among 5,000 takes about 50.
"""

MAX_SUBMITS_IN_VAIN = 64
"""Submits of pieces after which no more batches are divided while no record of the job has been taken."""
MAX_CAUSES = 16
"""Causes that a job lists."""

RACE_TRIES = 5
"""Times a lost race for the job item is tried again immediately."""
LOOK_SECONDS = 5.0
"""Seconds until a batch looks again that has lost that many."""


def isolate(services: Services, batch: Batch) -> Batch | None:
    """Decide what to do with a claimed batch that is to be isolated.

    Or carry out an earlier decision.

    Returns:
        The batch if its records end without being tried again; their lines are still to be written.
        None otherwise.

    Raises:
        InvariantError: the batch has no job.
        StorageError: an AWS service failed; the batch is due again at its `due_at`.
    """
    if batch.pieces == 0:
        decided = _decide(services, batch)
        if decided is None or decided.ending:
            return decided
        batch = decided
    _divide(services, batch)
    return None


# ── deciding ──────────────────────────────────────────────────────────────────────────────────────


def _decide(services: Services, batch: Batch) -> Batch | None:
    """The batch once it is decided that it is divided, or ended.

    None if another run has it, or it looks again.
    """
    wanted = min(MAX_PIECES, batch.sendable)
    for _ in range(RACE_TRIES):
        now = services.now()
        job = services.ledger.job(batch.job_id)
        if job is None:
            raise InvariantError(f"batch {batch.job_id}/{batch.number} has no job")
        known = job.isolation or Isolation()
        if why := _why_untried(job, known, batch, wanted, now):
            if _listed_as_untried(services, job, known, batch.cause):
                return services.ledger.end_without_answer(batch, _not_tried(batch, why), now)
        elif services.ledger.note_isolation(job, replace(known, submits=known.submits + wanted)):
            return services.ledger.decide_pieces(batch, wanted)
    services.ledger.postpone(batch, services.now() + LOOK_SECONDS, claims=0)
    return None


def _why_untried(job: Job, known: Isolation, batch: Batch, wanted: int, now: float) -> str:
    """Why the records of a batch end without being tried again; empty if they are tried again."""
    if job.error:
        return "because the job was stopped"
    if job.cancelled:
        return "because the job was cancelled"
    if job.cost and job.cost.is_reached:
        return "because the job had reached its max_cost"
    if job.is_past_deadline(now):
        return "because the job's deadline_hours were over"
    since = batch.accepted_at or batch.waiting_since
    if now - since > MAX_SECONDS_TO_ACCEPTANCE:
        return "because it failed more than 7 days after it was to be submitted"
    has_taken_some = job.status_succeeded > 0 if batch.submission else job.seen_accepted
    if known.submits >= MAX_SUBMITS_IN_VAIN and not has_taken_some:
        return (
            f"because Workers AI took none of the {known.submits:,} parts of this job that "
            "were tried"
        )
    if known.submits + wanted > MAX_ISOLATION_SUBMITS:
        return (
            f"because this job has used up its {MAX_ISOLATION_SUBMITS:,} submits for "
            "isolating bad requests"
        )
    return ""


def _listed_as_untried(services: Services, job: Job, known: Isolation, cause: str) -> bool:
    """List a cause in the job as one whose records were not tried alone, before they end.

    False for a lost race.
    """
    if cause in known.untried or len(known.untried) >= MAX_CAUSES or job.completed_at:
        return True
    return (
        services.ledger.note_isolation(job, replace(known, untried=(*known.untried, cause)))
        is not None
    )


def _not_tried(batch: Batch, why: str) -> ErrorDetail:
    reason = batch.isolating or ErrorDetail("rejected", "Workers AI refused this request")
    return ErrorDetail("rejected", f"Not tried alone, {why}: {reason.message}", reason.said)


# ── carrying out ──────────────────────────────────────────────────────────────────────────────────


def _divide(services: Services, batch: Batch) -> None:
    """Stage and create all pieces.

    Then make the batch `divided` and send the pieces' first messages.
    """
    ledger, store = services.ledger, services.store
    key = keys.staged(batch.job_id, batch.number)
    rows = decode_index(store.get(key, batch.index_offset))
    places, kept = record_spans(rows), original_spans(rows)
    bounds = boundaries(rows, batch.pieces)
    now, apart = services.now(), services.budget.slot_seconds
    slots = [now + place * apart for place in range(len(bounds))]
    numbers = [f"{batch.number}.{index:x}" for index in range(len(bounds))]
    # The last piece first: it holds the end from which split continues, wherever this function
    # dies.
    for number, (begin, end), slot in reversed(list(zip(numbers, bounds, slots, strict=True))):
        sent = [place for place in places[begin:end] if place[1]]
        # The records of a piece are contiguous in the body, with their commas.
        body = build_body([store.get(key, sent[0][0], sum(sent[-1]) - sent[0][0])])
        before, upto = (
            batch.estimate * _sent(places[:place]) // batch.sendable for place in (begin, end)
        )
        start, size = kept[begin][0], sum(kept[end - 1]) - kept[begin][0]
        originals = store.get(key, batch.body_size + start, size)
        staged = StagedInfo(
            end - begin,
            len(sent),
            len(body),
            batch.end if end == len(rows) else None,
            originals_size=size,
        )
        store.put_if_absent(
            keys.staged(batch.job_id, number),
            body + originals + encode_index(rows.section(begin, end)),
            staged.metadata(),
        )
        piece = Batch(
            job_id=batch.job_id,
            number=number,
            state=BatchState.READY,
            first_id=batch.first_id + begin,
            requests=staged.requests,
            sendable=staged.sendable,
            body_size=staged.body_size,
            created_at=now,
            end=staged.end,
            due_at=slot + SUBMIT_GRACE_SECONDS,
            work=DueKind.SUBMIT,
            originals_size=size,
            suspected=batch.cause,
            estimate=upto - before,
            estimated_before=batch.estimated_before + before,
        )
        ledger.create_batch(piece)
    if ledger.finish_division(batch, services.now()):
        count("BatchesDivided")
        logger.info("batch divided", **batch_log_fields(batch), pieces=len(bounds))
        messages = [SubmitMessage(batch.job_id, number) for number in numbers]
        services.queues.send_all(messages, [slot - now for slot in slots])


def _sent(places: Sequence[tuple[int, int]]) -> int:
    """How many of some records the body holds."""
    return sum(1 for place in places if place[1])


def give_up(services: Services, batch: Batch) -> None:
    """End the records of a batch that could not be divided for days, unless it has pieces.

    Then its job cannot finish.

    No run creates a piece meanwhile: the claims before this one were an hour long, and no function
    runs that long.
    """
    if any(services.ledger.batches(batch.job_id, prefix=f"{batch.number}.", limit=1)):
        services.ledger.finish_division(batch, services.now())
    else:
        reason = _not_tried(
            batch, "because the batch could not be divided (see the poll function's log)"
        )
        services.ledger.undo_pieces(batch, reason, services.now())


def boundaries(rows: RecordIndex, pieces: int) -> list[tuple[int, int]]:
    """Begin and end of each piece among the rows.

    Each piece has a sendable row, and all have about as many.
    """
    sendable = [index for index, length in enumerate(rows.lengths) if length]
    begins = [0, *(sendable[piece * len(sendable) // pieces] for piece in range(1, pieces))]
    return list(zip(begins, [*begins[1:], len(rows)], strict=True))

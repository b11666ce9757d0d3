"""Answers of batches that are still running: some of their items beside a status such as `running`.

They are no reason to give up the others. The batch stays pending until every record is answered, or
until its deadline. Then what is there counts, and the other records end.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from functions.poll.batch.collect import StoredReply, read_answers
from functions.poll.batch.unanswered import LATE, end, is_overdue
from shared import keys
from shared.models import PAST_DEADLINE
from shared.observability import batch_log_fields, logger
from shared.staged_batch import decode_index

if TYPE_CHECKING:
    from shared.models import Batch, Job
    from shared.services import Services
    from shared.workers_ai.results import Answer


def is_partial(services: Services, batch: Batch, answer: Answer) -> bool:
    """Whether an answer of a batch that is still running lacks records of the batch.

    Raises:
        StorageError: S3 failed, or what was staged does not exist.
    """
    if not answer.unfinished:
        return False
    if len(answer.items) < batch.sendable:
        return True
    rows = decode_index(
        services.store.get(keys.staged(batch.job_id, batch.number), batch.index_offset)
    )
    with ExitStack() as stack:
        found = read_answers(services, batch, rows, StoredReply("", answer), stack)
        return found is None or len(found.items) < batch.sendable


def waits_for_more(services: Services, job: Job, batch: Batch, answer: Answer) -> bool:
    """Whether a batch stays pending although some of its items are there: nothing ends it yet."""
    now = services.now()
    is_last_chance = is_overdue(services, batch, now) or job.is_past_deadline(now)
    return not is_last_chance and is_partial(services, batch, answer)


def use_partial(services: Services, job: Job, batch: Batch, key: str) -> bool:
    """Let the items of a stored partial answer count, and end the other records.

    Return whether the batch is done.
    """
    logger.info("part of an answer used", **batch_log_fields(batch))
    now = services.now()
    kept = services.ledger.schedule_poll(
        batch, now, partial_replies=(*batch.partial_replies, key), claims=batch.claims
    )
    error = PAST_DEADLINE if job.is_past_deadline(now) else LATE
    return kept is not None and end(services, job, kept, error)

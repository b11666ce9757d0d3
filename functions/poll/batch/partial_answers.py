"""Answers of batches that are still running: some of their items beside a status such as `running`.

They are no reason to give up the others. The batch stays pending until every record is answered, or
until it would be submitted again or ended. Then what is there counts, and only the rest is
submitted again or ends.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from functions.poll.batch.collect import Replies
from functions.poll.batch.unanswered import LATE, is_overdue, submit_again
from shared import keys
from shared.models import PartialReply
from shared.observability import batch_log_fields, logger
from shared.staged_batch import decode_index

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Batch, Job
    from shared.workers_ai.results import Answer


def is_partial(services: Services, batch: Batch, answer: Answer) -> bool:
    """Whether an answer of a batch that is still running lacks records of the current round.

    Raises:
        StorageError: S3 failed, or what was staged does not exist.
    """
    if not answer.unfinished:
        return False
    if batch.round == 0 and len(answer.items) < batch.sendable:
        return True
    rows = decode_index(
        services.store.get(keys.staged(batch.job_id, batch.number), batch.index_offset)
    )
    with ExitStack() as stack:
        replies = Replies(services, batch, rows.references_sent(), stack)
        found = replies.add(None, answer, batch.round)
        return len(found.items) < len(replies.places(batch.round))


def waits_for_more(services: Services, job: Job, batch: Batch, answer: Answer) -> bool:
    """Whether a batch stays pending although some of its items are there: nothing ends it yet."""
    now = services.now()
    is_last_chance = is_overdue(services, batch, now) or job.is_past_deadline(now)
    return not is_last_chance and is_partial(services, batch, answer)


def use_partial(services: Services, job: Job, batch: Batch, key: str) -> bool:
    """Let the items of a stored partial answer count; submit or end the other records.

    Return whether it is done.
    """
    logger.info("part of an answer used", **batch_log_fields(batch))
    kept = services.ledger.schedule_poll(
        batch,
        services.now(),
        partial_replies=(*batch.partial_replies, PartialReply(key, batch.round)),
        claims=batch.claims,
    )
    return kept is not None and submit_again(services, job, kept, LATE, {})

"""Whether an id that the API says it does not know is lost.

Or whether no id is found because the route fails.

Both look alike for one batch. So an id counts as lost only if the API knew another id of the same
job after it said so. Where there is none, the batch is polled until its deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.models import BatchState
from shared.retry import poll_back_off

if TYPE_CHECKING:
    from shared.models import Batch, Job
    from shared.services import Services

MISSES, LOST_SECONDS = 5, 900.0
"""Polls in a row for which the API must not know an id, or have no answers for it.

And over how many seconds.
"""
DOUBTED_SECONDS = 15.0
"""Seconds to the next poll after a reply that is believed only when several are the same."""
OTHER_BATCHES = 100
"""Batches of the job in which an id is looked for that the API knew."""
CLOCK_SECONDS = 30.0
"""Seconds by which clocks of two functions may differ."""
COLLECTED_SECONDS = 300.0
"""Seconds from an answer until its batch is `done`, where the function that got it died.

Or S3 was slow.
"""


def is_lost_for_long(misses: int, since: float, now: float) -> bool:
    """Whether an id has been unknown often and long enough that it may be lost."""
    return misses >= MISSES and now - since >= LOST_SECONDS


def next_look(misses: int, since: float, age: float, now: float) -> float:
    """Seconds to the next poll of such an id: one comes when that is long enough.

    Args:
        misses: such polls in a row.
        since: Unix seconds of the first.
        age: seconds since the id was accepted.
        now: Unix seconds.
    """
    wait = DOUBTED_SECONDS if misses <= MISSES else poll_back_off(age)
    left = since + LOST_SECONDS - now
    return min(wait, max(left, DOUBTED_SECONDS)) if left > 0 else wait


def other_is_known(services: Services, job: Job, batch: Batch) -> bool:
    """Whether the API has known another id of the model since it first failed to find the batch's answers.

    It is read before the batch is polled. An id that is known a moment after the poll proves
    nothing: a route that begins to work again answers the one normally, and did not yet know the
    other.

    Raises:
        StorageError: DynamoDB failed.
    """
    if batch.failures + 1 < MISSES:
        return False  # The poll decides nothing.
    known_from = batch.failing_at + CLOCK_SECONDS
    if batch.pending_at > known_from:
        return True
    others = services.ledger.batches(
        job.job_id, after=job.output.mark, limit=OTHER_BATCHES, unreadable=[]
    )
    return any(_known_at(one) > known_from for one in others)


def _known_at(batch: Batch) -> float:
    """Since when at least the API knew an id of a batch.

    An answer in the reply to a submit has none.
    """
    has_id = bool(batch.submissions) and bool(batch.submissions[-1].request_id)
    answered = batch.state is BatchState.DONE and has_id and batch.ending is None
    return max(
        batch.pending_at, (batch.completed_at or 0.0) - COLLECTED_SECONDS if answered else 0.0
    )

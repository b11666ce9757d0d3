"""When the queue is pulled.

Soon after a young batch may be over, and the older the youngest is, the more rarely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import StorageError
from shared.observability import logger
from shared.workers_ai.queue_messages import bare_id

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Job, Submission

MIN_PULL_SECONDS, MAX_PULL_SECONDS, MAX_LATER_PULL_SECONDS = 2.0, 15.0, 30.0
YOUNG_SECONDS = 600.0
SHARE_OF_AGE = 1 / 16
"""The share of the age of the youngest batch that passes between two pulls."""
FAST_PERCENTILE, FAST_SHARE = 0.05, 0.8
"""No pull before this share of the time in which so few batches of the model were finished."""


def pull_interval(age: float, least: float = MIN_PULL_SECONDS) -> float:
    """Seconds between two pulls while the youngest batch is so old, in seconds.

    And at least so many.
    """
    most = MAX_PULL_SECONDS if age < YOUNG_SECONDS else MAX_LATER_PULL_SECONDS
    return min(max(age * SHARE_OF_AGE, least), most)


def expect_events(services: Services, job: Job, number: str, submission: Submission) -> None:
    """Note whose the id of an accepted batch is, and have the queue pulled.

    The batch is `queued` already.

    An event that came before makes the batch due now. A failure costs the batch its events, and
    nothing else.
    """
    events, now = services.events, services.now()
    if events is None or not submission.request_id:
        return
    try:
        known = events.ids.assign(
            bare_id(submission.request_id), job.job_id, number, submission.attempt, submission.at
        )
        if known.over_at:
            services.ledger.tell_over(job.job_id, number, submission.attempt, now)
            return
        fast = services.times.quantile(job.plan.model, FAST_PERCENTILE, now)
        pull_at = now + max(fast * FAST_SHARE, MIN_PULL_SECONDS)
        events.item.expect_pull(pull_at, now)
        services.left.look(pull_at)
    except StorageError as error:
        logger.warning("events not expected", job_id=job.job_id, number=number, reason=str(error))

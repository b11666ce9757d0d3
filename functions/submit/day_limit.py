"""A batch reserves what it will probably cost of its stack's limit for a day, or waits (`shared.pacing.day_costs`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.cost_limit import estimate, judged
from shared.models import Reservation
from shared.pacing import cost_limit
from shared.pacing.controls import Denied, PauseReason, wait_for_lift
from shared.pacing.day_costs import DAY_SECONDS, Room
from shared.workers_ai.other_account import other_account

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Batch, Job
    from shared.pacing.controls import Permit

DAY_LOOK_SECONDS = 60.0
"""Shortest time until the next look at a batch that waits until it is known what others cost."""
ANSWERS_FACTOR = 2
"""Times the longest answers of the model that this stack has measured that a job's first ones may be."""


def reserve_day(services: Services, job: Job, batch: Batch, body: bytes, permit: Permit) -> Reservation | Denied | None:
    """Reserve what a batch costs, before it is claimed; None if nothing limits it, or its model has no price.

    When the day's money is spent, the submits of all jobs pause until the day is over.

    Raises:
        StorageError: DynamoDB failed.
    """
    day_limit, now = services.day_limit, services.now()
    if day_limit is None or not (amount := _amount(services, job, batch, body)):
        return None
    submits = len(batch.submissions) + batch.unknowable + batch.doubtful
    found = day_limit.reserve(f"{batch.job_id} {batch.number}", amount, batch.reserved, submits, now)
    if isinstance(found, Reservation):
        return found
    if found is Room.WAIT:
        return Denied(max(cost_limit.look_at(batch, now), now + DAY_LOOK_SECONDS), paused=True)
    services.budget.pause(PauseReason.DAY_LIMIT, now, "", permit, other_account(services, job))
    return wait_for_lift(now, (now // DAY_SECONDS + 1) * DAY_SECONDS)


def _amount(services: Services, job: Job, batch: Batch, body: bytes) -> int:
    """What a batch's submit will probably cost, in billionths of a US dollar."""
    records = -(-batch.sendable * len(body) // max(batch.body_size, 1))
    model = job.plan.known_model
    longest = estimate(model, body, len(body), records, job.output_tokens)
    if job.spent and job.spent.measured:
        return judged(model, job.spent, longest)
    measured = services.times.answer_tokens(job.plan.model, services.now())
    if job.output_tokens or not measured:
        return longest
    return min(estimate(model, body, len(body), records, ANSWERS_FACTOR * max(measured)), longest)

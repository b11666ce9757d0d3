"""Batches that may not be submitted now: how they wait, which pauses begin, and which a refusal shows to be over.

Each reserves first what it will probably cost of its stack's limit for the day (`shared.pacing.day_costs`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.cost_limit import estimate, judged
from shared.models import Reservation
from shared.pacing import cost_limit
from shared.pacing.controls import Denied, PauseReason, wait_for_lift
from shared.pacing.day_costs import DAY_SECONDS, Room
from shared.pacing.poll_schedule import HELD_POLL_SECONDS
from shared.workers_ai.error_codes import ErrorClass, is_like_lost

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Batch, Job
    from shared.pacing.controls import Pause, Permit
    from shared.workers_ai.replies import Rejected

POLLED_AFTER_SECONDS = 300.0
"""Seconds that a batch which is submitted again waits for the rate budget before its ids are polled again."""
UNPAID_REASONS = {
    ErrorClass.QUOTA: PauseReason.QUOTA_SPENT,
    ErrorClass.CREDITS: PauseReason.CREDITS_SPENT,
    ErrorClass.SPEND_LIMIT: PauseReason.SPEND_LIMIT,
}
"""Why submits pause that cannot be paid for, by what the reply means."""

DAY_LOOK_SECONDS = 60.0
"""Shortest time until the next look at a batch that waits until it is known what others cost."""
ANSWERS_FACTOR = 2
"""Times the longest answers of the model that this stack has measured that a job's first ones may be."""


def closes_pause(pause: Pause, verdict: ErrorClass, reply: Rejected) -> bool:
    """Whether a rejected probe still shows that the pause's reason is over."""
    if pause.reason is PauseReason.TOKEN_REFUSED:
        return verdict not in {
            ErrorClass.ACCOUNT,
            ErrorClass.RATE_LIMIT,
            ErrorClass.TRY_LATER,
        }  # The last: not reached.
    return pause.reason is PauseReason.OUTAGE and reply.status > 0 and not is_like_lost(reply)


def hold(services: Services, job: Job, batch: Batch, now: float) -> None:
    """The job is paused: postpone the batch, or poll it meanwhile if it is to be submitted again."""
    if batch.waits_to_resubmit:
        services.ledger.poll_on(batch, now + HELD_POLL_SECONDS)
    else:
        services.ledger.hold(batch, now, job.deadline_at)


def wait(services: Services, batch: Batch, refusal: Denied) -> None:
    """Postpone a submit. A batch that is submitted again has ids that may return its answer during a long wait."""
    now = services.now()
    if batch.waits_to_resubmit and (refusal.paused or now - batch.ready_at > POLLED_AFTER_SECONDS):
        services.ledger.poll_on(batch, max(refusal.until, min(refusal.wake_at, now + HELD_POLL_SECONDS)))
        return
    if refusal.paused:
        services.ledger.wait(batch, refusal.until, refusal.until - now)
        if refusal.wake_at:
            services.left.note_postponed(batch.job_id, batch.number, refusal.wake_at)
    else:
        services.ledger.postpone(batch, refusal.until)


def reserve_day(services: Services, job: Job, batch: Batch, body: bytes, permit: Permit) -> Reservation | Denied | None:
    """Reserve what a batch costs, before it is claimed; None if nothing limits it, or its model has no price.

    When the day's money is spent, the submits of all jobs pause until the day is over. A limit of 0 allows no batch,
    whatever is known of its price.

    Raises:
        StorageError: DynamoDB failed.
    """
    day_limit, now = services.day_limit, services.now()
    if day_limit is None:
        return None
    amount = _amount(services, job, batch, body)
    if day_limit.limit and not amount:
        return None
    submits = len(batch.submissions) + batch.unknowable + batch.doubtful
    found = day_limit.reserve(f"{batch.job_id} {batch.number}", amount, batch.reserved, submits, now)
    if isinstance(found, Reservation):
        return found
    if found is Room.WAIT:
        return Denied(max(cost_limit.look_at(batch, now), now + DAY_LOOK_SECONDS), paused=True)
    services.budget.pause(PauseReason.DAY_LIMIT, now, "", permit)
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

"""Batches that may not be submitted now.

How they wait, which pauses begin, and which a refusal shows to be over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.pacing.controls import PauseReason
from shared.workers_ai.error_codes import ErrorClass, is_like_lost

if TYPE_CHECKING:
    from shared.models import Batch, Job
    from shared.pacing.controls import Denied, Pause
    from shared.services import Services
    from shared.workers_ai.replies import Rejected

UNPAID_REASONS = {
    ErrorClass.QUOTA: PauseReason.QUOTA_SPENT,
    ErrorClass.CREDITS: PauseReason.CREDITS_SPENT,
    ErrorClass.SPEND_LIMIT: PauseReason.SPEND_LIMIT,
}
"""Why submits pause that cannot be paid for, by what the reply means."""


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
    """Postpone a batch whose job is paused."""
    services.ledger.hold(batch, now, job.deadline_at)


def wait(services: Services, batch: Batch, refusal: Denied) -> None:
    """Postpone a submit."""
    now = services.now()
    if refusal.paused:
        services.ledger.wait(batch, refusal.until, refusal.until - now)
        if refusal.wake_at:
            services.left.note_postponed(batch.job_id, batch.number, refusal.wake_at)
    else:
        services.ledger.postpone(batch, refusal.until)

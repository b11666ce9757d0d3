"""Batches that may not be submitted now.

How they wait, which pauses begin, and which a refusal shows to be over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.pacing.breaker import LIFT_LOOK_SECONDS, LIFTED, PauseReason
from shared.retry import soon_after
from shared.workers_ai.error_codes import ErrorClass, is_like_lost

if TYPE_CHECKING:
    from shared.models import Batch, Job, Wait
    from shared.pacing.breaker import Pause
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


def wait(services: Services, batch: Batch, why: Wait) -> None:
    """Postpone a submit; what somebody may end at any time is due at once then."""
    now = services.now()
    if why.code in LIFTED:
        until = soon_after(now + LIFT_LOOK_SECONDS, 1)
        services.ledger.wait(batch, until, until - now)
        services.left.note_postponed(batch.job_id, batch.number, why.until)
    elif why.code == PauseReason.MODEL_WAITS:
        services.ledger.postpone(batch, soon_after(max(why.until, now) + 1, 14))
    elif why.code:
        services.ledger.wait(batch, why.until, why.until - now)
    else:
        services.ledger.postpone(batch, why.until)

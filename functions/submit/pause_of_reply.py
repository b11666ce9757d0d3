"""Which pause a refused submit begins, and which one it shows to be over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.pacing.controls import PauseReason
from shared.workers_ai.error_codes import ErrorClass, is_like_lost

if TYPE_CHECKING:
    from shared.pacing.controls import Pause
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
        }  # the last if not reached
    return pause.reason is PauseReason.OUTAGE and reply.status > 0 and not is_like_lost(reply)

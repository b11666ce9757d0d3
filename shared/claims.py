"""How long an item without progress is tried: every item ends.

Counts claims; knows nothing about items.

A claim is a try that has no result yet: a change of state, or an answer, resets the count. The
first ten claims wait at most three minutes each, because a function that died proves little about
the item. After 20 claims, an item waits an hour each time and an alarm is raised; 72 hours later
the item ends.
"""

from __future__ import annotations

from shared.observability import count, logger
from shared.retry import exponential

EARLY_CLAIMS, MAX_EARLY_CLAIM_SECONDS = 10, 180.0
"""The number of first claims, and the maximum seconds that each of them waits.

Whatever its usual wait.
"""
FIRST_RETRY_SECONDS, MAX_RETRY_SECONDS = 2.0, 60.0
"""Seconds until the next try after a step that failed, doubled for each claim before it."""
CLAIMS_BEFORE_ALARM = 20
SLOW_CLAIM_SECONDS = 3_600.0
MAX_SECONDS_TO_ACCEPTANCE = 7 * 86_400
"""Seconds after which a batch that the API never accepted ends."""
MAX_CLAIMS = CLAIMS_BEFORE_ALARM + 72
"""The last claim that is tried: if it has no result either, the item ends."""


def claim_seconds(claims: int, usual: float) -> float:
    """Seconds that a claim waits after `claims` others.

    The usual wait within limits, or an hour.
    """
    if claims >= CLAIMS_BEFORE_ALARM:
        return SLOW_CLAIM_SECONDS
    return min(usual, MAX_EARLY_CLAIM_SECONDS) if claims < EARLY_CLAIMS else usual


def retry_seconds(claims: int) -> float:
    """Seconds until an item is tried again whose step failed after `claims` claims.

    Before anything was sent.
    """
    return claim_seconds(claims, exponential(FIRST_RETRY_SECONDS, claims, MAX_RETRY_SECONDS))


def report_stuck(claims: int, job_id: str, number: str = "") -> None:
    """Log and count an item that is claimed again and again without progress."""
    if claims > CLAIMS_BEFORE_ALARM:
        logger.error("item keeps failing", job_id=job_id, number=number, claims=claims)
        count("StuckItems")

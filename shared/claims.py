"""How long an item is tried that does not move: law 5, everything ends. Counts claims; knows no item.

A claim is a try that has not come to anything yet: a change of state, or an answer, sets the count back. The first ten
claims wait at most three minutes each, because a function that died says little about the item. After 20 an item waits
hourly and raises an alarm, for an operator to see; 72 hours later it ends.
"""

from __future__ import annotations

from shared.observability import count, logger

EARLY_CLAIMS, MAX_EARLY_CLAIM_SECONDS = 10, 180.0
"""Claims that wait at most so many seconds, whatever their usual wait is."""
QUIET_CLAIMS = 20
SLOW_CLAIM_SECONDS = 3_600.0
MAX_SECONDS_TO_ACCEPTANCE = 7 * 86_400
"""Seconds after which a batch that the API never accepted ends."""
MAX_CLAIMS = QUIET_CLAIMS + 72
"""The last claim that is tried: if it comes to nothing as well, the item ends."""


def claim_seconds(claims: int, usual: float) -> float:
    """Seconds that a claim after so many others waits: the usual ones within limits, or an hour."""
    if claims >= QUIET_CLAIMS:
        return SLOW_CLAIM_SECONDS
    return min(usual, MAX_EARLY_CLAIM_SECONDS) if claims < EARLY_CLAIMS else usual


def report_stuck(claims: int, job_id: str, number: str = "") -> None:
    """Say and count that an item is taken up again and again and does not move."""
    if claims > QUIET_CLAIMS:
        logger.error("item keeps failing", job_id=job_id, number=number, claims=claims)
        count("StuckItems")

"""How long an item is tried that does not move: law 5, everything ends. Counts claims; knows no item.

A claim is a try that has not come to anything yet: a change of state, or an answer, sets the count back. The first ten
claims wait at most three minutes each, because a function that died says little about the item. After 20 an item waits
hourly and raises an alarm, for an operator to see; 72 hours later it ends.
"""

from __future__ import annotations

from shared.observability import count, logger

EARLY_CLAIMS, LONGEST_EARLY = 10, 180.0
"""Claims that wait at most so many seconds, whatever their usual wait is."""
PATIENT_CLAIMS = 20
HOUR = 3_600.0
LONGEST_WAIT_FOR_ACCEPTANCE = 7 * 86_400
"""Seconds after which a batch that the API never accepted ends."""
LAST_CLAIM = PATIENT_CLAIMS + 72
"""The last claim that is tried: if it comes to nothing as well, the item ends."""


def wait_for(claims: int, usual: float) -> float:
    """Seconds that a claim after so many others waits: the usual ones within limits, or an hour."""
    if claims >= PATIENT_CLAIMS:
        return HOUR
    return min(usual, LONGEST_EARLY) if claims < EARLY_CLAIMS else usual


def alarm_if_stuck(claims: int, job_id: str, number: str = "") -> None:
    """Say and count that an item is taken up again and again and does not move."""
    if claims > PATIENT_CLAIMS:
        logger.error("item keeps failing", job_id=job_id, number=number, claims=claims)
        count("StuckItems")

"""How long to wait before something is tried again, and how often: every item ends.

A claim is a try that has no result yet: a change of state, or an answer, resets the count. The
first ten claims wait at most three minutes each, because a function that died proves little about
the item. After 20 claims, an item waits an hour each time and an alarm is raised; 72 hours later
the item ends. Pauses of the account and of models are in `shared.pacing.breaker`.
"""

from __future__ import annotations

import random

MAX_DOUBLINGS = 30


def exponential(first: float, times: int, longest: float) -> float:
    """Seconds to wait: `first` after no failure, doubled for each, at most `longest`."""
    return min(first * 2.0 ** min(times, MAX_DOUBLINGS), longest)


def jittered(seconds: float, fraction: float = 0.2) -> float:
    """A wait varied at random, so that waits that begin at the same time do not end together."""
    # It spreads load, and guards nothing.
    return seconds * random.uniform(1 - fraction, 1 + fraction)  # noqa: S311


def soon_after(moment: float, within: float) -> float:
    """A random time after a moment, so that not everything that waits for it starts together."""
    return moment + random.uniform(0, within)  # noqa: S311 - spreads load, guards nothing


def submit_back_off(refusals: int) -> float:
    """Seconds until a batch is submitted again after a number of rejections in a row."""
    return jittered(exponential(10.0, refusals, 900.0), 0.3)


def poll_back_off(age: float) -> float:
    """Seconds until a batch is polled again after a poll without an answer: half its age."""
    return jittered(min(max(age / 2, 5.0), 900.0), 0.1)


# ── claims ────────────────────────────────────────────────────────────────────────────────────────

EARLY_CLAIMS, MAX_EARLY_CLAIM_SECONDS = 10, 180.0
"""The number of first claims, and the most that each of them waits."""
CLAIMS_BEFORE_ALARM = 20
SLOW_CLAIM_SECONDS = 3_600.0
MAX_SECONDS_TO_ACCEPTANCE = 7 * 86_400
"""After which a batch that the API never accepted ends."""
MAX_CLAIMS = CLAIMS_BEFORE_ALARM + 72
"""The last claim that is tried: if it has no result either, the item ends."""


def claim_seconds(claims: int, usual: float) -> float:
    """Seconds that a claim waits after `claims` others: the usual one within limits, or an hour."""
    if claims >= CLAIMS_BEFORE_ALARM:
        return SLOW_CLAIM_SECONDS
    return min(usual, MAX_EARLY_CLAIM_SECONDS) if claims < EARLY_CLAIMS else usual


def retry_seconds(claims: int) -> float:
    """Seconds until an item is tried again whose step failed before anything was sent."""
    return claim_seconds(claims, exponential(2.0, claims, 60.0))

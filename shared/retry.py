"""Back-off: how long to wait before something is tried again.

`shared.claims` decides how long an item waits that is claimed again and again without progress;
pauses of the whole account and of one model are in `shared.pacing.breaker`.
"""

from __future__ import annotations

import random

FIRST_SUBMIT_SECONDS, MAX_SUBMIT_SECONDS = 10.0, 900.0
"""Seconds between two submits of a batch that was rejected through no fault of its own."""
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 5.0, 900.0
"""Seconds between two polls of a batch without an answer."""
MAX_DOUBLINGS = 30


def exponential(first: float, times: int, longest: float) -> float:
    """Seconds to wait after a number of failures.

    `first` after none, doubled for each failure, at most `longest`.
    """
    return min(first * 2.0 ** min(times, MAX_DOUBLINGS), longest)


def jittered(seconds: float, fraction: float = 0.2) -> float:
    """A wait varied at random by at most `fraction`.

    So that waits that begin at the same time do not end together.
    """
    return seconds * random.uniform(1 - fraction, 1 + fraction)  # noqa: S311 - spreads load, guards nothing


def longest_jittered(seconds: float, fraction: float = 0.2) -> float:
    """The longest wait that `jittered` can return for these arguments."""
    return seconds * (1 + fraction)


def soon_after(moment: float, within: float) -> float:
    """A random time up to `within` seconds after a moment.

    So that not everything that waits for it starts together.
    """
    return moment + random.uniform(0, within)  # noqa: S311 - spreads load, guards nothing


def submit_back_off(refusals: int) -> float:
    """Seconds until a batch is submitted again after a number of rejections in a row."""
    return jittered(exponential(FIRST_SUBMIT_SECONDS, refusals, MAX_SUBMIT_SECONDS), 0.3)


def poll_back_off(age: float) -> float:
    """Seconds until a batch is polled again after a poll without an answer.

    Half its age since acceptance.
    """
    return jittered(min(max(age / 2, MIN_POLL_SECONDS), MAX_POLL_SECONDS), 0.1)

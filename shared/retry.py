"""Retries and back-off: how long to wait before something is tried again, and a step that is retried in place.

`shared.claims` decides how long an item waits that is claimed again and again without progress; pauses of the whole
account and of one model are in `shared.pacing.controls`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

from shared.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

CALLER_RESERVE_SECONDS = 10.0
"""Seconds of the invocation that are left for the caller if the step never succeeds."""
FIRST_STEP_SECONDS, MAX_STEP_SECONDS = 0.2, 5.0
"""Seconds between two tries of a step."""
FIRST_SUBMIT_SECONDS, MAX_SUBMIT_SECONDS = 10.0, 900.0
"""Seconds between two submits of a batch that was rejected through no fault of its own."""
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 5.0, 900.0
"""Seconds between two polls of a batch without an answer."""
MAX_DOUBLINGS = 30


def exponential(first: float, times: int, longest: float) -> float:
    """Seconds to wait after a number of failures: `first` after none, doubled for each failure, at most `longest`."""
    return min(first * 2.0 ** min(times, MAX_DOUBLINGS), longest)


def jittered(seconds: float, fraction: float = 0.2) -> float:
    """A wait varied at random by at most `fraction`, so that waits that begin at the same time do not end together."""
    return seconds * random.uniform(1 - fraction, 1 + fraction)  # noqa: S311 - spreads load, guards nothing


def longest_jittered(seconds: float, fraction: float = 0.2) -> float:
    """The longest wait that `jittered` can return for these arguments."""
    return seconds * (1 + fraction)


def soon_after(moment: float, within: float) -> float:
    """A random time up to `within` seconds after a moment, so that not everything that waits for it starts together."""
    return moment + random.uniform(0, within)  # noqa: S311 - spreads load, guards nothing


def submit_back_off(refusals: int) -> float:
    """Seconds until a batch is submitted again after a number of rejections in a row."""
    return jittered(exponential(FIRST_SUBMIT_SECONDS, refusals, MAX_SUBMIT_SECONDS), 0.3)


def poll_back_off(age: float) -> float:
    """Seconds until a batch is polled again after a poll without an answer: half its age since acceptance."""
    return jittered(min(max(age / 2, MIN_POLL_SECONDS), MAX_POLL_SECONDS), 0.1)


def retry_until_deadline(step: Callable[[], T], sleep: Callable[[float], None], remaining: Callable[[], float]) -> T:
    """Run a step, again if necessary, until no AWS service fails in it.

    Args:
        step: may be run more than once.
        sleep: waits for a number of seconds.
        remaining: seconds this invocation has left.

    Raises:
        StorageError: the time is used up.
    """
    tries = 0
    while True:
        before = remaining()
        try:
            return step()
        except StorageError:
            wait = exponential(FIRST_STEP_SECONDS, tries, MAX_STEP_SECONDS)
            left = remaining()
            # A call that hung is likely to hang as long again.
            if left < CALLER_RESERVE_SECONDS + wait + (before - left):
                raise
            sleep(wait)
            tries += 1

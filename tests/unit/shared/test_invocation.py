"""How much time an invocation has, and a step that is tried again as long as it has time for it."""

from types import SimpleNamespace

import pytest

from shared.errors import StorageError
from shared.services import CALLER_RESERVE_SECONDS, Invocation

DEADLINE = 0.0
"""So that the seconds left have no rounding."""


class Clock:
    """An invocation's time, and services that only sleep."""

    def __init__(self, left):
        self.left = left
        self.slept = []

    def now(self):
        return DEADLINE - self.left

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.left -= seconds

    def retry(self, failures, seconds=0.0):
        """Retry a step that takes some time.

        Fails a number of times and then returns its number of runs.
        """
        runs = []

        def step():
            assert self.left >= CALLER_RESERVE_SECONDS
            runs.append(1)
            self.left -= seconds
            if len(runs) <= failures:
                raise StorageError("slow")
            return len(runs)

        return Invocation(self, DEADLINE).retry(step)


def test_invocation_ends_when_lambda_says():
    context = SimpleNamespace(get_remaining_time_in_millis=lambda: 90_000)
    invocation = Invocation.of(Clock(30), context)
    assert (invocation.deadline, invocation.seconds_left) == (DEADLINE + 60, 90)


def test_invocation_allows_what_is_left():
    invocation = Invocation(Clock(30), DEADLINE)
    assert (invocation.allows(30), invocation.allows(30.1)) == (True, False)


def test_invocation_ends_early_but_never_late():
    invocation = Invocation(Clock(30), DEADLINE)
    assert [invocation.until(DEADLINE + change).seconds_left for change in (-10, 10)] == [20, 30]


def test_step_is_retried_until_it_succeeds():
    clock = Clock(300)
    assert clock.retry(7) == 8
    assert clock.slept == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


@pytest.mark.parametrize("seconds", [0, 5, 18, 30])
def test_step_that_hangs_leaves_caller_its_reserve(seconds):
    clock = Clock(100)
    with pytest.raises(StorageError):
        clock.retry(100, seconds)
    assert clock.left >= CALLER_RESERVE_SECONDS


@pytest.mark.parametrize(("spare", "is_tried_again"), [(0.2, True), (0.19, False)])
def test_step_is_retried_within_wait_and_reserve(spare, is_tried_again):
    clock = Clock(CALLER_RESERVE_SECONDS + spare)
    if is_tried_again:
        assert clock.retry(1) == 2
    else:
        with pytest.raises(StorageError):
            clock.retry(1)

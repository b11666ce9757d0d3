"""Back-off: how waits grow, where they end, and what a step that fails costs."""

import pytest

from shared.errors import StorageError
from shared.retry import (
    CALLER_RESERVE_SECONDS,
    exponential,
    jittered,
    poll_back_off,
    retry_until_deadline,
    soon_after,
    submit_back_off,
)


class Clock:
    """Seconds that an invocation has left; sleeping takes time, a step takes `step` seconds."""

    def __init__(self, left):
        self.left = left
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.left -= seconds

    def remaining(self):
        return self.left


def fails(times, clock, seconds=0.0):
    """A step that fails a number of times and then returns its number of runs."""
    runs = []

    def step():
        runs.append(1)
        clock.left -= seconds
        if len(runs) <= times:
            raise StorageError("slow")
        return len(runs)

    return step


@pytest.mark.parametrize(("times", "seconds"), [(0, 10), (1, 20), (3, 80), (7, 900), (10_000, 900)])
def test_wait_doubles_up_to_its_bound(times, seconds):
    assert exponential(10, times, 900) == seconds


def test_jitter_stays_within_its_fraction():
    waits = [jittered(100, 0.3) for _ in range(1_000)]
    assert 70 <= min(waits) < 75
    assert 125 < max(waits) <= 130


def test_time_soon_after_moment_is_never_before_it():
    times = [soon_after(1_000, 15) for _ in range(1_000)]
    assert 1_000 <= min(times) < 1_001
    assert 1_014 < max(times) <= 1_015


@pytest.mark.parametrize(("refusals", "seconds"), [(0, 10), (2, 40), (20, 900)])
def test_rejected_submit_waits_longer_each_time(refusals, seconds):
    assert 0.7 * seconds <= submit_back_off(refusals) <= 1.3 * seconds


@pytest.mark.parametrize(("age", "seconds"), [(0, 5), (60, 30), (86_400, 900)])
def test_poll_without_answer_waits_half_of_batchs_age(age, seconds):
    assert 0.9 * seconds <= poll_back_off(age) <= 1.1 * seconds


def test_step_is_retried_until_it_succeeds():
    clock = Clock(300)
    assert retry_until_deadline(fails(7, clock), clock.sleep, clock.remaining) == 8
    assert clock.slept == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_step_that_hangs_leaves_caller_its_reserve():
    clock = Clock(100)
    with pytest.raises(StorageError):
        retry_until_deadline(fails(100, clock, seconds=30), clock.sleep, clock.remaining)
    assert clock.left >= CALLER_RESERVE_SECONDS


@pytest.mark.parametrize(("spare", "is_tried_again"), [(0.2, True), (0.19, False)])
def test_step_is_retried_within_wait_and_reserve(spare, is_tried_again):
    clock = Clock(CALLER_RESERVE_SECONDS + spare)
    step = fails(1, clock)
    if is_tried_again:
        assert retry_until_deadline(step, clock.sleep, clock.remaining) == 2
    else:
        with pytest.raises(StorageError):
            retry_until_deadline(step, clock.sleep, clock.remaining)

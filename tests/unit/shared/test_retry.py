"""Waits: back-off, claims, and how long an invocation tries a step again."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from shared import observability
from shared.errors import StorageError
from shared.observability import report_stuck
from shared.retry import (
    MAX_CLAIMS,
    claim_seconds,
    exponential,
    jittered,
    poll_back_off,
    soon_after,
    submit_back_off,
)
from shared.services import CALLER_RESERVE_SECONDS, Invocation


# ── back-off: how waits grow, and where they end ──────────────────────────────────────────────────
@pytest.mark.parametrize(("times", "seconds"), [(0, 10), (1, 20), (3, 80), (7, 900), (10_000, 900)])
def test_wait_doubles_up_to_its_bound(times, seconds):
    assert exponential(10, times, 900) == seconds


def test_jitter_stays_within_its_fraction_and_nothing_is_before_its_time():
    waits = [jittered(100, 0.3) for _ in range(1_000)]
    assert 70 <= min(waits) < 75
    assert 125 < max(waits) <= 130
    times = [soon_after(1_000, 15) for _ in range(1_000)]
    assert 1_000 <= min(times) < 1_001
    assert 1_014 < max(times) <= 1_015


def test_rejected_submit_waits_longer_each_time_and_a_poll_half_of_its_batchs_age():
    for refusals, seconds in ((0, 10), (2, 40), (20, 900)):
        assert 0.7 * seconds <= submit_back_off(refusals) <= 1.3 * seconds
    for age, seconds in ((0, 5), (60, 30), (86_400, 900)):
        assert 0.9 * seconds <= poll_back_off(age) <= 1.1 * seconds


CLAIMS = {
    (0, 30): 30,
    (0, 900): 180,
    (9, 900): 180,
    (10, 900): 900,
    (19, 900): 900,
    (20, 900): 3_600,
    (20, 30): 3_600,
    (MAX_CLAIMS, 30): 3_600,
}


def test_claims_wait_3_minutes_to_an_hour():
    assert {claim: claim_seconds(*claim) for claim in CLAIMS} == CLAIMS


@pytest.mark.parametrize(
    ("others", "is_reported"), [(1, False), (20, False), (21, True), (MAX_CLAIMS, True)]
)
def test_item_is_stuck_after_twenty_claims(monkeypatch, others, is_reported):
    counted = []
    monkeypatch.setattr(observability, "count", counted.append)

    report_stuck(others, "job", "00000000")

    assert counted == (["StuckItems"] if is_reported else [])


# ── how much time an invocation has, and how often a step is tried again ──────────────────────────
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
        """Retry a step that takes some time, fails so often, and then returns its runs."""
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
    with nullcontext() if is_tried_again else pytest.raises(StorageError):
        assert clock.retry(1) == 2

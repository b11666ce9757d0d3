"""Back-off: how waits grow, and where they end."""

import pytest

from shared.retry import exponential, jittered, poll_back_off, soon_after, submit_back_off


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

"""When to poll a batch: one rule on what is remembered of its model."""

import random
import statistics
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.pacing.cadence import (
    FIRST_POLL,
    JITTER,
    LIFE,
    LONG_LIFE,
    MAX_FIRST_WAIT,
    MAX_WAIT,
    MIN_WAIT,
    READ_EVERY,
    READ_UNKNOWN_EVERY,
    SCOUTS,
    SLOTS,
    UNKNOWN_POLL,
    first_poll,
    next_poll,
    quantile,
    stored_age,
    times_of,
)

NOW = 1_795_253_400
LATER = "00000009"
"""The number of a batch that is not among a job's first ones."""
TIMES = st.lists(st.floats(0.1, 90_000), max_size=SLOTS).map(sorted)


def polls_of(times, took):
    """The ages at which a batch is polled that takes so long."""
    ages = [next_poll(times, LATER, 0.0, 0.0)]
    while ages[-1] < took:
        ages.append(ages[-1] + next_poll(times, LATER, ages[-1], 0.0))
    return ages


def learned(took, jobs):
    """Polls of each of so many batches, one after another, and what is known at the end."""
    chance, bounds, polls = random.Random(1), [], []
    for _ in range(jobs):
        ages = [0.0, *polls_of(times_of(tuple(bounds), NOW), took(chance))]
        polls.append(len(ages) - 1)
        bounds = [*bounds, (ages[-2], ages[-1], NOW)][-SLOTS:]
    return polls, times_of(tuple(bounds), NOW)


def test_new_model_is_polled_at_1_8_s_then_at_twice_age():
    assert polls_of([], 100) == pytest.approx([1.8, 3.6, 7.2, 14.4, 28.8, 57.6, 115.2])


def test_first_batches_of_job_are_polled_sooner():
    times = [float(one) for one in range(10, 20)]
    assert [next_poll(times, number, 0.0, 0.0) for number in ("00000005", LATER)] == [12, 13]
    assert [next_poll(times, number, 14.0, 0.0) for number in ("00000005.2", LATER)] == [2.1, 2.1]


def test_only_first_batches_of_new_model_are_polled_early():
    waits = [first_poll([], f"{number:08d}", 0.0) for number in range(SCOUTS + 2)]
    assert waits == [FIRST_POLL] * SCOUTS + [UNKNOWN_POLL] * 2
    assert first_poll([45.0] * 5, LATER, 0.5) == next_poll([45.0] * 5, LATER, 0.0, 0.5)


@given(TIMES, st.floats(0, 200_000), st.floats(0, 1))
def test_waits_are_within_bounds(times, age, chance):
    shortest, wait = next_poll(times, LATER, age, 0.0), next_poll(times, LATER, age, chance)
    assert MIN_WAIT <= shortest <= wait <= min(shortest * (1 + JITTER), MAX_WAIT) * 1.001


@pytest.mark.parametrize(("before", "after"), [(300.0, 30.0), (30.0, 300.0), (4.0, 60.0)])
def test_change_of_model_is_noticed(before, after):
    times = iter([before] * 60 + [after] * 3 * SLOTS)
    _, known = learned(lambda _: next(times), 60 + 3 * SLOTS)
    assert polls_of(known, after)[-1] < 1.6 * after


def test_remembered_stall_does_not_hide_quick_model():
    assert next_poll([33_000.0] * SLOTS, LATER, 0.0, 1.0) == pytest.approx(MAX_FIRST_WAIT)
    assert next_poll([33_000.0] * SLOTS, LATER, 2_000.0, 1.0) == pytest.approx(MAX_WAIT)


@pytest.mark.parametrize(("by", "life"), [(900, LIFE), (901, LONG_LIFE), (36_000, LONG_LIFE)])
def test_what_is_old_is_forgotten(by, life):
    bounds = ((by - 100, by, NOW),)
    assert times_of(bounds, NOW + life - 1) == [by - 50]
    assert times_of(bounds, NOW + life) == []


def test_quantile_of_what_is_known():
    shares = {0.0: 1, 0.5: 3, 0.95: 4, 1.0: 4}
    assert {share: quantile([1.0, 2.0, 3.0, 4.0], share) for share in shares} == shares
    assert quantile([], 0.95) == 0.0


def job_after(bounds, chance, begins):
    """Calls a batch and the median wait for its answer, of 40 batches of 5 to 90 s."""
    known, read_at = times_of(tuple(bounds), begins), begins
    due = [(begins + 0.3 * number, 0, number, 0.0, 0.0, 0.0) for number in range(40)]
    calls, waits = [], []
    while due:
        now, polls, number, accepted, finished, pending = heappop(due)
        if now - read_at >= (READ_EVERY if known else READ_UNKNOWN_EVERY):
            known, read_at = times_of(tuple(bounds), now), now
        if not accepted:
            first = first_poll(known, f"{number:08d}", chance.random())
            heappush(due, (now + first, 0, number, now, now + chance.uniform(5, 90), 0.0))
        elif now < finished:
            following = now + next_poll(known, f"{number:08d}", now - accepted, chance.random())
            heappush(due, (following, polls + 1, number, accepted, finished, now - accepted))
        else:
            calls.append(2 + polls)
            waits.append(now - finished)
            slot = int(chance.random() * SLOTS)
            bounds[slot : slot + 1] = [(stored_age(pending), stored_age(now - accepted), int(now))]
    return statistics.fmean(calls), statistics.median(waits)


def test_promised_calls_and_seconds_of_jobs_in_a_row():
    """The first on a new model."""
    rows = []
    for seed in range(60):
        chance, bounds = random.Random(seed), []
        rows.append([job_after(bounds, chance, NOW + 127.0 * job) for job in range(4)])
    calls = [statistics.fmean(row[job][0] for row in rows) for job in range(4)]

    assert calls[0] <= 4
    assert max(calls[1:]) <= 3.3
    assert statistics.fmean(wait for row in rows for _, wait in row[1:]) <= 20

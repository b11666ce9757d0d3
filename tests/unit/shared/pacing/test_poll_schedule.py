"""When to poll a batch.

One rule on what is remembered, and what is assumed of a model never seen.
"""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.pacing.poll_schedule import (
    ASSUMED,
    EDGES,
    FIRST_POLL_SECONDS,
    JITTER,
    LATER_FIRST,
    LONG_LIFE_SECONDS,
    MAX_FIRST_SECONDS,
    MAX_IN_ORDER_SECONDS,
    MAX_SECONDS,
    MIN_SECONDS,
    SAMPLES,
    SCOUTS,
    SHARE,
    distribution,
    earlier_pending,
    first_poll,
    is_in_order,
    is_sampled,
    next_poll,
    seconds_behind,
)

NOW = 1_795_253_400
AGES = st.floats(0, 200_000)
BOUNDS = st.lists(
    st.tuples(
        st.integers(0, 90_000),
        st.integers(0, 90_000),
        st.integers(NOW - 2 * LONG_LIFE_SECONDS, NOW),
    ),
    max_size=SAMPLES,
).map(tuple)


def polls_of(of, took, chance=0.0):
    """The ages at which a batch is polled that takes so long."""
    ages = [next_poll(of, 0.0, chance)]
    while ages[-1] < took:
        ages.append(ages[-1] + next_poll(of, ages[-1], chance))
    return ages


def learned(took, jobs, seed=1):
    """Polls of each of so many batches, one after another.

    And what is known of their model at the end.
    """
    chance, bounds, polls = random.Random(seed), [], []
    for _ in range(jobs):
        finished = took(chance)
        ages = [0.0, *polls_of(distribution(tuple(bounds), NOW), finished, chance.random())]
        polls.append(len(ages) - 1)
        bounds = [*bounds, (round(ages[-2], 1), round(ages[-1], 1), NOW)][-SAMPLES:]
    return polls, distribution(tuple(bounds), NOW)


def test_new_model_is_polled_at_2_s_then_twice_age():
    assert distribution((), NOW) == ASSUMED
    assert polls_of(ASSUMED, 300) == pytest.approx([2, 4, 8, 16, 32, 64, 128, 256, 512])
    assert FIRST_POLL_SECONDS == 2.0


@pytest.mark.parametrize(("took", "most"), [(0.5, 0.7), (1.0, 1.6), (3.0, 3.8)])
def test_quick_model_is_polled_as_soon_as_it_was_seen_quick(took, most):
    polls, of = learned(lambda _: took, 30)

    assert MIN_SECONDS <= polls_of(of, took)[-1] <= most
    assert sum(polls[10:]) <= 40


def test_first_batches_of_new_model_are_polled_early():
    waits = [first_poll(ASSUMED, f"{number:08d}", 0.0) for number in range(SCOUTS + 2)]
    assert waits == [FIRST_POLL_SECONDS] * SCOUTS + [LATER_FIRST] * 2
    assert first_poll(ASSUMED, "00000009.f", 1.0) == pytest.approx(LATER_FIRST * (1 + JITTER))


def test_known_model_has_one_rule_for_all_batches():
    known = distribution(((40, 50, NOW),) * 5, NOW)
    assert first_poll(known, "00000009", 0.5) == next_poll(known, 0.0, 0.5)


@given(BOUNDS, AGES, st.floats(0, 1))
def test_waits_are_within_bounds(bounds, age, chance):
    assert MIN_SECONDS <= next_poll(distribution(bounds, NOW), age, chance) <= MAX_SECONDS


@given(BOUNDS)
def test_distribution_sums_to_one(bounds):
    of = distribution(bounds, NOW)
    assert len(of) == len(EDGES)
    assert sum(of) == pytest.approx(1)
    assert min(of) >= 0


@given(BOUNDS, AGES)
def test_jitter_only_lengthens_wait(bounds, age):
    of = distribution(bounds, NOW)
    shortest = next_poll(of, age, 0.0)
    assert all(
        shortest <= next_poll(of, age, chance) <= shortest * (1 + JITTER) * 1.001
        for chance in (0.3, 1.0)
    )


@given(st.floats(20, 800))
def test_constant_duration_needs_two_or_three_polls(took):
    """A model that always takes as long is polled twice, a slow one three times.

    And soon after its answer.
    """
    polls, of = learned(lambda _: took, 20)

    assert sum(polls[10:]) <= (20 if took < 240 else 33)
    assert polls_of(of, took)[-1] - took <= max(0.25 * took, 2 * MIN_SECONDS)


def test_share_of_batches_is_finished_at_each_poll():
    polls, _ = learned(lambda chance: chance.lognormvariate(4.8, 0.5), 400)

    assert sum(polls[40:]) / 360 < 1 / SHARE


@pytest.mark.parametrize(("before", "after"), [(300.0, 30.0), (30.0, 300.0)])
def test_change_of_model_is_noticed(before, after):
    times = iter([before] * 60 + [after] * 2 * SAMPLES)
    _, of = learned(lambda _: next(times), 60 + 2 * SAMPLES)

    assert polls_of(of, after)[-1] < 1.5 * after
    assert len(polls_of(of, after)) <= 3


def test_batch_older_than_memory_is_polled_rarely():
    _, of = learned(lambda _: 33.0, 20)

    ages = [age for age in polls_of(of, 40_000) if age > 60]
    waits = [later - sooner for sooner, later in pairwise(ages)]
    assert all(later >= sooner * 0.9 for sooner, later in pairwise(waits))
    assert waits[-1] > 0.9 * MAX_SECONDS


def test_remembered_stall_does_not_hide_quick_model():
    stalled = distribution(((30_000, 36_000, NOW),) * SAMPLES, NOW)
    assert next_poll(stalled, 0.0, 1.0) == pytest.approx(MAX_FIRST_SECONDS)
    assert next_poll(stalled, 2_000.0, 1.0) == pytest.approx(MAX_SECONDS)


def test_earliest_batch_of_model_that_works_in_order_is_polled_each_minute():
    """All others wait for it."""
    assert next_poll(ASSUMED, 2_000.0, 1.0) > 5 * MAX_IN_ORDER_SECONDS
    assert next_poll(ASSUMED, 2_000.0, 1.0, in_order=True) == pytest.approx(MAX_IN_ORDER_SECONDS)


@pytest.mark.parametrize(
    ("by", "days"),
    [(900, 14), (901, 0.25), (36_000, 0.25)],
    ids=["15 minutes", "more", "a stall of ten hours"],
)
def test_what_is_old_is_forgotten(by, days):
    bounds = ((by - 100, by, NOW),) * SAMPLES
    assert distribution(bounds, NOW + days * 86_400 - 1) != ASSUMED
    assert distribution(bounds, NOW + days * 86_400) == ASSUMED


@pytest.mark.parametrize(
    ("took", "number", "rested", "divided_by"),
    [
        (300, "00000000", True, 2),
        (300, "00000000", False, 1),
        (300, "00000001", True, 1),
        (33, "00000000", True, 1),
    ],
    ids=["a first batch", "all is new", "a later batch", "a quick model"],
)
def test_first_batch_after_a_rest_is_polled_at_half(took, number, rested, divided_by):
    known = distribution(((took - 5, took, NOW),) * 20, NOW)
    wait = first_poll(known, number, 0.0, rested=rested)
    assert wait == pytest.approx(next_poll(known, 0.0, 0.0) / divided_by)


def test_remembered_batches_depend_on_number():
    assert [number for number in range(60) if is_sampled(f"{number:08d}")] == [
        *range(40),
        40,
        48,
        56,
    ]
    assert is_sampled("00000003.0.1")


# ── models that work in order ─────────────────────────────────────────────────────────────────────


def bounds_of(took, number=40, apart=10.0, polled_every=15.0):
    """Bounds of batches that are accepted one after the other.

    And polled regularly until they are over.
    """
    found = []
    for each in range(number):
        age = next(
            age for age in (polled_every * times for times in range(1, 999)) if age >= took(each)
        )
        found.append((age - polled_every, age, int(NOW + apart * each + age)))
    return tuple(found)


@pytest.mark.parametrize(
    ("took", "expected"),
    [
        (lambda _: 33.0, False),
        (lambda number: 30.0 + 5 * number, True),
        (lambda number: 300.0 if number % 8 == 0 else 30.0, False),
        (lambda number: random.Random(number).uniform(5, 300), False),
    ],
    ids=["always as long, so nothing is gained", "a queue", "some take long", "by chance"],
)
def test_order_is_seen_in_bounds(took, expected):
    bounds = bounds_of(took)
    assert is_in_order(bounds, NOW + 900) is expected
    assert not is_in_order(bounds[:3], NOW + 900)
    assert not is_in_order(bounds, NOW + 9_000)


@pytest.mark.parametrize(
    ("seen_ago", "accepted_before", "wait"),
    [(1, 40, 40), (24, 40, 40), (25, 40, 0), (1, 2, 10), (1, 1, 0), (1, -5, 0), (1, 500, 120)],
)
def test_batch_waits_as_long_as_it_is_behind(seen_ago, accepted_before, wait):
    assert seconds_behind((NOW - seen_ago, NOW - 60 - accepted_before), NOW - 60, NOW) == wait
    assert seconds_behind(None, NOW - 60, NOW) == 0


@pytest.mark.parametrize(
    ("known", "other", "kept"),
    [
        (None, (100, 50), (100, 50)),
        ((90, 40), (100, 50), (90, 40)),
        ((90, 60), (100, 50), (100, 50)),
        ((90, 50), (100, 50), (100, 50)),
        ((75, 40), (100, 50), (100, 50)),
        ((100, 50), (75, 40), (100, 50)),
        ((100, 50), (76, 40), (76, 40)),
    ],
)
def test_earliest_batch_that_was_just_pending_is_kept(known, other, kept):
    assert earlier_pending(known, other) == kept

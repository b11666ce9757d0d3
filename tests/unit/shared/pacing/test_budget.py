"""The rate budget: what it allows and says of waiting; random waits return their midpoint."""

import math

import pytest

from shared import retry
from shared.aws.attribute_values import plain
from shared.models import Wait
from shared.pacing import budget as module
from shared.pacing.breaker import PauseReason, Permit
from shared.pacing.budget import Budget, FreeCalls
from tests.support.doubles.control_items import (
    INTERVAL,
    MODEL,
    NOW,
    GivenBudget,
    pause_of,
    taken,
    wait_of,
)

QUOTA, TOKEN = PauseReason.QUOTA_SPENT, PauseReason.TOKEN_REFUSED
OTHER = "@cf/a/two"


@pytest.fixture(autouse=True)
def _middle(monkeypatch):
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: (low + high) / 2)


def moved(budget):
    """Seconds from now until the bucket is full after the only write."""
    assert len(budget.written) == 1
    return budget.filled_at / 1_000 - NOW


# ── the bucket ────────────────────────────────────────────────────────────────────────────────────
RATES = {
    # calls a minute: bursts of all calls, of submits and of polls, and the interval
    1: (1, 1, 1, 60_000),
    3: (1, 1, 1, 20_000),
    4: (2, 1, 2, 15_000),
    8: (4, 2, 4, 7_500),
    200: (100, 50, 90, 300),
    218: (109, 54, 99, 276),
    240: (120, 60, 108, 278),
}


def test_rate_has_bursts_and_interval():
    for calls, wanted in RATES.items():
        budget = GivenBudget(calls)
        bursts = budget.burst, budget.submit_burst, budget.poll_burst
        assert (*bursts, budget.interval) == wanted


def test_worker_makes_as_many_calls_as_it_is_told():
    """What Cloudflare allows a token does not slow it down."""
    for calls, burst, interval in ((240, 120, 250), (600, 300, 100), (2_400, 1_200, 25)):
        budget = Budget(None, "table", calls, None)
        made = budget.burst, budget.interval, budget.calls_in(60)
        assert made == (burst, interval, burst + calls)


@pytest.mark.parametrize(("calls", "seconds"), [(240, 0.278), (4, 15.0), (3, 40.0), (1, 120.0)])
def test_submits_leave_every_other_call_to_polls_without_share(calls, seconds):
    """Where polls may use more of the burst, they go first, and submits need not leave any."""
    assert GivenBudget(calls).slot_seconds == seconds


@pytest.mark.parametrize(
    ("filled_after", "first", "submits", "polls"),
    [
        (-5_000, 100, 50, 90),
        (0, 100, 50, 90),
        (1, 99, 49, 89),
        (INTERVAL, 99, 49, 89),
        (INTERVAL + 1, 98, 48, 88),
        (49 * INTERVAL, 51, 1, 41),
        (60 * INTERVAL, 40, 0, 30),
        (101 * INTERVAL, 0, 0, 0),
    ],
)
def test_tokens_refill_until_bucket_is_full(filled_after, first, submits, polls):
    rate = module.Rate(int(NOW * 1_000) + filled_after)
    free = GivenBudget(rate=rate).free_calls(NOW)
    assert (free.first, free.submits, free.polls) == (first, submits, polls)


@pytest.mark.parametrize(
    ("already", "next_in"),
    [(49, 0), (50, 0.3), (51, 0.6), (89, 12), (90, 0.3), (99, 3), (100, 0.3)],
)
def test_next_token_is_that_of_first_kind_without(already, next_in):
    """Submits have none from 50 on, polls from 90 on; 0.3 s bring one."""
    assert GivenBudget(rate=taken(already)).free_calls(NOW).next_token == pytest.approx(
        next_in and NOW + next_in, abs=1e-3
    )


@pytest.mark.parametrize(
    ("calls_per_minute", "interval", "waits"),
    [(1, 0, True), (1, 1, False), (1, 2, True), (19, 2, True), (20, 2, False)],
)
def test_polls_wait_every_other_interval_if_no_share_is_left(calls_per_minute, interval, waits):
    budget = GivenBudget(calls_per_minute)
    for within in (1, budget.interval - 1):
        now = (interval * budget.interval + within) / 1_000
        assert budget.polls_wait_for_first(now) is waits


@pytest.mark.parametrize(
    ("already", "first", "permitted"),
    [(49, False, True), (50, False, False), (99, True, True), (100, True, False)],
)
def test_submit_takes_last_token_of_share(already, first, permitted):
    budget = GivenBudget(rate=taken(already))
    permit = budget.permit_submit(MODEL, NOW, first=first)
    assert permit == (Permit() if permitted else Wait(NOW + 5))
    assert len(budget.written) == permitted


@pytest.mark.parametrize(
    ("meanwhile", "permit"),
    [
        (taken(49), Permit()),
        (taken(50), Wait(NOW + 5)),
        (taken(1, hold_until=NOW + 60), Wait(NOW + 5)),
        (None, Permit()),
    ],
)
def test_submit_that_lost_race_looks_again(meanwhile, permit):
    assert GivenBudget(loses=1, meanwhile=meanwhile).permit_submit(MODEL, NOW) == permit


@pytest.mark.parametrize(("loses", "granted"), [(2, 7), (3, 0)])
def test_polls_try_three_times_for_their_tokens(loses, granted):
    budget = GivenBudget(loses=loses, meanwhile=taken(1))
    permit = Permit() if granted else Wait(NOW + 5)
    assert budget.permit_polls(7, NOW) == (granted, permit)


@pytest.mark.parametrize(
    ("wanted", "already", "granted"), [(1, 89, 1), (3, 0, 3), (5, 87, 3), (90, 0, 90), (91, 0, 90)]
)
def test_free_polls_are_granted_as_wanted(wanted, already, granted):
    budget = GivenBudget(rate=taken(already))
    assert budget.permit_polls(wanted, NOW) == (granted, Permit())
    assert moved(budget) == pytest.approx((already + granted) * 0.3, abs=1e-4)


# ── holds ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("until", "held"), [(NOW, False), (NOW + 1, True)])
def test_hold_ends_at_its_time_for_every_call(until, held):
    budget = GivenBudget(rate=module.Rate(0, until, NOW - 10))
    submit, (polls, poll) = budget.permit_submit(MODEL, NOW), budget.permit_polls(2, NOW)
    assert (submit, polls, poll) == ((submit, 0, submit) if held else (Permit(), 2, Permit()))
    if held:
        told = submit.until, submit.code, submit.since
        assert told == (until + 5, module.TOO_MANY_CALLS, NOW - 10)
    assert budget.permit_check(NOW) is not held
    assert budget.can_submit(MODEL, NOW) is not held
    free = FreeCalls(next_token=until) if held else FreeCalls(100, 50, 90)
    assert budget.free_calls(NOW) == free


@pytest.mark.parametrize(
    ("said", "seconds"), [(None, 60), (0, 60), (0.5, 0.5), (17, 17), (900, 900), (901, 900)]
)
def test_hold_lasts_at_most_15_minutes(said, seconds):
    budget = GivenBudget()
    assert budget.limit_rate(NOW, said) == NOW + seconds
    assert GivenBudget(loses=1).limit_rate(NOW, said) == NOW + seconds, "it says its own time"
    (written,) = budget.written
    assert plain(written["ExpressionAttributeValues"][":until"]) == NOW + seconds


@pytest.mark.parametrize(
    ("until", "held_since", "since"),
    [
        (0.0, 0.0, NOW),
        (NOW + 10, NOW - 500, NOW - 500),
        (NOW - 299, NOW - 500, NOW - 500),
        (NOW - 300, NOW - 500, NOW),
        (NOW - 301, NOW - 500, NOW),
    ],
)
def test_hold_soon_after_another_continues_it(until, held_since, since):
    budget = GivenBudget(rate=module.Rate(0, until, held_since))
    budget.limit_rate(NOW, 17)
    (written,) = budget.written
    assert plain(written["ExpressionAttributeValues"][":since"]) == since


# ── models, the stack, and pauses ─────────────────────────────────────────────────────────────────
def test_paused_stack_lets_only_polls_through():
    budget = GivenBudget(held_since=NOW - 10)
    assert budget.permit_submit(MODEL, NOW) == module.stack_held()
    assert budget.free_calls(NOW) == FreeCalls(polls=90, paused=True, look_at=math.inf)
    assert budget.permit_polls(3, NOW) == (3, Permit())


DUE = {"pause": pause_of(next_probe=NOW), "wait": wait_of(NOW)}


@pytest.mark.parametrize(
    "given",
    [
        DUE | {"rate": taken(50)},
        DUE | {"rate": taken(0, NOW + 1)},
        DUE | {"held_since": NOW - 10},
        DUE | {"full": (MODEL,)},
        DUE | {"pause": pause_of(TOKEN)},
        {"wait": wait_of(NOW + 1)},
        DUE | {"wait": wait_of(NOW + 1)},
        {"pause": pause_of(QUOTA, until=NOW), "wait": wait_of(NOW + 1)},
    ],
)
def test_submit_that_has_to_wait_takes_no_token_and_claims_no_probe(given):
    budget = GivenBudget(**given)
    assert isinstance(budget.permit_submit(MODEL, NOW), Wait)
    assert budget.written == []


def test_of_many_polls_one_is_probe_and_none_takes_a_token_before_its_time():
    granted, permit = GivenBudget(pause=pause_of(TOKEN, next_probe=NOW)).permit_polls(3, NOW)
    assert (granted, permit.pause.next_probe) == (1, NOW + 90)
    budget = GivenBudget(pause=pause_of(TOKEN))
    granted, wait = budget.permit_polls(3, NOW)
    assert (granted, wait.code, budget.written) == (0, TOKEN, [])


@pytest.mark.parametrize(
    ("pause", "is_paused"),
    [
        (None, False),
        (pause_of(), True),
        (pause_of(QUOTA, until=NOW + 1), True),
        (pause_of(QUOTA, until=NOW), False),
        (pause_of(QUOTA, until=NOW - 1), False),
    ],
)
def test_what_is_free_is_paused_until_pause_is_over(pause, is_paused):
    free = GivenBudget(pause=pause).free_calls(NOW)
    found = free.paused, free.first, free.submits, free.polls
    assert found == ((True, 0, 0, 90) if is_paused else (False, 100, 50, 90))


@pytest.mark.parametrize("held_since", [0.0, NOW - 10])
@pytest.mark.parametrize(
    ("reason", "paused"), [(TOKEN, True), (QUOTA, False), (PauseReason.OUTAGE, False)]
)
def test_only_refused_token_pauses_polls(reason, paused, held_since):
    free = GivenBudget(pause=pause_of(reason), held_since=held_since).free_calls(NOW)
    assert free.polls_paused is paused


@pytest.mark.parametrize(
    ("next_probe", "already", "first", "submits"),
    [
        (NOW + 0.5, 0, 0, 0),
        (NOW, 0, 1, 1),
        (NOW - 1, 49, 1, 1),
        (NOW, 50, 1, 0),
        (NOW, 99, 1, 0),
        (NOW, 100, 0, 0),
    ],
)
def test_due_probe_frees_one_submit(next_probe, already, first, submits):
    free = GivenBudget(pause=pause_of(next_probe=next_probe), rate=taken(already)).free_calls(NOW)
    assert (free.first, free.submits) == (first, submits)


@pytest.mark.parametrize(
    ("given", "room", "until"),
    [
        ({}, None, None),
        ({"wait": wait_of(NOW + 1)}, 0, NOW + 1),
        ({"wait": wait_of(NOW)}, 1, NOW + 90),
        ({"wait": wait_of(NOW - 1)}, 1, NOW + 90),
        ({"full": (MODEL,)}, 0, NOW + 60),
        ({"full": (OTHER,)}, None, None),
    ],
)
def test_model_has_room_for_any_one_or_none(given, room, until):
    found, wait = GivenBudget(**given).model_room(MODEL, NOW)
    assert found == room
    assert until is None or wait.until == until


@pytest.mark.parametrize(
    ("given", "codes"),
    [
        ({}, []),
        ({"rate": taken(100)}, []),
        ({"pause": pause_of(TOKEN)}, [TOKEN]),
        ({"pause": pause_of(QUOTA, until=NOW)}, []),
        ({"wait": wait_of(NOW + 1), "full": (MODEL,)}, ["model_waits", "model_busy"]),
        ({"full": (OTHER,)}, []),
        ({"held_since": NOW - 9, "pause": pause_of()}, ["outage", "paused"]),
        ({"rate": module.Rate(0, NOW + 9, NOW - 899)}, []),
        ({"rate": module.Rate(0, NOW + 9, NOW - 900)}, ["too_many_calls"]),
        ({"rate": module.Rate(0, NOW - 299, NOW - 900)}, ["too_many_calls"]),
        ({"rate": module.Rate(0, NOW - 300, NOW - 900)}, []),
        ({"rate": module.Rate(0, NOW + 9, 0.0)}, []),
    ],
)
def test_users_read_what_lasts(given, codes):
    assert [one.code for one in GivenBudget(**given).waits(MODEL, NOW)] == codes


@pytest.mark.parametrize(("hold_until", "until"), [(NOW + 9, NOW + 9), (NOW, module.NEVER)])
def test_rate_limit_that_is_over_lasts_until_a_call_shows_it(hold_until, until):
    budget = GivenBudget(rate=module.Rate(0, hold_until, NOW - 900))
    assert [one.until for one in budget.waits(MODEL, NOW)] == [until]


def test_batch_that_has_a_place_is_submitted_to_full_model():
    assert GivenBudget(full=(MODEL,)).can_submit(MODEL, NOW, has_place=True)


@pytest.mark.parametrize(
    ("given", "can"),
    [
        ({}, True),
        ({"pause": pause_of(next_probe=NOW + 1)}, False),
        ({"pause": pause_of(next_probe=NOW)}, True),
        ({"pause": pause_of(QUOTA, next_probe=NOW + 9, until=NOW + 1)}, False),
        ({"pause": pause_of(QUOTA, next_probe=NOW + 9, until=NOW)}, True),
        ({"pause": pause_of(QUOTA, next_probe=NOW, until=NOW + 1)}, True),
        ({"wait": wait_of(NOW + 1)}, False),
        ({"wait": wait_of(NOW)}, True),
        ({"full": (MODEL,)}, False),
        ({"full": (OTHER,)}, True),
        ({"held_since": NOW - 9}, False),
        ({"rate": taken(100)}, True),
    ],
)
def test_submit_finds_permit_unless_blocked(given, can):
    assert GivenBudget(**given).can_submit(MODEL, NOW) is can


@pytest.mark.parametrize(
    ("given", "may"),
    [
        ({}, True),
        ({"pause": pause_of(TOKEN)}, True),
        ({"held_since": NOW - 9}, True),
        ({"rate": taken(99)}, True),
        ({"rate": taken(100)}, False),
        ({"loses": 1, "meanwhile": taken(100)}, False),
    ],
)
def test_free_call_needs_only_token(given, may):
    budget = GivenBudget(**given)
    assert budget.permit_check(NOW) is may
    assert len(budget.written) == may


@pytest.mark.parametrize(
    ("batches", "others", "is_full"),
    [
        (3, 0, False),
        (1_499, 0, False),
        (1_500, 0, True),
        (1_399, 200, False),
        (1_400, 200, True),
        (1, 2_996, False),
        (2, 2_996, True),
        (1, 9_000, False),
        (2, 9_000, True),
    ],
)
def test_model_limit_shrinks_by_half_of_others_minimum_two(batches, others, is_full):
    full = GivenBudget().find_full({MODEL: batches}, batches + others)
    assert full == ([MODEL] if is_full else [])


def test_fullest_models_are_named_up_to_twenty():
    outstanding = {f"@cf/a/{number}": 2_000 + number for number in range(22)}
    full = GivenBudget().find_full(outstanding, sum(outstanding.values()))
    assert full == [f"@cf/a/{number}" for number in range(21, 1, -1)]

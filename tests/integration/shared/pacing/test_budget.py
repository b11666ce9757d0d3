"""The right to call the API: the shared rate, pauses of the account, waits of one model; on DynamoDB's conditions."""

import random
from collections import deque

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.errors import StorageError
from shared.pacing.budget import (
    CLOUDFLARE_CALLS,
    MAX_FULL_MODELS,
    MIN_OUTSTANDING,
    OUTSTANDING_MINUTES,
    Budget,
    ModelRoom,
)
from shared.pacing.controls import Denied, PauseReason, Permit
from tests.support.doubles.control_items import MODEL, NOW, OTHER, is_free, lift_by_hand

# ── the rate ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@given(
    calls=st.sampled_from([1, 2, 3, 7, 60, 200, 218, 219, 230, 240]),
    seed=st.integers(0, 10**6),
    pause=st.sampled_from([0.0, 0.2, 5.0]),
)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, derandomize=True)
def test_five_minutes_stay_within_cloudflare_limit(budget_of, calls, seed, pause):
    budget = budget_of(calls)
    chance = random.Random(seed)
    now, made, counted = NOW, 0, deque()
    while now < NOW + 700:
        if chance.random() < 0.3:
            got = int(isinstance(budget.permit_submit(MODEL, now), Permit))
        else:
            got = budget.permit_polls(chance.choice([1, 16, 1_000]), now)[0]
        made += got
        counted.append((now, got))
        while counted[0][0] <= now - 300:
            made -= counted.popleft()[1]
        assert made <= CLOUDFLARE_CALLS
        now += pause * chance.random() + (chance.choice([0, 60, 290]) if not got and chance.random() < 0.2 else 0.5)


@pytest.mark.parametrize("calls", range(1, 241))
def test_burst_and_refill_stay_within_cloudflare_limit(calls):
    budget = Budget(None, "table", calls)
    assert budget.burst + 300_000 / budget.interval <= CLOUDFLARE_CALLS
    assert 60_000 / budget.interval <= calls
    assert 1 <= budget.submit_burst <= budget.burst


@pytest.mark.parametrize("calls", [200, 218, 219, 240])
def test_higher_rate_never_lets_fewer_calls_through(calls):
    lower, higher = Budget(None, "table", calls - 1), Budget(None, "table", calls)
    assert higher.burst >= lower.burst
    assert higher.interval <= lower.interval * 1.01


def test_default_rate_has_burst_of_half_of_it(budget):
    assert (budget.burst, budget.interval) == (100, 300)


def test_two_functions_share_one_bucket(budget):
    twin = Budget(budget.client, budget.table, 200)
    granted = [budget.permit_polls(40, NOW)[0], twin.permit_polls(40, NOW)[0], budget.permit_polls(40, NOW)[0]]
    assert granted == [40, 40, 10]
    assert twin.permit_polls(1, NOW)[0] == 0


def test_lost_race_is_not_two_permits_for_one_token(budget, monkeypatch):
    twin = Budget(budget.client, budget.table, 200)
    budget.permit_polls(budget.poll_burst - 1, NOW)
    seen = budget.controls()
    assert twin.permit_polls(1, NOW)[0] == 1
    monkeypatch.setattr(budget, "controls", lambda model="", account="": seen)
    assert budget.permit_polls(1, NOW)[0] == 0


@pytest.mark.parametrize("already", [0, 10])
def test_submit_finds_token_in_spite_of_races(budget, monkeypatch, already):
    """However many others take tokens between its reads and its writes."""
    twin = Budget(budget.client, budget.table, 200)
    for _ in range(already):
        twin.permit_submit(MODEL, NOW)
    for name in ("controls", "get"):
        real = getattr(budget, name)

        def read_late(*arguments, real=real):
            found = real(*arguments)
            assert isinstance(twin.permit_submit(MODEL, NOW), Permit)
            return found

        monkeypatch.setattr(budget, name, read_late)

    assert [budget.permit_submit(MODEL, NOW) for _ in range(5)] == [Permit()] * 5


@pytest.mark.parametrize("later", [0.0, 20.0])
def test_concurrent_functions_never_exceed_rate(budget, later, monkeypatch):
    """Every third of them polls; each acts on what it read some turns ago, until all are refused for good."""
    chance = random.Random(later)
    twins = [Budget(budget.client, budget.table, 200) for _ in range(12)]
    flown = int(later * 1_000 / budget.interval)
    if later:
        while isinstance(budget.permit_submit(MODEL, NOW, first=True), Permit):
            pass
    taken, refused = [0] * len(twins), 0

    while refused < 10 * len(twins):
        number = chance.randrange(len(twins))
        twin = twins[number]
        if number % 3:
            got = int(isinstance(twin.permit_submit(MODEL, NOW + later), Permit))
        else:
            got = twin.permit_polls(4, NOW + later)[0]
        taken[number] += got
        refused = 0 if got else refused + 1
        seen = budget.controls(MODEL)
        monkeypatch.setattr(chance.choice(twins), "controls", lambda *_, seen=seen, **__: seen)

    polls, submits = sum(taken[::3]), sum(taken) - sum(taken[::3])
    free = flown if later else budget.burst
    assert polls + submits == free - (budget.burst - budget.poll_burst)
    assert submits <= max(budget.submit_burst - (budget.burst - free), 0)


def test_submits_take_half_of_burst(budget):
    taken = 0
    while isinstance(budget.permit_submit(MODEL, NOW), Permit):
        taken += 1
    assert taken == 50
    assert budget.permit_polls(1_000, NOW)[0] == 40


def test_first_batches_find_reserved_tokens(budget):
    budget.permit_polls(1_000, NOW)
    assert isinstance(budget.permit_submit(MODEL, NOW), Denied)
    assert budget.permit_polls(1, NOW)[0] == 0
    assert [is_free(budget.permit_submit(MODEL, NOW, first=True)) for _ in range(11)] == [True] * 10 + [False]


def test_polls_may_starve_submits_but_not_vice_versa(budget):
    assert budget.permit_polls(100, NOW)[0] == 90
    assert isinstance(budget.permit_submit(MODEL, NOW), Denied)
    later = NOW + 60
    while isinstance(budget.permit_submit(MODEL, later), Permit):
        pass
    assert budget.permit_polls(50, later)[0] == 40


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_even_lowest_rate_submits(budget_of, calls):
    assert isinstance(budget_of(calls).permit_submit(MODEL, NOW), Permit)


def test_denied_call_learns_when_to_retry(budget):
    budget.permit_polls(100, NOW)
    refusal = budget.permit_submit(MODEL, NOW)
    assert NOW < refusal.until <= NOW + 15
    assert not refusal.paused


def test_model_at_limit_stops_submitting(budget):
    budget.note_outstanding(1_500, [MODEL])
    refusal = budget.permit_submit(MODEL, NOW)
    assert isinstance(refusal, Denied)
    assert refusal.paused  # It is not the batch's fault that it waits.
    assert is_free(budget.permit_submit(OTHER, NOW))
    assert budget.permit_polls(1, NOW)[0] == 1
    budget.note_outstanding(1_499)
    assert is_free(budget.permit_submit(MODEL, NOW))


def test_lone_model_may_use_all_that_polls_can_follow(budget):
    most = 100 * OUTSTANDING_MINUTES
    assert budget.full_models({MODEL: most - 1}, most - 1) == []
    assert budget.full_models({MODEL: most}, most) == [MODEL]
    assert budget.full_models({MODEL: most, OTHER: most // 2 - 1}, most + most // 2 - 1) == [MODEL]
    assert budget.full_models({MODEL: most, OTHER: most // 2}, most + most // 2) == [MODEL, OTHER]


def test_stalled_models_share_bounded_room(budget):
    """However many models stall, each may submit, and all together have less than twice as many batches."""
    outstanding = {}
    for number in range(MAX_FULL_MODELS):
        model = f"@cf/a/{number}"
        outstanding[model] = 0
        while model not in budget.full_models(outstanding, sum(outstanding.values())):
            outstanding[model] += 1
        assert outstanding[model] >= MIN_OUTSTANDING
    assert sum(outstanding.values()) < 2 * 100 * OUTSTANDING_MINUTES + MAX_FULL_MODELS * MIN_OUTSTANDING


def free_of(budget, now=NOW):
    free = budget.free(now)
    return free.first, free.submits, free.polls


def test_what_is_free_knows_tokens_holds_and_pauses(budget):
    assert free_of(budget) == (100, 50, 90)
    assert not budget.free(NOW).paused
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    assert free_of(budget) == (0, 0, 90)
    assert budget.free(NOW).paused
    assert free_of(budget, NOW + 1_801) == (1, 1, 90)
    lift_by_hand(budget)
    assert free_of(budget) == (100, 50, 90)
    budget.limit_rate(NOW, 30)
    assert free_of(budget, NOW + 29) == (0, 0, 0)


def test_room_of_model_knows_its_wait_and_its_share(budget):
    assert budget.model_room(MODEL, NOW).batches is None
    until = budget.delay_model(MODEL, NOW, "3040", Permit())
    assert budget.model_room(MODEL, NOW) == ModelRoom(0, until)
    assert budget.model_room(MODEL, until + 1).batches == 1
    assert budget.model_room(OTHER, NOW).batches is None
    budget.note_outstanding(2_000, [OTHER])
    assert budget.model_room(OTHER, NOW) == ModelRoom(0, NOW + 60, full=True)


def test_when_table_fails_no_right_is_given(dynamodb):
    nowhere = Budget(dynamodb, "no-such-table", 200)
    with pytest.raises(StorageError):
        nowhere.permit_submit(MODEL, NOW)
    with pytest.raises(StorageError):
        nowhere.permit_polls(1, NOW)

"""The right to call the API: the shared rate, pauses of the account, waits of one model; on DynamoDB's conditions."""

import random
from collections import deque

import boto3
import moto
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from local.template import properties
from shared.errors import StorageError
from shared.pacing.budget import (
    CLOUDFLARE_CALLS,
    MAX_FULL_MODELS,
    MIN_OUTSTANDING,
    OUTSTANDING_MINUTES,
    Budget,
    ModelRoom,
)
from shared.pacing.controls import (
    FIRST_MODEL_WAIT_SECONDS,
    FIRST_OUTAGE_WAIT_SECONDS,
    MAX_MODEL_WAIT_SECONDS,
    MAX_OUTAGE_WAIT_SECONDS,
    PAUSED_LOOK_SECONDS,
    Denied,
    PauseReason,
    Permit,
)

NOW = 1_795_253_400.0
"""09:30:00 UTC."""
MODEL, OTHER = "@cf/a/one", "@cf/a/two"


@pytest.fixture(scope="module")
def dynamodb():
    with moto.mock_aws(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield boto3.client("dynamodb", region_name="eu-west-1")


@pytest.fixture
def budget_of(dynamodb):
    """Makes a budget on a table of its own."""
    wanted = properties("Table")
    made = []

    def make(calls=200):
        name = f"table-{len(made)}"
        made.append(name)
        keys = ("BillingMode", "AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes")
        dynamodb.create_table(TableName=name, **{key: wanted[key] for key in keys})
        return Budget(dynamodb, name, calls)

    yield make
    for name in made:
        dynamodb.delete_table(TableName=name)


@pytest.fixture
def budget(budget_of):
    return budget_of()


def is_free(permit):
    return isinstance(permit, Permit) and permit == Permit()


def lift_by_hand(budget):
    budget.client.delete_item(TableName=budget.table, Key={"pk": {"S": "CONTROL"}, "sk": {"S": "PAUSE"}})


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
    budget.hold(NOW, 30)
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


# ── pauses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def probes_in(budget, begin, end, *, submits=True, step=5.0):
    """Seconds after `begin` at which a call was let through as a probe."""
    found = []
    now = begin
    while now < end:
        permit = budget.permit_submit(MODEL, now) if submits else budget.permit_polls(1, now)[1]
        if isinstance(permit, Permit):
            assert permit.pause is not None
            found.append(round(now - begin))
        now += step
    return found


@pytest.mark.parametrize("submits", [True, False])
def test_refused_token_pauses_all_and_is_probed(budget, submits):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    found = probes_in(budget, NOW, NOW + 1_800, submits=submits)
    assert found[:10] == list(range(60, 601, 60))
    assert found[11] - found[10] == 300
    assert found[12] - found[11] == 300


def test_one_caller_alone_is_probe(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    permits = [
        budget.permit_submit(MODEL, NOW + 60),
        budget.permit_polls(16, NOW + 60),
        budget.permit_submit(OTHER, NOW + 60),
    ]
    assert isinstance(permits[0], Permit)
    assert permits[1][0] == 0
    assert isinstance(permits[2], Denied)


def test_probing_poll_is_a_single_poll(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    granted, permit = budget.permit_polls(16, NOW + 60)
    assert granted == 1
    assert permit.pause.reason is PauseReason.TOKEN_REFUSED


def test_good_probe_lifts_pause(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    probe = budget.permit_submit(MODEL, NOW + 60)
    budget.lift(probe, MODEL)
    assert is_free(budget.permit_submit(MODEL, NOW + 61))


def test_good_probe_keeps_newer_pause(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    probe = budget.permit_submit(MODEL, NOW + 60)
    lift_by_hand(budget)
    budget.pause(PauseReason.QUOTA_SPENT, NOW + 61, "3036", Permit())
    budget.lift(probe, MODEL)
    assert budget.controls().pause.reason is PauseReason.QUOTA_SPENT


def test_deleted_pause_is_noticed(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    refusal = budget.permit_submit(MODEL, NOW + 1)
    assert refusal.paused
    assert refusal.until <= NOW + 1 + PAUSED_LOOK_SECONDS + 10
    lift_by_hand(budget)
    assert is_free(budget.permit_submit(MODEL, NOW + 2))


def test_used_up_quota_pauses_submits_until_midnight(budget):
    """It is probed each half hour, and polls continue."""
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    midnight = NOW - NOW % 86_400 + 86_400
    assert budget.controls().pause.until == midnight
    assert is_free(budget.permit_polls(16, NOW + 1)[1])
    assert probes_in(budget, NOW, NOW + 7_200, step=30) == [1_800, 3_600, 5_400]
    assert is_free(budget.permit_submit(MODEL, midnight))


def test_429_holds_everything_for_as_long_as_it_says(budget):
    budget.hold(NOW, 17)
    assert isinstance(budget.permit_submit(MODEL, NOW + 16), Denied)
    assert budget.permit_polls(1, NOW + 16)[0] == 0
    assert is_free(budget.permit_submit(MODEL, NOW + 17))
    assert budget.permit_polls(1, NOW + 17)[0] == 1


def test_429_without_retry_after_holds_a_minute(budget):
    budget.hold(NOW, None)
    assert isinstance(budget.permit_submit(MODEL, NOW + 59), Denied)
    assert is_free(budget.permit_submit(MODEL, NOW + 60))


def test_shorter_hold_does_not_shorten_longer_one(budget):
    budget.hold(NOW, 100)
    budget.hold(NOW + 1, 5)
    assert isinstance(budget.permit_submit(MODEL, NOW + 99), Denied)


def test_outage_lets_one_submit_try_with_back_off(budget):
    budget.pause(PauseReason.OUTAGE, NOW, "no answer", Permit())
    assert budget.permit_polls(16, NOW + 1)[0] == 16
    steps, now = [], NOW
    for _ in range(8):
        began = now
        while isinstance(permit := budget.permit_submit(MODEL, now), Denied):
            now += 5
        steps.append(now - began)
        budget.pause(PauseReason.OUTAGE, now, "no answer", permit)
    assert steps == [min(FIRST_OUTAGE_WAIT_SECONDS * 2**times, MAX_OUTAGE_WAIT_SECONDS) for times in range(8)]


def test_many_lost_answers_of_one_outage_are_one_step(budget):
    budget.pause(PauseReason.OUTAGE, NOW, "no answer", Permit())
    first = budget.controls().pause
    for _ in range(5):
        budget.pause(PauseReason.OUTAGE, NOW + 1, "no answer", Permit())
    assert budget.controls().pause == first


@pytest.mark.parametrize("other", [PauseReason.QUOTA_SPENT, PauseReason.OUTAGE])
def test_token_pause_is_never_replaced(budget, other):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    budget.pause(other, NOW + 1, "words", Permit())
    assert budget.controls().pause.reason is PauseReason.TOKEN_REFUSED


@pytest.mark.parametrize("other", [PauseReason.QUOTA_SPENT, PauseReason.OUTAGE])
def test_refused_token_covers_whatever_there_is(budget, other):
    budget.pause(other, NOW, "words", Permit())
    budget.pause(PauseReason.TOKEN_REFUSED, NOW + 1, "10000", Permit())
    assert budget.controls().pause.reason is PauseReason.TOKEN_REFUSED


def test_outage_does_not_cover_spent_quota(budget):
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    budget.pause(PauseReason.OUTAGE, NOW + 1, "no answer", Permit())
    assert budget.controls().pause.reason is PauseReason.QUOTA_SPENT


def test_hold_during_used_up_quota_holds_polls_too(budget):
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    budget.hold(NOW + 1, 30)
    assert budget.permit_polls(1, NOW + 2)[0] == 0
    assert budget.permit_polls(1, NOW + 31)[0] == 1


def test_pause_that_has_expired_stops_no_call(budget):
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    after = budget.controls().pause.until + 20
    budget.pause(PauseReason.OUTAGE, after, "no answer", Permit())
    pause = budget.controls().pause
    assert (pause.reason, pause.since, pause.step) == (PauseReason.OUTAGE, after, FIRST_OUTAGE_WAIT_SECONDS)


# ── waits of one model ───────────────────────────────────────────────────────────────────────────────────────────────


def test_waiting_model_leaves_others_alone(budget):
    budget.delay_model(MODEL, NOW, "3040", Permit())
    refusal = budget.permit_submit(MODEL, NOW + 1)
    assert isinstance(refusal, Denied)
    assert not refusal.paused
    assert is_free(budget.permit_submit(OTHER, NOW + 1))
    assert is_free(budget.permit_polls(1, NOW + 1)[1])


def test_one_batch_of_waiting_model_tries(budget):
    until = budget.delay_model(MODEL, NOW, "3040", Permit())
    probe, other = budget.permit_submit(MODEL, until), budget.permit_submit(MODEL, until)
    assert probe.model_wait is not None
    assert isinstance(other, Denied)
    assert other.until > until


def test_probe_that_never_returned_is_followed(budget):
    until = budget.delay_model(MODEL, NOW, "3040", Permit())
    assert budget.permit_submit(MODEL, until).model_wait is not None
    assert budget.permit_submit(MODEL, until + 100).model_wait is not None


def test_wait_doubles_with_each_failed_probe(budget):
    permit, now, waits = Permit(), NOW, []
    for _ in range(9):
        until = budget.delay_model(MODEL, now, "3040", permit)
        waits.append(until - now)
        now = until
        permit = budget.permit_submit(MODEL, now)
        assert isinstance(permit, Permit)
    wanted = [min(FIRST_MODEL_WAIT_SECONDS * 2**times, MAX_MODEL_WAIT_SECONDS) for times in range(9)]
    assert all(0.8 * step <= wait <= 1.2 * step for wait, step in zip(waits, wanted, strict=True))


def test_late_refusals_do_not_lengthen_wait(budget):
    until = budget.delay_model(MODEL, NOW, "3040", Permit())
    assert budget.delay_model(MODEL, NOW + 1, "3040", Permit()) == until


def test_good_probe_lifts_models_wait_and_no_other(budget):
    until = max(budget.delay_model(model, NOW, "3040", Permit()) for model in (MODEL, OTHER))
    probe = budget.permit_submit(MODEL, until)
    budget.lift(probe, MODEL)
    assert is_free(budget.permit_submit(MODEL, until))
    assert budget.controls(OTHER).model_wait is not None


def test_good_probe_keeps_newer_wait(budget):
    until = budget.delay_model(MODEL, NOW, "3040", Permit())
    probe = budget.permit_submit(MODEL, until)
    later = budget.delay_model(MODEL, until + 1, "3040", probe)
    budget.lift(probe, MODEL)
    assert budget.controls(MODEL).model_wait.until == later

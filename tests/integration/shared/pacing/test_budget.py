"""The rate budget on DynamoDB: what several functions at once may take, and what they write."""

import random

import pytest

from shared.aws.attribute_values import attributes, read
from shared.errors import StorageError
from shared.pacing.breaker import Permit, Rate, control_key
from shared.pacing.budget import CLOUDFLARE_CALLS, Budget
from tests.support.doubles.control_items import MODEL, NOW, taken


@pytest.fixture
def budget(table):
    """A budget at 200 calls a minute whose items are not there yet."""
    table.delete_item(TableName="table", Key=control_key("RATE"))
    return Budget(table, "table", 200)


def put(budget, rate):
    budget.client.put_item(TableName="table", Item={**control_key("RATE"), **attributes(rate)})


def held(budget):
    return read(budget.get(control_key("RATE")), Rate)


def test_burst_and_refill_stay_within_cloudflare_limit():
    for calls in range(1, 241):
        budget = Budget(None, "table", calls)
        assert budget.burst + 300_000 / budget.interval <= CLOUDFLARE_CALLS, calls
        assert 60_000 / budget.interval <= calls
        assert 1 <= budget.submit_burst <= budget.burst, calls


@pytest.mark.parametrize("calls", [200, 218, 219, 240])
def test_higher_rate_never_lets_fewer_calls_through(calls):
    lower, higher = Budget(None, "table", calls - 1), Budget(None, "table", calls)
    assert higher.burst >= lower.burst
    assert higher.interval <= lower.interval * 1.01


@pytest.mark.parametrize("later", [0.0, 20.0])
def test_concurrent_functions_never_exceed_rate(budget, later, monkeypatch):
    """Every third polls; each acts on what it read some turns ago, until all are refused."""
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


def test_when_table_fails_no_right_is_given(table):
    nowhere = Budget(table, "no-such-table", 200)
    with pytest.raises(StorageError):
        nowhere.permit_submit(MODEL, NOW)
    with pytest.raises(StorageError):
        nowhere.permit_polls(1, NOW)


def test_longer_hold_stays_and_leaves_tokens_as_they_are(budget):
    put(budget, taken(7))
    for seconds, until in ((17, NOW + 17), (100, NOW + 100), (20, NOW + 100)):
        budget.limit_rate(NOW, seconds)
        assert held(budget) == taken(7, until, NOW)

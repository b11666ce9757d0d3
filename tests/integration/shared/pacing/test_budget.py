"""The right to call the API: the shared rate, pauses of the account, waits of one model.

On DynamoDB's conditions.
"""

import random

import pytest

from shared.errors import StorageError
from shared.pacing.breaker import Permit
from shared.pacing.budget import (
    CLOUDFLARE_CALLS,
    Budget,
)
from tests.support.doubles.control_items import MODEL, NOW

# ── the rate ──────────────────────────────────────────────────────────────────────────────────────


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
    """Every third of them polls.

    Each acts on what it read some turns ago, until all are refused for good.
    """
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


def test_when_table_fails_no_right_is_given(dynamodb):
    nowhere = Budget(dynamodb, "no-such-table", 200)
    with pytest.raises(StorageError):
        nowhere.permit_submit(MODEL, NOW)
    with pytest.raises(StorageError):
        nowhere.permit_polls(1, NOW)

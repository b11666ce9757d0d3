"""The rate budget on DynamoDB.

What its conditions refuse, and the slots of a batch's pieces, which it keeps there.
"""

import pytest

from shared.aws.attribute_values import attributes, read
from shared.models import Wait
from shared.pacing.breaker import Permit, Rate, control_key
from shared.pacing.budget import Budget
from tests.support.doubles.control_items import MODEL, NOW, taken


@pytest.fixture
def budget(table):
    """A budget at 200 calls a minute whose items are not there yet."""
    for sk in ("RATE",):
        table.delete_item(TableName="table", Key=control_key(sk))
    return Budget(table, "table", 200)


def put(budget, sk, rate):
    budget.client.put_item(TableName="table", Item={**control_key(sk), **attributes(rate)})


def held(budget, sk="RATE"):
    return read(budget.get(control_key(sk)), Rate)


def in_milliseconds(seconds):
    return int((NOW + seconds) * 1_000)


# ── races ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("meanwhile", "permit", "filled_after"),
    [(49, Permit, 15.0), (50, Wait, 15.0)],
    ids=["one left", "none left"],
)
def test_submit_with_old_read_takes_only_the_rest(
    budget, monkeypatch, meanwhile, permit, filled_after
):
    put(budget, "RATE", taken(10))
    seen = budget.controls(MODEL)
    put(budget, "RATE", taken(meanwhile))
    monkeypatch.setattr(budget, "controls", lambda *_: seen)

    assert isinstance(budget.permit_submit(MODEL, NOW), permit)

    assert held(budget).filled_at == in_milliseconds(filled_after)


def test_first_token_of_all_is_not_taken_twice(budget, monkeypatch):
    seen = budget.controls(MODEL)
    budget.permit_submit(MODEL, NOW)
    monkeypatch.setattr(budget, "controls", lambda *_: seen)

    assert budget.permit_submit(MODEL, NOW) == Permit()

    assert held(budget).filled_at == in_milliseconds(0.6)


@pytest.mark.parametrize(
    ("first", "second", "until"),
    [(100, 17, NOW + 100), (17, 100, NOW + 100)],
    ids=["shorter", "longer"],
)
def test_longer_hold_stays(budget, first, second, until):
    budget.limit_rate(NOW, first)
    budget.limit_rate(NOW, second)
    assert held(budget).hold_until == until


def test_hold_leaves_tokens_as_they_are(budget):
    put(budget, "RATE", taken(7))
    budget.limit_rate(NOW, 17)
    assert held(budget) == taken(7, NOW + 17, NOW)

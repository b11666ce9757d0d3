"""The rate budget on DynamoDB.

What its conditions refuse, and the slots of a batch's pieces, which it keeps there.
"""

import pytest

from shared.aws.attribute_values import attribute, attributes, read
from shared.pacing.budget import Budget
from shared.pacing.controls import Denied, Permit, Rate, control_key
from tests.support.doubles.control_items import MODEL, NOW, taken

TURNS = "RATE#ISOLATION"


@pytest.fixture
def budget(table):
    """A budget at 200 calls a minute whose items are not there yet."""
    for sk in ("RATE", TURNS):
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
    [(49, Permit, 15.0), (50, Denied, 15.0)],
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


# ── slots of a batch's pieces ─────────────────────────────────────────────────────────────────────


def waits(slots):
    return [round(slot - NOW, 3) for slot in slots]


def test_twelve_pieces_go_at_once_then_one_by_one(budget):
    assert waits(budget.isolation_slots(15, NOW)) == [0.0] * 12 + [2.4, 4.8, 7.2]


def test_pieces_of_next_batch_queue_behind(budget):
    budget.isolation_slots(11, NOW)
    assert waits(budget.isolation_slots(3, NOW)) == [0.0, 2.4, 4.8]
    assert held(budget, TURNS).filled_at == in_milliseconds(14 * 2.4)


def test_piece_burst_refills_with_time(budget):
    budget.isolation_slots(13, NOW)
    later = budget.isolation_slots(3, NOW + 4.8)
    assert waits(later) == [4.8, 7.2, 9.6]


@pytest.mark.parametrize(("calls", "at_once"), [(2, 1), (30, 1), (32, 2)])
def test_low_rate_still_sends_one_piece_at_once(budget, calls, at_once):
    slots = Budget(budget.client, "table", calls).isolation_slots(3, NOW)
    assert slots.count(NOW) == at_once
    assert slots == sorted(slots)


def test_slots_follow_one_another_again_after_an_item_that_nobody_can_read(budget):
    budget.client.put_item(TableName="table", Item={**control_key(TURNS), "filled_at": {"S": "?"}})
    assert waits(budget.isolation_slots(12, NOW)) == [0.0] * 12
    assert waits(budget.isolation_slots(1, NOW)) == [2.4]


@pytest.mark.parametrize(
    ("seen", "then"), [(0, 12 * 2.4), (12 * 2.4, 0)], ids=["taken", "none left"]
)
def test_slots_follow_those_that_others_have_taken_since_they_were_read(
    budget, monkeypatch, seen, then
):
    """However many functions take some at the same time."""
    put(budget, TURNS, Rate(in_milliseconds(then)))
    monkeypatch.setattr(budget, "get", lambda _: {"filled_at": attribute(in_milliseconds(seen))})

    assert waits(budget.isolation_slots(13, NOW))[-1] == pytest.approx(then + 2.4)

    monkeypatch.undo()
    assert held(budget, TURNS).filled_at == in_milliseconds(then + 13 * 2.4)

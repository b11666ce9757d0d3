"""Pauses and waits of models: of two functions that read the same, one writes."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from shared.aws.attribute_values import attributes
from shared.pacing.breaker import PauseReason, Permit, StackControl, control_key
from shared.pacing.budget import Budget
from shared.services import Services
from tests.support.doubles.control_items import MODEL, NOW, pause_of, wait_of

WAIT = f"PAUSE#{MODEL}"
NO_ITEM, ITEM = (None, None), (pause_of(next_probe=NOW), wait_of(NOW))
OTHER_NONCE = tuple(replace(one, nonce="other", code="other") for one in ITEM)
OTHER_TIME = (replace(ITEM[0], next_probe=NOW - 1), replace(ITEM[1], next_probe=NOW - 1))


@pytest.fixture
def items(table):
    return Budget(table, "table", 200)


def put(items, held):
    """Make the control items the pause and the wait given, or none."""
    for sk, item in zip(("PAUSE", WAIT), held, strict=True):
        if item:
            items.client.put_item(TableName="table", Item={**control_key(sk), **attributes(item)})
        else:
            items.client.delete_item(TableName="table", Key=control_key(sk))


def read(items):
    controls = items.controls(MODEL)
    return controls.pause, controls.model_pause


def reads_before(items, monkeypatch, seen, then):
    """Let the next reader see `seen`, and the table hold `then`."""
    put(items, seen)
    controls = items.controls(MODEL)
    put(items, then)
    monkeypatch.setattr(items, "controls", lambda *_, **__: controls)


def pause_and_delay(items):
    """An outage goes on, and a model has to wait longer."""
    pause, wait = ITEM
    items.pause(PauseReason.OUTAGE, NOW, "new", Permit(pause=pause))
    items.pause(PauseReason.MODEL_WAITS, NOW, "new", Permit(model_pause=wait), MODEL)


@pytest.mark.parametrize(
    ("seen", "then"),
    [(NO_ITEM, ITEM), (ITEM, OTHER_NONCE), (ITEM, NO_ITEM)],
    ids=["begun", "written anew", "lifted"],
)
def test_concurrent_write_stays(items, monkeypatch, seen, then):
    reads_before(items, monkeypatch, seen, then)
    pause_and_delay(items)
    monkeypatch.undo()
    assert read(items) == then


@pytest.mark.parametrize("seen", [NO_ITEM, ITEM, OTHER_TIME], ids=["none", "as it is", "probed"])
def test_what_was_read_is_replaced(items, seen):
    put(items, seen)
    pause_and_delay(items)
    assert [one.code for one in read(items)] == ["new", "new"]


@pytest.mark.parametrize(
    "then", [OTHER_NONCE, OTHER_TIME, NO_ITEM], ids=["written anew", "probed by another", "lifted"]
)
def test_probe_is_claimed_only_of_what_was_read(items, then):
    pause, wait = ITEM
    put(items, then)
    assert items.claim_probe(pause, NOW) is None
    assert items.claim_probe(wait, NOW, WAIT) is None
    assert read(items) == then


def test_claimed_probe_moves_next_one(items):
    put(items, ITEM)
    claimed = items.claim_probe(ITEM[0], NOW), items.claim_probe(ITEM[1], NOW, WAIT)
    assert [one.next_probe for one in claimed] == [NOW + 90, NOW + 90]
    assert read(items) == claimed


@pytest.mark.parametrize(
    ("then", "left"), [(ITEM, NO_ITEM), (OTHER_TIME, NO_ITEM), (OTHER_NONCE, OTHER_NONCE)]
)
def test_good_probe_lifts_exactly_what_it_probed(items, then, left):
    put(items, then)
    items.lift(Permit(*ITEM), MODEL)
    assert read(items) == left


@pytest.mark.parametrize(
    ("then", "sent"),
    [(ITEM, True), (NO_ITEM, True), (OTHER_NONCE, False), ((ITEM[0], OTHER_NONCE[1]), True)],
    ids=["ended", "by another", "replaced", "ended, while the model waits anew"],
)
def test_poll_function_is_woken_by_a_pause_that_ended(items, monkeypatch, then, sent):
    """Another pause may answer a probe: then nobody may submit more than before."""
    put(items, then)
    woken = []
    monkeypatch.setattr(
        "shared.services.wake", lambda _, at, *, at_once: woken.append((at, at_once))
    )
    services = SimpleNamespace(budget=items, now=lambda: NOW)
    Services.lift(services, Permit(*ITEM), MODEL)
    assert woken == [(NOW, True)] * sent


def test_deleted_one_does_not_block_the_other(items):
    put(items, (None, ITEM[1]))
    items.lift(Permit(*ITEM), MODEL)
    assert read(items) == NO_ITEM


UNREADABLE = {
    "a pause of a later reason": ("PAUSE", {**attributes(ITEM[0]), "reason": {"S": "later"}}),
    "a pause without anything": ("PAUSE", {"later": {"S": "x"}}),
    "a wait of a model": (WAIT, {**attributes(ITEM[1]), "step": {"S": "?"}}),
    "the rate": ("RATE", {"filled_at": {"S": "?"}}),
    "the stack's command": ("STACK", {"held_since": {"S": "?"}}),
}
"""Control items that cannot be read, by their sort keys."""


@pytest.mark.parametrize("which", UNREADABLE)
def test_unreadable_control_item_stops_no_call(items, which):
    sk, attributes_ = UNREADABLE[which]
    # Whatever another test has left.
    for one in ("PAUSE", WAIT, "RATE", "STACK"):
        items.client.delete_item(TableName="table", Key=control_key(one))
    items.client.put_item(TableName="table", Item={**control_key(sk), **attributes_})

    assert isinstance(items.permit_submit(MODEL, NOW), Permit)
    assert items.permit_polls(1, NOW)[0] == 1

    items.pause(PauseReason.OUTAGE, NOW, "new", Permit())
    items.pause(PauseReason.MODEL_WAITS, NOW, "new", Permit(), MODEL)
    assert None not in read(items), "the next refusal is stored again"
    for one in ("PAUSE", WAIT, "RATE", "STACK"):
        items.client.delete_item(TableName="table", Key=control_key(one))


@pytest.mark.parametrize(
    "was", [{"nonce": {"S": "earlier"}}, {"later": {"S": "x"}}], ids=["a nonce", "no nonce"]
)
def test_good_pause_is_not_deleted_as_unreadable(items, was):
    """Somebody wrote it after the unreadable one was read."""
    put(items, ITEM)

    assert items.readable({**control_key("PAUSE"), **was}, type(ITEM[0])) is None

    assert read(items) == ITEM
    put(items, NO_ITEM)


def test_command_for_the_stack_is_read_as_noted(items):
    items.note_stack(StackControl("version", NOW))

    assert items.controls(MODEL).stack == StackControl("version", NOW)
    items.client.delete_item(TableName="table", Key=control_key("STACK"))

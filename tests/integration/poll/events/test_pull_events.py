"""What pulled events change: a batch is due now, by one write, and nothing else.

Each order of event and batch.
"""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from functions.poll.schedule import pull_events as pull_events_module
from functions.poll.schedule.pull_events import (
    MAX_PULLS_IN_A_ROW,
    begin_chain,
    pull_by_message,
    pull_events,
)
from shared.errors import StorageError
from shared.events.ids import KnownId
from shared.events.pulling import expect_events, pull_interval
from shared.ledger import DueEntry
from shared.models import BatchState, DueKind, Submission
from shared.pacing.budget import Free
from shared.pacing.wakes import LeftDue
from tests.integration.poll.events.conftest import M3
from tests.support.doubles.api_client import refusal
from tests.support.doubles.ledger_items import JOB, PART, T

PULL, ACK = "POST /queues/q1/messages/pull", "POST /queues/q1/messages/ack"
HOUR = 3_600.0
FREE = Free(polls=90)


def pulled(told):
    """Pull now; return the numbers of the batches that are due."""
    told.services.events.item.change({"pull_at": 0.0})
    return [one.number for one in pull_events(told.services, FREE).told]


@pytest.mark.parametrize("kind", ["succeeded", "failed"])
def test_event_makes_batch_due(told, kind):
    told.cloudflare.send(kind, "id")

    pulls = pull_events(told.services, FREE)

    seen = told.batch_before
    assert pulls.told == [DueEntry(seen.job_id, seen.number, T)]
    assert told.batch == replace(seen, due_at=T, told_at=T)
    assert told.cloudflare.calls == [PULL, ACK]
    assert told.cloudflare.leased == {}


def test_id_without_prefix_is_the_same(told):
    told.cloudflare.send("succeeded", "id")
    told.cloudflare.messages[0]["body"] = told.cloudflare.messages[0]["body"].replace("req-", "")
    assert pulled(told) == [told.batch.number]


# ── the orders in which event and batch may come ──────────────────────────────────────────────────


def accept(told):
    """As the function that submits does after the reply.

    The batch is queued, then its id is noted.
    """
    seen = told.batch
    accepted = told.services.ledger.accept(seen, Submission("id", 1, T), T + 60)
    expect_events(told.services, JOB, seen.number, accepted.submissions[-1])


@pytest.fixture
def accepting(told, monkeypatch):
    """A batch whose POST has no reply yet."""
    told.services.events.ids.call("delete_item", Key={"pk": {"S": "ID#id"}, "sk": {"S": "ID"}})
    told.begin(state=BatchState.SUBMITTING, submissions=())
    told.services.times = type("Times", (), {"percentile": lambda *_: 0.0})()
    told.services.left = type("Left", (), {"look": lambda *_: None})()
    return told


def test_event_before_reply_makes_batch_due_at_reply(accepting):
    accepting.cloudflare.send("queued", "id")
    accepting.cloudflare.send("succeeded", "id")
    assert pulled(accepting) == []
    assert accepting.batch == accepting.batch_before

    accept(accepting)

    assert (accepting.batch.due_at, accepting.batch.told_at) == (T, T)


def test_event_between_reply_and_its_id_makes_batch_due(accepting, monkeypatch):
    """Whoever writes second sees the first: here the event is read while the id is being noted."""
    ids = type(accepting.services.events.ids)
    look_up = ids.look_up

    def late(self, wanted):
        found = look_up(self, wanted)
        accept(accepting)
        return found

    monkeypatch.setattr(ids, "look_up", late)
    accepting.cloudflare.send("succeeded", "id")

    assert pulled(accepting) == [accepting.batch.number]
    assert (accepting.batch.due_at, accepting.batch.told_at) == (T, T)


def test_queued_event_changes_no_batch(told):
    told.cloudflare.send("queued", "id")
    assert pulled(told) == []
    assert told.batch == told.batch_before
    assert told.cloudflare.leased == {}


@pytest.mark.parametrize(
    "final", [BatchState.DONE, BatchState.READY, BatchState.SUBMITTING, BatchState.DIVIDED]
)
def test_event_changes_no_batch_that_is_not_queued(told, final):
    """It comes after the batch is done, an hour late.

    Or for a batch that is being submitted again.
    """
    told.begin(state=final)
    told.clock += HOUR
    told.cloudflare.send("succeeded", "id")
    assert pulled(told) == []
    assert told.batch == told.batch_before


def test_event_for_what_api_then_loses_is_one_poll(told):
    """The batch is due now, as it would have been later: the poll finds what the API says."""
    told.cloudflare.send("succeeded", "id")
    assert pulled(told) == [told.batch.number]
    assert told.batch.state is BatchState.QUEUED


def test_second_event_does_nothing(told):
    for kind in ("succeeded", "succeeded", "failed"):
        told.cloudflare.send(kind, "id")
        pulled(told)
    told.services.ledger.schedule_poll(told.batch, T + 70)
    told.cloudflare.send("failed", "id")

    assert pulled(told) == []
    assert (told.batch.due_at, told.batch.told_at) == (T + 70, T)


def test_event_of_earlier_round_does_nothing(told):
    told.begin(
        round=1, submissions=(Submission("old", 1, T - 200), Submission("id", 2, T - 100, 1))
    )
    told.services.events.ids.assign("old", told.batch.job_id, told.batch.number, 0, T)
    told.cloudflare.send("succeeded", "old")
    assert pulled(told) == []
    assert told.batch.told_at == 0.0


def test_batch_that_is_being_polled_is_only_told(told):
    claimed = told.services.ledger.claim_poll(told.batch, T + 100)
    told.cloudflare.send("succeeded", "id")

    assert pulled(told) == []
    assert told.batch == replace(claimed, told_at=T)


def test_event_changes_no_final_item(told):
    done = told.services.ledger.finish_batch(told.batch, PART, T)
    told.cloudflare.send("failed", "id")
    assert pulled(told) == []
    assert told.batch == done


# ── what is acknowledged ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body", ["words", json.dumps({"type": "cf.r2.bucket.created"}), "x" * 128_000, 5, None]
)
def test_what_is_no_event_is_acknowledged(told, body):
    told.cloudflare.messages.append({"body": body})
    assert pulled(told) == []
    assert told.cloudflare.calls == [PULL, ACK]
    assert told.cloudflare.leased == {}


def test_event_of_other_account_writes_nothing(told):
    told.cloudflare.send("succeeded", "id", accountId="f" * 32)
    assert pulled(told) == []
    assert told.batch == told.batch_before
    assert told.cloudflare.leased == {}


def test_death_before_acknowledgement_changes_nothing_more(told):
    told.cloudflare.send("succeeded", "id")
    told.cloudflare.refuses = lambda method, path: 1 / 0 if path.endswith("/ack") else None
    with pytest.raises(ZeroDivisionError):
        pulled(told)
    told.services.ledger.schedule_poll(told.batch, T + 70)

    told.cloudflare.refuses = lambda method, path: None
    told.cloudflare.deliver_again()
    assert pulled(told) == []
    assert told.batch.due_at == T + 70
    assert told.cloudflare.leased == {}


def test_death_before_write_is_repeated(told, monkeypatch):
    told.cloudflare.send("succeeded", "id")
    monkeypatch.setattr(told.services.ledger, "tell_over", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pulled(told)
    monkeypatch.undo()
    told.cloudflare.deliver_again()
    assert pulled(told) == [told.batch.number]


@pytest.mark.parametrize("failing", ["tell_over", "look_up"])
def test_failed_write_is_not_acknowledged(told, monkeypatch, failing):
    def fail(*_):
        raise StorageError("DynamoDB: 500")

    told.cloudflare.send("succeeded", "id")
    of = told.services.ledger if failing == "tell_over" else type(told.services.events.ids)
    monkeypatch.setattr(of, failing, fail)
    assert pulled(told) == []
    assert len(told.cloudflare.leased) == 1


def test_id_that_was_not_read_is_delivered_again(told, monkeypatch):
    ids = type(told.services.events.ids)
    told.cloudflare.send("succeeded", "id")
    monkeypatch.setattr(ids, "look_up", lambda self, wanted: dict.fromkeys(wanted))
    assert pulled(told) == []
    assert len(told.cloudflare.leased) == 1


def test_backlog_is_read_in_full_pulls(told):
    """A full pull is followed by another, up to ten in a row."""
    for index in range(1_150):
        told.cloudflare.send("queued", f"foreign{index}", accountId="f" * 32)
    pulled(told)
    assert told.cloudflare.calls == [PULL, ACK] * MAX_PULLS_IN_A_ROW
    told.cloudflare.calls.clear()
    pulled(told)
    assert told.cloudflare.calls == [PULL, ACK] * 2
    assert (told.cloudflare.messages, told.cloudflare.leased) == ([], {})


@pytest.mark.parametrize("lease", [None, 7])
def test_message_without_a_lease_spoils_no_acknowledgement(told, lease):
    """The API refuses the whole call for one of them, and would deliver the others for ever."""
    told.cloudflare.send("queued", "a")
    told.cloudflare.messages.append({**told.cloudflare.messages[-1], "lease_id": lease})
    pulled(told)
    assert told.cloudflare.calls == [PULL, ACK]
    assert list(told.cloudflare.leased) == [lease]


def test_queue_is_not_read_to_its_end_while_a_message_is_left(told, monkeypatch):
    """A search would take the event that was not noted for one that never came."""
    ids = type(told.services.events.ids)
    told.cloudflare.send("queued", "a")
    told.cloudflare.send("queued", "b")
    before, note = told.state.pulled_at, ids.note

    def fails_for_one(self, event, now, *, listed):
        if event.request_id == "b":
            raise StorageError("DynamoDB: throttled")
        return note(self, event, now, listed=listed)

    monkeypatch.setattr(ids, "note", fails_for_one)
    pulled(told)
    assert (told.state.pulled_at, len(told.cloudflare.leased)) == (before, 1)

    monkeypatch.undo()
    told.clock += 60
    pulled(told)
    assert told.state.pulled_at == told.clock


def test_foreign_ids_cost_few_writes(told, monkeypatch):
    """Their number is bounded for one pull and for an hour.

    The others are acknowledged all the same.
    """
    noted = []
    ids = type(told.services.events.ids)
    monkeypatch.setattr(ids, "note", lambda _, event, now, listed: noted.append(event) or KnownId())
    monkeypatch.setattr(pull_events_module, "MAX_NEW_ORPHANS", 5)
    monkeypatch.setattr(pull_events_module, "MAX_ORPHANS_AN_HOUR", 8)

    def told_of(number):
        for index in range(number):
            told.cloudflare.send("queued", f"foreign{index}")
        pulled(told)
        assert told.cloudflare.leased == {}
        return len(noted)

    assert [told_of(9), told_of(9)] == [5, 8]
    told.clock += HOUR
    assert told_of(3) == 11


def test_foreign_ids_hide_no_submit_that_is_looked_for(told, monkeypatch):
    """While one is, the number of an hour is not bounded."""
    monkeypatch.setattr(pull_events_module, "MAX_ORPHANS_AN_HOUR", 1)
    item, ids = told.services.events.item, told.services.events.ids
    told.cloudflare.send("queued", "foreign")
    pulled(told)
    item.look_until(T + 900)
    item.look_until(T + 800)
    told.clock = T + 899
    told.cloudflare.send("queued", "lost")
    pulled(told)
    told.clock = T + 900
    told.cloudflare.send("queued", "later")
    pulled(told)
    assert [one.queued_at > 0 for one in ids.look_up(["foreign", "lost", "later"]).values()] == [
        True,
        True,
        False,
    ]


# ── when ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("age", "wait"), [(0, 2.0), (32, 2.0), (64, 4.0), (300, 15.0), (900, 30.0)]
)
def test_older_the_youngest_the_rarer_the_pulls(told, age, wait):
    """The next four are made by messages.

    So that nobody waits for them and their chain is short.
    """
    told.services.events.item.change({"youngest_at": T - age, "pull_at": T})
    assert pull_events(told.services, FREE).next_at == math.inf
    assert told.state.pull_at == T + wait
    later = pull_interval(age + wait)
    assert told.sent == [wait, wait + later, wait + 2 * later, wait + 3 * later]
    assert pull_events(told.services, FREE).next_at == math.inf
    assert told.cloudflare.calls == [PULL, ACK][:1]


def by_message(told, clock):
    told.clock = clock
    before = len(told.cloudflare.calls)
    pull_by_message(SimpleNamespace(services=told.services))
    return told.cloudflare.calls[before:]


@pytest.fixture
def sent(told):
    """Four pulls were sent messages for, two seconds apart; what is left to look at."""
    told.services.left = LeftDue()
    told.services.budget.free = lambda now: FREE
    told.services.events.item.change({"youngest_at": T, "pull_at": T})
    pull_events(told.services, FREE)
    told.cloudflare.calls.clear()
    told.sent.clear()
    return told


def test_last_message_for_pull_sends_the_next_four(sent):
    sent.services.queues.hops = 3
    for place in range(1, 4):
        assert by_message(sent, T + 2 * place + 0.4) == [PULL], (
            "a message may come later or sooner than the pull before"
        )
        assert sent.sent == []
    assert by_message(sent, T + 8.1) == [PULL]
    assert sent.sent == pytest.approx([2.0, 4.0, 6.0, 8.0])
    assert sent.services.left.earliest() == math.inf


def test_message_after_another_pull_makes_none(sent):
    assert by_message(sent, T + 2.0) == [PULL]
    assert by_message(sent, T + 2.9) == []


def test_long_chain_of_pulls_is_left_to_ticks(sent):
    sent.services.queues.hops = 7
    assert by_message(sent, T + 8.0) == [PULL]
    assert sent.sent == []
    assert sent.services.left.earliest() == T + 10


def test_tick_begins_another_chain(sent, monkeypatch):
    begin_chain(sent.services)
    assert pull_events(sent.services, FREE).next_at == T + 2, "this one is its own"
    sent.clock += 2
    pull_events(sent.services, FREE)
    assert sent.sent == pytest.approx([2.0, 4.0, 6.0, 8.0])

    monkeypatch.setattr(
        type(sent.services.events.item),
        "change",
        lambda *_: (_ for _ in ()).throw(StorageError("500")),
    )
    begin_chain(sent.services)
    sent.services.events = None
    begin_chain(sent.services)


def test_young_batch_ends_plans_for_older_ones(sent):
    sent.services.events.item.change({"pulls_until": T + 500, "pull_at": T + 100})
    sent.services.events.item.expect_pull(T + 12, T + 10)
    assert (sent.state.pulls_until, sent.state.pull_at) == (0.0, T + 12)


def test_message_polls_what_it_is_told_of(sent, monkeypatch):
    polled = []
    monkeypatch.setattr(
        pull_events_module, "poll_due_batches", lambda _, dues, *more: polled.extend(dues)
    )
    sent.cloudflare.send("succeeded", "id")
    assert by_message(sent, T + 2.0) == [PULL, ACK]
    assert [one.number for one in polled] == [sent.batch.number]


def test_message_without_outstanding_batches_pulls_nothing(sent, monkeypatch):
    monkeypatch.setattr(type(sent.services.ledger), "due", lambda *_: ([], None))
    assert by_message(sent, T + 2.0) == []


def test_messages_that_are_not_taken_stop_no_pull(told):
    def fail(*_):
        raise StorageError("SQS: 500")

    told.services.queues.send_all = fail
    told.cloudflare.send("succeeded", "id")
    assert pulled(told) == [told.batch.number]


def test_pull_waits_for_calls_that_others_need(told):
    """It is looked at again when there may be some."""
    told.services.events.item.change({"pulled_at": T - 4, "pull_at": T})
    told.budget.pull_wait = lambda free, since: {
        (FREE, 4.0): 7.0,
        (FREE, 11.0): 0.5,
        (FREE, 13.0): 0.0,
    }[free, since]
    assert pull_events(told.services, FREE).next_at == T + 7
    told.clock += 7
    assert pull_events(told.services, FREE).next_at == T + 9
    assert told.cloudflare.calls == []
    told.clock += 2
    assert pull_events(told.services, FREE).next_at == math.inf
    assert told.cloudflare.calls == [PULL]


def test_event_that_comes_is_noted_for_its_model(told):
    told.cloudflare.send("queued", "id")
    pulled(told)
    assert told.services.events.coming._read(M3).seen_at == T


def test_pull_that_another_function_claimed_is_not_made(told, monkeypatch):
    item = type(told.services.events.item)
    state = told.state
    told.services.events.item.change({"pull_at": T + 3})
    monkeypatch.setattr(item, "state", lambda _: state)
    assert pull_events(told.services, FREE).told == []
    assert told.cloudflare.calls == []


def test_accepted_batch_brings_pull_forward(told):
    item = told.services.events.item
    item.change({"pull_at": T + 30, "youngest_at": T - 900})
    item.expect_pull(T + 2, T)
    assert (told.state.pull_at, told.state.youngest_at) == (T + 2, T)
    item.expect_pull(T + 9, T + 1)
    assert (told.state.pull_at, told.state.youngest_at) == (T + 2, T + 1), "the sooner pull stays"
    item.expect_pull(T + 200, T + 190)
    assert told.state.pull_at == T + 200, "a pull that nobody made counts no longer"


def test_without_token_nothing_is_pulled(told):
    told.budget.permit_check = lambda now, calls=1: False
    assert pulled(told) == []
    assert told.cloudflare.calls == []


# ── refused ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "answer",
    [httpx.Response(status, json=refusal(10000)) for status in (401, 403, 429, 500)]
    + [httpx.Response(502)],
)
def test_refused_pulls_are_put_aside_for_longer(told, answer):
    told.cloudflare.refuses = lambda method, path: answer
    for seconds in (60, 300, 900, 3_600, 3_600):
        assert pulled(told) == []
        assert told.state.aside_until == told.clock + seconds
        calls = len(told.cloudflare.calls)
        told.clock += seconds - 1
        pulled(told)
        assert len(told.cloudflare.calls) == calls
        told.clock += 1
    told.cloudflare.refuses = lambda method, path: None
    pulled(told)
    assert told.state.aside_step == 0


def test_pull_with_many_more_messages_than_asked_for_is_put_aside(told):
    many = {"messages": [{"lease_id": str(place)} for place in range(201)]}
    told.cloudflare.refuses = lambda method, path: httpx.Response(
        200, json={"success": True, "result": many}
    )
    assert pulled(told) == []
    assert told.cloudflare.calls == [PULL]
    assert told.state.aside_until == told.clock + 60
    assert "more messages" in told.state.refusal


@pytest.mark.parametrize(("calls", "made"), [(1, 1), (2, 2)])
def test_pull_by_another_token_takes_a_call(told, calls, made):
    told.cloudflare.refuses = lambda method, path: httpx.Response(403, json=refusal(10000))
    left, passed = iter(range(calls)), iter([True, False])
    told.budget.permit_check = lambda now, calls=1: next(left, None) is not None
    events = told.services.events
    told.services.events = replace(events, api=replace(events.api, pass_on=lambda _: next(passed)))
    assert pulled(told) == []
    assert len(told.cloudflare.calls) == made


def test_queue_that_is_gone_is_made_anew_once_an_hour(told):
    told.cloudflare.queues.clear()
    told.clock += 10
    pulled(told)
    assert (told.state.queue_id, told.state.aside_until) == ("q1", told.clock + 60)
    told.clock += HOUR
    pulled(told)
    assert told.state.queue_id == ""


def test_switched_off_nothing_is_pulled(told):
    told.services.events.item.change({"is_off": True})
    assert pulled(told) == []
    told.services.events = None
    assert pull_events(told.services, FREE).told == []
    assert told.cloudflare.calls == []


def test_batch_keeps_its_kind_of_work(told):
    told.cloudflare.send("succeeded", "id")
    pulled(told)
    assert told.batch.work is DueKind.POLL

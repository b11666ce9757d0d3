"""What answers teach about the events of their model.

And what that means for the polls of others.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from shared.pacing.poll_schedule import BUCKET

from functions.poll.schedule.pull_events import pull_events
from shared.errors import StorageError
from shared.events.answers import note_answer, note_told_meanwhile, pending_until, waits_for_event
from shared.events.coming import Answer
from shared.models import BatchState, Submission
from shared.pacing.budget import Free
from tests.integration.poll.events.conftest import M3
from tests.support.doubles.api_client import ACCOUNT
from tests.support.doubles.ledger_items import JOB, PART, T

MINE = replace(JOB, plan=replace(JOB.plan, account=ACCOUNT, model=M3))
TIMES = {0.5: 40.0, 0.99: 300.0}
FREE = Free(polls=90)


@pytest.fixture
def taught(told, table):
    """A stack that was subscribed long ago, and knows nothing of its model's events.

    Times of it are known.
    """
    told.services.times = SimpleNamespace(
        percentile=lambda model, share, now: TIMES[share], next_poll=lambda model, age, now: 20.0
    )
    told.clock += 1_000
    told.begin(submissions=(Submission("id", 1, T + 900),), due_at=T + 2_000)
    table.delete_item(
        TableName="table", Key={"pk": {"S": "CONTROL"}, "sk": {"S": f"EVENTS#{ACCOUNT}#{M3}"}}
    )
    return told


def record(told):
    return told.services.events.coming._read(M3)


def answered(told):
    """The batch's answer is found by a poll; return what is remembered."""
    batch = told.batch
    note_answer(told.services, MINE, batch, told.clock)
    told.services.ledger.finish_batch(batch, PART, told.clock)
    note_told_meanwhile(told.services, MINE, batch, told.clock)
    return record(told).answers


def pulled(told):
    told.services.events.item.change({"pull_at": 0.0})
    pull_events(told.services, FREE)
    told.services.events.item.cached = (0.0, told.state)


def test_answer_after_event_counts_for_it(taught):
    taught.cloudflare.send("succeeded", "id")
    pulled(taught)
    assert answered(taught) == (Answer(taught.clock, told=True),)


def test_answer_without_event_counts_against_it(taught):
    assert answered(taught) == (Answer(taught.clock, told=False),)


@pytest.mark.parametrize(("sent_after", "counts"), [(10, True), (11, False)])
def test_event_soon_after_answer_counts_for_it(taught, sent_after, counts):
    """The time at which the message was sent decides, not when the queue is pulled."""
    answered(taught)
    found_at = taught.clock
    taught.cloudflare.send("succeeded", "id", model=M3)
    taught.cloudflare.messages[0]["timestamp_ms"] = 1_000 * (found_at + sent_after)
    taught.clock += 1_200
    pulled(taught)
    assert record(taught).answers == (Answer(found_at, told=counts),)


def test_event_during_poll_counts_for_it(taught):
    batch = taught.batch
    claimed = taught.services.ledger.claim_poll(batch, taught.clock + 100)
    note_answer(taught.services, MINE, claimed, taught.clock)
    taught.services.ledger.tell_over(batch.job_id, batch.number, 0, taught.clock)
    taught.services.ledger.finish_batch(claimed, PART, taught.clock)
    note_told_meanwhile(taught.services, MINE, claimed, taught.clock)
    assert record(taught).answers == (Answer(taught.clock, told=True),)


@pytest.mark.parametrize(
    "changes",
    [
        {"submissions": (Submission("id", 1, T + 59),)},
        {"submissions": (Submission("", 1, T + 900),)},
        {"submissions": (Submission("id", 1, T + 900), Submission("new", 2, T + 950))},
    ],
    ids=["accepted in the first minute", "answered at once", "submitted again"],
)
def test_some_answers_say_nothing(taught, changes):
    taught.begin(**changes)
    assert answered(taught) == ()


def test_answers_of_other_account_say_nothing(taught):
    note_answer(taught.services, replace(MINE, plan=JOB.plan), taught.batch, T)
    assert record(taught).answers == ()


def come(told, model=M3):
    """Three answers that had events."""
    for index, name in enumerate("abc"):
        told.services.events.coming.note(model, name, told.clock - index, told=True)
    told.services.events.item.change({"pulled_at": told.clock})


# ── a poll that is due ────────────────────────────────────────────────────────────────────────────


def waits(taught, age, **changes):
    """Seconds for which the batch's poll waits that is due at this age."""
    taught.services.events.coming.known.clear()
    taught.clock = T + 900 + age
    taught.services.events.item.cached = (0.0, taught.state)
    return waits_for_event(taught.services, MINE, replace(taught.batch, **changes), taught.clock)


@pytest.mark.parametrize(
    ("age", "wait"), [(10.0, 80.0), (45.0, 75.0), (119.0, 1.0), (120.0, 0.0), (300.0, 0.0)]
)
def test_poll_waits_for_event_that_comes(taught, age, wait):
    """As long as it would without events and a minute more, until three times the median."""
    come(taught)
    taught.services.events.coming.note_seen(M3, T + 900)
    assert waits(taught, age) == wait


def test_poll_waits_until_most_are_over(taught, monkeypatch):
    monkeypatch.setitem(TIMES, 0.5, 20.0)
    monkeypatch.setitem(TIMES, 0.99, 30.0)
    come(taught)
    taught.services.events.coming.note_seen(M3, T + 900)
    assert waits(taught, 10.0) == pytest.approx(30.0 * BUCKET - 10)


def test_model_that_is_quicker_than_its_events_is_polled(taught, monkeypatch):
    monkeypatch.setitem(TIMES, 0.5, 0.4)
    come(taught)
    taught.services.events.coming.note_seen(M3, T + 900)
    assert waits(taught, 1.0) == 0.0


def test_first_event_is_waited_for_where_events_come(taught):
    assert waits(taught, 1.0) == 0.0
    come(taught)
    taught.services.events.coming.known.clear()
    assert waits(taught, 1.0) == 4.0


WRONG = [
    "off",
    "aside",
    "refused last",
    "no subscription",
    "other account",
    "no events",
    "table",
    "few answers",
]


@pytest.mark.parametrize("why", [*WRONG, "not seen since", "told", "again"])
def test_poll_waits_for_no_event_that_may_not_come(taught, why, monkeypatch):
    job, item, changes = MINE, taught.services.events.item, {}
    if why != "few answers":
        come(taught)
    taught.services.events.coming.note_seen(M3, T + (899 if why == "not seen since" else 900))
    assert waits(taught, 10.0) == (0.0 if why in {"few answers", "not seen since"} else 80.0)
    if why in {"off", "aside", "refused last"}:
        item.change(
            {"off": {"is_off": True}, "aside": {"aside_until": T + 2_000}}.get(
                why, {"aside_step": 1}
            )
        )
    elif why == "told":
        changes = {"told_at": T}
    elif why == "again":
        changes = {"submissions": taught.batch.submissions * 2}
    elif why == "no subscription":
        job = replace(MINE, plan=replace(MINE.plan, model="@cf/other/model"))
        come(taught, "@cf/other/model")
    elif why == "other account":
        job = replace(MINE, plan=replace(MINE.plan, account="f" * 32))
    elif why == "no events":
        taught.services.events = None
    elif why == "table":
        item.cached = (0.0, taught.state)
        monkeypatch.setattr(type(item), "state", failing)
    assert (
        waits_for_event(taught.services, job, replace(taught.batch, **changes), taught.clock) == 0.0
    )


def failing(*_):
    raise StorageError("DynamoDB: 500")


def test_overdue_event_puts_all_polls_back(taught):
    """For an hour; what the next answers had decides then."""
    come(taught)
    taught.services.events.coming.note_seen(M3, T + 900_000)
    assert waits(taught, 10.0) > 0
    answered(taught)
    taught.services.events.item.change({"pulled_at": taught.clock + 20})
    taught.begin(submissions=(Submission("id2", 1, T + 900),), due_at=T + 2_000)
    assert waits(taught, 30.0) == 0.0
    assert record(taught).aside_seconds == 3_600.0

    come(taught)
    taught.begin(submissions=(Submission("id3", 1, T + 900 + 3_700),), due_at=T + 20_000)
    taught.services.events.coming.known.clear()
    assert waits(taught, 3_710.0, submissions=taught.batch.submissions) > 0


def test_poll_waits_for_pull_that_may_save_it(taught):
    """The queue was not pulled since the batch was accepted, because no batch could be over."""
    come(taught)
    taught.services.events.item.change(
        {"pulled_at": T + 890, "pull_at": T + 1_500, "quiet_until": T + 1_500}
    )
    assert waits(taught, 10.0) == 2.0
    assert taught.state.pull_at == T + 910
    assert waits(taught, 12.0) == 0.0, "once"

    taught.cloudflare.send("queued", "id")
    taught.services.events.ids.assign("id", taught.batch.job_id, taught.batch.number, 0, T + 900.5)
    pull_events(taught.services, FREE)
    assert taught.state.pull_at == T + 1_500, "the next one comes when a batch may be over"
    assert waits(taught, 13.0) == 80.0


def test_table_that_fails_stops_no_poll(taught, monkeypatch):
    come(taught)
    taught.services.events.item.change({"pulled_at": T + 890, "pull_at": T + 1_500})
    monkeypatch.setattr(type(taught.services.events.item), "pull_now", failing)
    assert waits(taught, 10.0) == 0.0


def test_batch_that_was_told_of_was_pending_before(taught):
    """Otherwise its time would be known as little as that of a batch that nobody looked at."""
    assert pending_until(160.0) == 140.0
    assert pending_until(5.0) < 0


def test_late_event_of_final_batch_changes_no_item(taught):
    answered(taught)
    before = taught.batch
    taught.cloudflare.send("succeeded", "id")
    pulled(taught)
    assert (taught.batch, taught.batch.state) == (before, BatchState.DONE)

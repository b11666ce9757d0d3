"""How the operator's command for events is carried out.

Removed before it is noted, and tried again if that failed.
"""

from types import SimpleNamespace

import pytest

import functions.poll.schedule.events_control as module
from functions.poll.schedule.events_control import follow_events_control, watch_events_control
from shared.errors import StorageError
from shared.events.control_item import EventsState
from shared.workers_ai.queues_api import QueuesRefusedError
from tests.support.doubles.ledger_items import T
from tests.unit.poll.schedule.test_control_commands import Commands

FRESH = {
    "queue_id": "",
    "refusal": "",
    "refused_until": 0.0,
    "aside_until": 0.0,
    "aside_step": 0,
    "is_off": False,
}
NOTED = {"version": "version etag1"}


class Item:
    """The control item; notes what is written, in order."""

    def __init__(self, **held):
        self.held, self.writes = EventsState(**held), []

    def state(self):
        return self.held

    def change(self, changes):
        self.writes.append(changes)
        if "version" in changes:
            self.held = EventsState(version=changes["version"])


@pytest.fixture
def follow(monkeypatch):
    """Carry out a command; return what is written. `refused`: why the queue cannot be removed."""

    def run(body, refused=None):
        item = Item()

        def remove(*_):
            item.writes.append("removed")
            if refused:
                raise refused

        monkeypatch.setattr(module, "remove", remove)
        events = SimpleNamespace(item=item, looked={"m": T})
        services = SimpleNamespace(
            store=Commands(body), events=events, api=None, now=lambda: T, settings=None
        )
        monkeypatch.setattr(module, "events_of", lambda services: events)
        try:
            follow_events_control(services)
        except StorageError as error:
            item.writes.append(str(error))
        assert events.looked == ({} if "version" in item.writes[-1] else {"m": T})
        return item.writes

    return run


def test_on_forgets_refusals(follow):
    assert follow(b"On\n") == [FRESH | NOTED]


def test_off_removes_before_it_is_noted(follow):
    assert follow(b"off") == [{"is_off": True}, "removed", {"queue_id": "", "refusal": ""} | NOTED]


def test_failed_removal_is_tried_again(follow):
    """It is not noted, and no message fails."""
    writes = follow(b"off", QueuesRefusedError(500, "words"))
    assert writes[:2] == [{"is_off": True}, "removed"]
    assert writes[2:] == [{"refusal": "500: words", "refused_at": T}]


def test_refused_removal_is_noted(follow):
    writes = follow(b"off", QueuesRefusedError(403, "words", lasting=True))
    assert writes[2:] == [{"refusal": "403: words", "refused_at": T} | NOTED]


def test_unknown_word_is_only_noted(follow):
    assert follow(b"maybe") == [NOTED]


def test_transport_without_queues_has_no_command():
    services = SimpleNamespace(
        events=None, api=SimpleNamespace(transport=SimpleNamespace(account_url="")), settings=None
    )
    follow_events_control(services)


def test_tick_reads_no_command_while_events_are_not_used(monkeypatch):
    monkeypatch.setattr(module, "follow_events_control", lambda services: 1 / 0)
    watch_events_control(SimpleNamespace(events=None), is_idle=False)


@pytest.mark.parametrize(
    ("now", "is_idle", "read"), [(959.0, True, True), (961.0, True, False), (961.0, False, True)]
)
def test_idle_stack_reads_command_every_fifteen_minutes(monkeypatch, now, is_idle, read):
    seen = []
    monkeypatch.setattr(module, "follow_events_control", seen.append)
    watch_events_control(SimpleNamespace(events=object(), now=lambda: now), is_idle=is_idle)
    assert bool(seen) is read


def test_failure_delays_no_tick(monkeypatch):
    def fail(_):
        raise StorageError("S3: 503")

    monkeypatch.setattr(module, "follow_events_control", fail)
    watch_events_control(SimpleNamespace(events=object()), is_idle=False)

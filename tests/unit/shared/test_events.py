"""What a message of the queue says: an event of a batch in any of its forms, or nothing."""

import base64
import json
import tracemalloc

import msgspec
import pytest

from shared.events.messages import MAX_EVENT_BYTES, Event, Message, event_in, messages_in
from shared.workers_ai.results import TooManyItemsError

ID = "768f15b7-0000-4000-8000-ad94ffc7f8d2"
EVENT = {
    "type": "cf.workersAi.model.batch.succeeded",
    "source": {"type": "workersAi.model", "modelName": "@cf/baai/bge-m3"},
    "payload": {"requestId": f"req-{ID}"},
    "metadata": {
        "accountId": "a" * 32,
        "eventTimestamp": "2026-11-21T09:30:00.5Z",
        "eventSchemaVersion": 1,
    },
}
TOLD = Event(ID, 1)


def told(body, attempts=1):
    return event_in(
        Message(*(msgspec.Raw(json.dumps(one).encode()) for one in ("lease", body, attempts)))
    )


def changed(**members):
    return {**EVENT, **members}


@pytest.mark.parametrize(
    "body",
    [
        EVENT,
        json.dumps(EVENT),
        f"\n {json.dumps(EVENT)}",
        base64.b64encode(json.dumps(EVENT).encode()).decode(),
        changed(type="batch.succeeded"),
        changed(payload={"requestId": ID}),
        changed(payload={"request_id": ID}),
        changed(type="cf.workersAi.model.batch.failed"),
    ],
    ids=["JSON", "text", "spaces", "base64", "short type", "bare id", "member of the id", "failed"],
)
def test_event_is_read_in_every_form(body):
    assert told(body) == TOLD


@pytest.mark.parametrize(
    "body",
    [
        None,
        5,
        [],
        "",
        "words",
        "{",
        base64.b64encode(b"\xff\xfe").decode(),
        "[" * 5_000,
        {},
        changed(type="cf.workersAi.model.batch.queued"),
        changed(type="cf.r2.object.succeeded"),
        changed(type=None),
        changed(payload={}),
        changed(payload={"requestId": 5}),
        changed(payload={"requestId": ""}),
        changed(payload={"requestId": "x" * 1_001}),
        changed(payload="words"),
    ],
)
def test_anything_else_is_no_event(body):
    assert told(body) is None


def test_large_body_is_not_read():
    padding = MAX_EVENT_BYTES - len(json.dumps(changed(more="")))
    assert told(changed(more="x" * padding)) == TOLD
    assert told(changed(more="x" * (padding + 1))) is None


def test_pull_returns_messages_with_bodies_as_bytes():
    sent = [{"lease_id": str(place), "body": {"a": place}, "more": []} for place in range(3)]
    found = messages_in(
        msgspec.Raw(json.dumps({"messages": sent}, separators=(",", ":")).encode()), 3
    )
    assert [(bytes(one.lease_id), bytes(one.body)) for one in found] == [
        (b'"%d"' % at, b'{"a":%d}' % at) for at in range(3)
    ]


@pytest.mark.parametrize("attempts", ["2", "null", '"2"', "1e999", "{}"])
def test_odd_member_spoils_neither_its_message_nor_others(attempts):
    """One that stays in the queue would hide all events of its stack."""
    content = b'{"messages":[{"lease_id":"a","attempts":%b},{"lease_id":7},{}]}' % attempts.encode()
    found = messages_in(msgspec.Raw(content), 3)
    assert msgspec.json.encode([one.lease_id for one in found]) == b'["a",7,null]'
    body = msgspec.Raw(json.dumps(EVENT).encode())
    event = event_in(Message(found[0].lease_id, body, found[0].attempts))
    assert event.deliveries == (2 if attempts == "2" else 0)


@pytest.mark.parametrize("tiny", [b'{"lease_id":""}', b'{"lease\\u005fid":"","body":[]}'])
def test_messages_without_end_take_little(tiny):
    content = msgspec.Raw(b'{"messages":[%b%b]}' % ((tiny + b",") * (3_000_000 // len(tiny)), tiny))
    tracemalloc.start()
    try:
        with pytest.raises(TooManyItemsError):
            messages_in(content, 200)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()

"""What a message of the queue says: an event of a batch in any of its forms, or nothing."""

import base64
import json
import tracemalloc
from dataclasses import replace

import msgspec
import pytest

from dropbatch.core.names import is_upload
from shared.aws.object_events import ObjectCreated, parse_notification
from shared.events.messages import MAX_EVENT_BYTES, Event, Message, event_in, messages_in
from shared.workers_ai.results import TooManyItemsError
from tests.support.shipped import ROOT

ID = "768f15b7-0000-4000-8000-ad94ffc7f8d2"
TIME = "2026-11-21T09:30:00.5Z"
EVENT = {
    "type": "cf.workersAi.model.batch.succeeded",
    "source": {"type": "workersAi.model", "modelName": "@cf/baai/bge-m3"},
    "payload": {"requestId": f"req-{ID}"},
    "metadata": {"accountId": "a" * 32, "eventTimestamp": TIME, "eventSchemaVersion": 1},
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


NO_EVENTS = [
    *(None, 5, [], "", "words", "{", base64.b64encode(b"\xff\xfe").decode(), "[" * 5_000, {}),
    *(changed(type=kind) for kind in ("cf.workersAi.model.batch.queued", "cf.r2.succeeded", None)),
    *(changed(payload={"requestId": one}) for one in (5, "", "x" * 1_001)),
    *(changed(payload=one) for one in ({}, "words")),
]


@pytest.mark.parametrize("body", NO_EVENTS)
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


AS_SENT = json.loads((ROOT / "tests/files/events.json").read_text("utf-8"))
BRIDGED = AS_SENT["s3-eventbridge"]
VERSION, AT = "9Zq0WkAoCOT1Vt2aU0e0FIpS4RkXJvZb", 1795253400.123


def arrivals(notification):
    return parse_notification(json.dumps(notification))


def put(**members):
    """The event of a put, some of whose members are others."""
    (record,) = AS_SENT["s3-put"]["Records"]
    return {"Records": [{name: one for name, one in (record | members).items() if one}]}


def test_put_is_one_arrival_with_its_version_and_time():
    (arrival,) = arrivals(put())
    assert arrival == ObjectCreated("dropbatch-test", "inbox/reviews/july.jsonl", VERSION, AT)
    assert arrivals(put(eventTime=None)) == [replace(arrival, at=None)]
    (message,) = AS_SENT["sqs-upload"]["Records"]
    assert parse_notification(message["body"]) == [arrival]


def test_records_are_arrivals_in_order():
    records = put()["Records"] + AS_SENT["s3-multipart"]["Records"]
    assert [one.key for one in arrivals({"Records": records})] == [
        "inbox/reviews/july.jsonl",
        "inbox/@cf/baai/bge-small-en-v1.5/reviews/2026.jsonl.gz",
    ]


def test_event_of_source_bucket_keeps_key():
    key = "ai/reviews 100%+/july.jsonl"
    assert arrivals(BRIDGED) == [ObjectCreated("team-exports", key, VERSION, 1795253400.0)]
    unversioned = json.loads(json.dumps(BRIDGED))
    del unversioned["detail"]["object"]["version-id"]
    assert arrivals(unversioned)[0].version == ""


@pytest.mark.parametrize(
    "change", [{"detail-type": "Object Deleted"}, {"source": "aws.ec2"}, {"detail": None}]
)
def test_no_other_event_counts_as_upload(change):
    with pytest.raises(msgspec.ValidationError):
        arrivals(BRIDGED | change)


def test_keys_are_decoded_once():
    (arrival,) = arrivals(AS_SENT["s3-key-with-odd-characters"])
    assert arrival.key == "inbox/Résumés & more/100% sure+1/日本 (v2) =a,b.jsonl"
    assert is_upload(arrival.key)


def test_events_other_than_creations_announce_nothing():
    assert arrivals(AS_SENT["s3-test-event"]) == []
    for name in ("ObjectRemoved:Delete", "LifecycleExpiration:Delete", "ObjectTagging:Put"):
        assert arrivals(put(eventName=name)) == [], name


NO_NOTIFICATIONS = (
    """{ null [] {} text {"Records":[]} {"Records":[{}]} {"Event":"a"} {"do":"submit"}"""
)


@pytest.mark.parametrize("body", ["", *NO_NOTIFICATIONS.split()])
def test_what_is_not_notification_is_refused(body):
    with pytest.raises(msgspec.MsgspecError):
        parse_notification(body)

"""S3's notifications, as it sends them: which objects arrived, under which keys."""

import json
from pathlib import Path

import msgspec
import pytest

from dropbatch.core.names import is_upload
from shared.aws.object_events import ObjectCreated, parse_notification

EVENTS = json.loads((Path(__file__).parents[4] / "tests/files/events.json").read_text("utf-8"))
AT = 1795253400.123


def event(name):
    return json.dumps(EVENTS[name])


def body_of(name):
    (record,) = json.loads(event(name))["Records"]
    return record["body"]


def test_put_is_one_arrival_with_its_version_and_time():
    assert parse_notification(event("s3-put")) == [
        ObjectCreated(
            "dropbatch-test", "inbox/reviews/july.jsonl", "9Zq0WkAoCOT1Vt2aU0e0FIpS4RkXJvZb", AT
        )
    ]


def test_completed_multipart_upload_is_arrival():
    (arrival,) = parse_notification(event("s3-multipart"))
    assert arrival.key == "inbox/@cf/baai/bge-small-en-v1.5/reviews/2026.jsonl.gz"


def test_event_of_source_bucket_keeps_key():
    assert parse_notification(event("s3-eventbridge")) == [
        ObjectCreated(
            "team-exports",
            "ai/reviews 100%+/july.jsonl",
            "9Zq0WkAoCOT1Vt2aU0e0FIpS4RkXJvZb",
            1795253400.0,
        )
    ]


def test_event_of_bucket_without_versions_names_none():
    told = json.loads(event("s3-eventbridge"))
    del told["detail"]["object"]["version-id"]
    assert parse_notification(json.dumps(told))[0].version == ""


@pytest.mark.parametrize(
    "change", [{"detail-type": "Object Deleted"}, {"source": "aws.ec2"}, {"detail": None}]
)
def test_no_other_event_counts_as_upload(change):
    with pytest.raises(msgspec.ValidationError):
        parse_notification(json.dumps({**json.loads(event("s3-eventbridge")), **change}))


def test_keys_are_decoded_once():
    (arrival,) = parse_notification(event("s3-key-with-odd-characters"))
    assert arrival.key == "inbox/Résumés & more/100% sure+1/日本 (v2) =a,b.jsonl"
    assert is_upload(arrival.key)


def test_test_event_announces_nothing():
    assert parse_notification(event("s3-test-event")) == []


def test_message_of_upload_queue_holds_event():
    assert parse_notification(body_of("sqs-upload")) == parse_notification(event("s3-put"))


def test_records_are_arrivals_in_order():
    notification = json.loads(event("s3-put"))
    other = json.loads(event("s3-multipart"))
    notification["Records"] += other["Records"]
    assert [one.key for one in parse_notification(json.dumps(notification))] == [
        "inbox/reviews/july.jsonl",
        "inbox/@cf/baai/bge-small-en-v1.5/reviews/2026.jsonl.gz",
    ]


@pytest.mark.parametrize(
    "name", ["ObjectRemoved:Delete", "LifecycleExpiration:Delete", "ObjectTagging:Put"]
)
def test_events_other_than_creations_announce_nothing(name):
    notification = json.loads(event("s3-put"))
    notification["Records"][0]["eventName"] = name
    assert parse_notification(json.dumps(notification)) == []


def test_event_without_time_is_taken():
    notification = json.loads(event("s3-put"))
    del notification["Records"][0]["eventTime"]
    (arrival,) = parse_notification(json.dumps(notification))
    assert arrival.at is None


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "null",
        "[]",
        "{}",
        '{"Records":[]}',
        '{"Records":[{}]}',
        '{"Event":"other"}',
        '{"do":"submit"}',
        "text",
    ],
)
def test_what_is_not_notification_is_refused(body):
    with pytest.raises(msgspec.MsgspecError):
        parse_notification(body)

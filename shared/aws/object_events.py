"""Events of created objects: S3's own, and EventBridge's of a source bucket."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote_plus

import msgspec


class _Bucket(msgspec.Struct):
    name: str


class _Object(msgspec.Struct):
    key: str
    versionId: str = ""  # noqa: N815 - S3's own name


class _S3(msgspec.Struct):
    bucket: _Bucket
    object: _Object


class _Record(msgspec.Struct):
    eventName: str  # noqa: N815 - S3's own name
    s3: _S3
    eventTime: datetime | None = None  # noqa: N815 - S3's own name


class _EventBridgeObject(msgspec.Struct):
    key: str
    version: str = msgspec.field(default="", name="version-id")


class _Detail(msgspec.Struct):
    bucket: _Bucket
    object: _EventBridgeObject


class _Message(msgspec.Struct):
    """A message of the upload or the visit queue: the members of either kind of event."""

    Records: list[_Record] = []
    Event: str = ""
    source: str = ""
    detail_type: str = msgspec.field(default="", name="detail-type")
    detail: _Detail | None = None
    time: datetime | None = None


_decode = msgspec.json.Decoder(_Message).decode


@dataclass(frozen=True, slots=True)
class ObjectCreated:
    """One created object; its version is empty, and its time None, if the event has none."""

    bucket: str
    key: str
    version: str
    at: float | None


def parse_notification(body: str) -> list[ObjectCreated]:
    """The objects that a message reports as created; none for S3's test event.

    Keys are URL-encoded in S3's notifications, and not encoded in EventBridge's events.
    """
    message = _decode(body)
    if message.source == "aws.s3" and message.detail_type == "Object Created" and message.detail:
        bucket, created = message.detail.bucket.name, message.detail.object
        return [ObjectCreated(bucket, created.key, created.version, _seconds(message.time))]
    if not message.Records and message.Event != "s3:TestEvent":
        raise msgspec.ValidationError("neither an S3 event nor S3's test event")
    return [
        ObjectCreated(
            record.s3.bucket.name,
            unquote_plus(record.s3.object.key),
            record.s3.object.versionId,
            _seconds(record.eventTime),
        )
        for record in message.Records
        if record.eventName.startswith("ObjectCreated:")
    ]


def _seconds(at: datetime | None) -> float | None:
    return at.timestamp() if at else None

"""S3's event notifications as SQS carries them. Knows their form; decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations
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


class _Notification(msgspec.Struct):
    Records: list[_Record] = []
    Event: str = ""


_decode = msgspec.json.Decoder(_Notification).decode


@dataclass(frozen=True, slots=True)
class ObjectCreated:
    """One object that arrived.

    Attributes:
        bucket: its bucket.
        key: its key, decoded.
        version: its version id; empty where the event names none.
        at: Unix seconds of the event; None where it has no time.
    """

    bucket: str
    key: str
    version: str
    at: float | None


def parse_notification(body: str) -> list[ObjectCreated]:
    """The objects that a notification tells of; none for S3's own test event.

    Raises:
        msgspec.MsgspecError: no S3 notification.
    """
    notification = _decode(body)
    if not notification.Records and notification.Event != "s3:TestEvent":
        raise msgspec.ValidationError("neither records of S3 nor its test event")
    return [
        ObjectCreated(
            record.s3.bucket.name,
            unquote_plus(record.s3.object.key),
            record.s3.object.versionId,
            record.eventTime.timestamp() if record.eventTime else None,
        )
        for record in notification.Records
        if record.eventName.startswith("ObjectCreated:")
    ]

"""Reads, writes and lists of S3 objects, straight on moto's objects: HTTP takes ten times as long.

Only what succeeds or finds no object, and has usual arguments; for everything else `answer` returns
None, and the call goes over HTTP. `tests/integration/test_quick_moto.py` compares both ways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from io import BytesIO
from typing import Any

from botocore.response import StreamingBody
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import FakeKey, s3_backends
from moto.settings import get_s3_default_max_keys

ARGUMENTS = {
    "CreateBucket": {"Bucket", "CreateBucketConfiguration"},
    "GetObject": {"Bucket", "Key", "VersionId", "IfMatch", "Range"},
    "HeadObject": {"Bucket", "Key", "VersionId"},
    "ListObjectsV2": {"Bucket", "Prefix", "Delimiter", "StartAfter"},
    "ListObjectVersions": {"Bucket", "Prefix"},
    "PutBucketNotificationConfiguration": {"Bucket", "NotificationConfiguration"},
    "PutBucketVersioning": {"Bucket", "VersioningConfiguration"},
    "PutObject": {
        "Bucket",
        "Key",
        "Body",
        "Metadata",
        "ContentType",
        "IfNoneMatch",
        "ServerSideEncryption",
    },
}
"""The operations, and the arguments that are usual."""
_PREFIX = "x-amz-meta-"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def answer(client: Any, operation: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """What S3 answers; None if the call has to go over HTTP.

    Raises:
        botocore.exceptions.ClientError: there is no such object.
    """
    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    bucket = backend.buckets.get(arguments["Bucket"])
    if (
        operation == "CreateBucket"
        and bucket is None
        and not arguments.keys() - ARGUMENTS[operation]
    ):
        backend.create_bucket(
            arguments["Bucket"], arguments["CreateBucketConfiguration"]["LocationConstraint"]
        )
        return {"Location": f"/{arguments['Bucket']}"}
    if (
        arguments.keys() - ARGUMENTS[operation]
        or bucket is None
        or bucket.policy
        or bucket.encryption
    ):
        return None
    if operation in _OF_BUCKET:
        return _OF_BUCKET[operation](bucket, arguments)
    found = backend.get_object(bucket.name, arguments["Key"], arguments.get("VersionId"))
    if operation == "PutObject":
        is_usual = not found or not (
            "IfNoneMatch" in arguments or backend.tagger.has_tags(found.arn)
        )
        return _put(backend, bucket, arguments) if is_usual else None
    if arguments["Key"] not in bucket.keys and "VersionId" not in arguments:
        code, message = _MISSING[operation]
        metadata = {"HTTPStatusCode": 404, "HTTPHeaders": {}, "RetryAttempts": 0}
        error = {"Error": {"Code": code, "Message": message}, "ResponseMetadata": metadata}
        raise client.exceptions.from_code(code)(error, operation)
    if found is None or (
        operation == "GetObject"
        and arguments.get("IfMatch", found.etag).strip('"') != found.etag.strip('"')
    ):
        return None
    described = _described(found)
    if tags := backend.tagger.get_tag_dict_for_resource(found.arn):
        described["TagCount"] = len(tags)
    return (
        described
        if operation == "HeadObject"
        else _content(found, described, arguments.get("Range"))
    )


def _put(backend: Any, bucket: Any, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    body, metadata = arguments.get("Body", b""), arguments.get("Metadata", {})
    is_usual = all(
        text.isascii() and text.isprintable() and text == text.strip() for text in metadata.values()
    )
    if not is_usual or not arguments["Key"] or isinstance(body, str):
        return None
    content = (
        body
        if isinstance(body, bytes)
        else bytes(body)
        if isinstance(body, bytearray)
        else body.read()
    )
    encryption = arguments.get("ServerSideEncryption")
    stored = backend.put_object(
        bucket.name, arguments["Key"], content, storage="STANDARD", encryption=encryption
    )
    kind = {"Content-Type": arguments.get("ContentType", "binary/octet-stream")}
    stored.set_metadata(
        {**{f"{_PREFIX}{name.lower()}": text for name, text in metadata.items()}, **kind}
    )
    stored.set_acl(bucket.acl)
    return {"ETag": stored.etag, **_version(stored), **_encryption(stored)}


def _encryption(key: FakeKey) -> dict[str, str]:
    return {"ServerSideEncryption": key.encryption} if key.encryption else {}


def _set_versioning(bucket: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    bucket.versioning_status = arguments["VersioningConfiguration"]["Status"]
    return {}


def _set_notifications(bucket: Any, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Notify queues; they receive a test event."""
    wanted = arguments["NotificationConfiguration"]
    if wanted.keys() != {"QueueConfigurations"}:
        return None
    queues = [
        {
            "Id": one["Events"][0],
            "Queue": one["QueueArn"],
            "Event": one["Events"],
            "Filter": {"S3Key": {"FilterRule": one["Filter"]["Key"]["FilterRules"]}},
        }
        for one in wanted["QueueConfigurations"]
    ]
    bucket.set_notification_configuration({"QueueConfiguration": queues})
    return {}


def _list(bucket: Any, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    prefix, delimiter = arguments.get("Prefix", ""), arguments.get("Delimiter", "")
    keys, folders = [], set()
    for name, key in sorted(bucket.keys.items()):
        if not name.startswith(prefix) or not isinstance(key, FakeKey):
            continue
        folder = name.find(delimiter, len(prefix)) + 1 if delimiter else 0
        shown = name[:folder] or name
        if shown <= arguments.get("StartAfter", ""):
            continue
        if folder:
            folders.add(shown)
        else:
            keys.append(key)
    if len(keys) + len(folders) > get_s3_default_max_keys():
        return None
    told = {
        "IsTruncated": False,
        "Name": bucket.name,
        "Prefix": prefix,
        "MaxKeys": get_s3_default_max_keys(),
        "EncodingType": "url",
        "KeyCount": len(keys) + len(folders),
    }
    told |= {name: arguments[name] for name in ("Delimiter", "StartAfter") if name in arguments}
    shown_folders = [{"Prefix": folder} for folder in sorted(folders)]
    lists = {"Contents": [_listed(key) for key in keys], "CommonPrefixes": shown_folders}
    return told | {name: found for name, found in lists.items() if found}


def _list_versions(bucket: Any, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Without owners, which nobody reads; where something was deleted, moto answers."""
    prefix = arguments.get("Prefix", "")
    found = [
        (key, place == 0)
        for name, versions in sorted(bucket.keys.iterlists())
        if name.startswith(prefix)
        for place, key in enumerate(reversed(versions))
    ]
    is_usual = all(isinstance(key, FakeKey) for key, _ in found)
    if not is_usual or len(found) > get_s3_default_max_keys():
        return None
    told = {
        "IsTruncated": False,
        "KeyMarker": "",
        "VersionIdMarker": "",
        "Name": bucket.name,
        "Prefix": prefix,
        "MaxKeys": get_s3_default_max_keys(),
    }
    versions = [
        {**_listed(key), "VersionId": key.version_id, "IsLatest": is_latest}
        for key, is_latest in found
    ]
    return told | ({"Versions": versions} if versions else {})


_OF_BUCKET = {
    "ListObjectsV2": _list,
    "ListObjectVersions": _list_versions,
    "PutBucketNotificationConfiguration": _set_notifications,
    "PutBucketVersioning": _set_versioning,
}
_MISSING = {
    "GetObject": ("NoSuchKey", "The specified key does not exist."),
    "HeadObject": ("404", "Not Found"),
}


def _listed(key: Any) -> dict[str, Any]:
    return {
        "Key": key.name,
        "LastModified": _modified(key),
        "ETag": key.etag,
        "Size": key.size,
        "StorageClass": key.storage_class,
    }


def _modified(key: Any) -> datetime:
    """When, as S3 says it: in whole seconds."""
    modified: datetime = key.last_modified.replace(microsecond=0, tzinfo=UTC)
    return modified


def _described(found: Any) -> dict[str, Any]:
    metadata = dict(found.metadata)
    return {
        "AcceptRanges": "bytes",
        "LastModified": _modified(found),
        "ContentLength": found.size,
        "ETag": found.etag,
        "ContentType": next(
            text for name, text in metadata.items() if name.lower() == "content-type"
        ),
        "Metadata": {
            name.removeprefix(_PREFIX): text
            for name, text in metadata.items()
            if name.startswith(_PREFIX)
        },
        **_version(found),
        **_encryption(found),
    }


def _version(found: Any) -> dict[str, str]:
    return {"VersionId": found.version_id} if found.version_id != "null" else {}


def _content(found: Any, described: dict[str, Any], section: str | None) -> dict[str, Any] | None:
    content = found.value
    if section is not None:
        wanted = _RANGE.fullmatch(section)
        first, last = (int(wanted[1]), int(wanted[2] or len(content))) if wanted else (1, 0)
        last = min(last, len(content) - 1)
        if first > last:
            return None
        described |= {
            "ContentRange": f"bytes {first}-{last}/{len(content)}",
            "ContentLength": last + 1 - first,
        }
        content = content[first : last + 1]
    return {**described, "Body": StreamingBody(BytesIO(content), len(content))}

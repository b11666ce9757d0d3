"""Reads and writes of S3 objects, straight on moto's objects: HTTP takes ten times as long.

Only what succeeds and has usual arguments; for everything else `answer` returns None, and the call goes over HTTP.
`tests/integration/test_quick_moto.py` compares both ways.
"""

from __future__ import annotations

import re
from datetime import UTC
from io import BytesIO
from typing import TYPE_CHECKING, Any

from botocore.response import StreamingBody
from moto.core import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

if TYPE_CHECKING:
    from collections.abc import Mapping

ARGUMENTS = {
    "GetObject": {"Bucket", "Key", "VersionId", "IfMatch", "Range"},
    "HeadObject": {"Bucket", "Key", "VersionId"},
    "PutObject": {"Bucket", "Key", "Body", "Metadata", "ContentType", "IfNoneMatch"},
}
"""The operations, and the arguments that are usual."""
_PREFIX = "x-amz-meta-"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def answer(operation: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """What S3 answers; None if the call has to go over HTTP."""
    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    bucket = backend.buckets.get(arguments["Bucket"])
    if arguments.keys() - ARGUMENTS[operation] or bucket is None or bucket.policy or bucket.encryption:
        return None
    found = backend.get_object(bucket.name, arguments["Key"], arguments.get("VersionId"))
    if found is not None and backend.tagger.has_tags(found.arn):
        return None
    if operation == "PutObject":
        return None if found and "IfNoneMatch" in arguments else _put(backend, bucket, arguments)
    if found is None or (
        operation == "GetObject" and arguments.get("IfMatch", found.etag).strip('"') != found.etag.strip('"')
    ):
        return None
    described = _described(found)
    return described if operation == "HeadObject" else _content(found, described, arguments.get("Range"))


def _put(backend: Any, bucket: Any, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    body, metadata = arguments.get("Body", b""), arguments.get("Metadata", {})
    is_usual = all(text.isascii() and text.isprintable() and text == text.strip() for text in metadata.values())
    if not is_usual or not arguments["Key"] or isinstance(body, str):
        return None
    content = body if isinstance(body, bytes) else bytes(body) if isinstance(body, bytearray) else body.read()
    stored = backend.put_object(bucket.name, arguments["Key"], content, storage="STANDARD")
    kind = {"Content-Type": arguments.get("ContentType", "binary/octet-stream")}
    stored.set_metadata({**{f"{_PREFIX}{name.lower()}": text for name, text in metadata.items()}, **kind})
    stored.set_acl(bucket.acl)
    return {"ETag": stored.etag, **_version(stored)}


def _described(found: Any) -> dict[str, Any]:
    metadata = dict(found.metadata)
    return {
        "AcceptRanges": "bytes",
        "LastModified": found.last_modified.replace(microsecond=0, tzinfo=UTC),
        "ContentLength": found.size,
        "ETag": found.etag,
        "ContentType": next(text for name, text in metadata.items() if name.lower() == "content-type"),
        "Metadata": {name.removeprefix(_PREFIX): text for name, text in metadata.items() if name.startswith(_PREFIX)},
        **_version(found),
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
        described |= {"ContentRange": f"bytes {first}-{last}/{len(content)}", "ContentLength": last + 1 - first}
        content = content[first : last + 1]
    return {**described, "Body": StreamingBody(BytesIO(content), len(content))}

"""Uploading: a stream of bytes, or another object, becomes an object.

Each version is a job, which is billed, and boto3 sends a call again if its answer is lost. So what
is small is written by one call that makes an object only if there is none, and everything else is
sent in parts: however often its calls are sent, it is one version.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any, BinaryIO, TypeVar

from dropbatch.client import aws
from dropbatch.client.stack import CONDITION_FAILED, Stack, head_of
from dropbatch.client.threads import at_once
from dropbatch.core import names
from dropbatch.core.options import OPTIONS_AT, with_room
from dropbatch.errors import ConnectionLost, Error, IdUnknown, NotFound, UsageError

In = TypeVar("In")

PART_BYTES = 16 << 20
"""Bytes of an upload's parts: S3 allows 10,000, so an upload has up to 160 GB."""
COPY_BYTES = 256 << 20
"""Bytes of a part of a copy, unless the object is so large that it would have too many."""
MAX_PARTS = 10_000
PARTS_AT_ONCE = 4
CHECKSUM = "CRC32"
SURE_SECONDS = 1.0
"""S3 says times in whole seconds."""


@dataclass(frozen=True)
class Uploaded:
    """One version of an upload.

    Attributes:
        metadata: its options, and what it is a retry of.
        bucket: the source bucket, if it lies there; empty for the stack's.
        object_key: its key there.
    """

    key: str
    version: str
    etag: str
    modified: datetime
    size: int
    metadata: Mapping[str, str] = field(compare=False, repr=False)
    bucket: str = ""
    object_key: str = ""

    @property
    def path(self) -> str:
        """The path under `inbox/`."""
        return names.upload_path(self.key)

    def job_id(self, bucket: str, choice: int = 0) -> str:
        """The id of its job."""
        place = self.bucket or bucket, self.object_key or self.key
        return names.job_id(*place, self.version, self.etag, self.modified, choice)


def upload_key(name: str | None, own: str) -> str:
    """The key of an upload."""
    path = own if name is None else name + own if name.endswith("/") else name
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"The name {os.fsencode(path)!r} is not UTF-8, as S3 needs it. Choose another name."
        ) from None
    key = names.INBOX + path.removeprefix(names.INBOX).lstrip("/")
    if not names.is_upload(key):
        raise UsageError(
            f"{path!r} is not an upload: a segment of it begins with _ or . or is missing. "
            "Choose another name."
        )
    return key


def upload(
    stack: Stack,
    stream: BinaryIO,
    key: str,
    metadata: Mapping[str, str],
    progress: Callable[[int], None] = lambda _: None,
) -> Uploaded:
    """Upload a stream, in flat memory; progress is called from several threads."""
    place = {"Bucket": stack.bucket, "Key": key}
    with aws.explained():
        metadata = with_options_apart(stack.s3, stack.bucket, metadata)
        parts = _parts(stream)
        first = next(parts, b"")
        if len(first) < PART_BYTES and (made := _made_whole(stack, place, first, metadata)):
            progress(len(first))
            return made
        if first:
            answer = _stream_parts(stack.s3, place, chain([first], parts), metadata, progress)
        else:  # S3 does not promise to take an empty part.
            answer = stack.s3.put_object(**place, Metadata=dict(metadata))
        return uploaded_as(stack, key, answer)


def with_options_apart(s3: Any, bucket: str, metadata: Mapping[str, str]) -> dict[str, str]:
    """Metadata as it is stored, whose options are written before it if they are too long."""
    stored, content = with_room(metadata)
    if content:
        s3.put_object(Bucket=bucket, Key=names.long_options(stored[OPTIONS_AT]), Body=content)
    return stored


def uploaded_as(stack: Stack, key: str, answer: Mapping[str, Any]) -> Uploaded:
    """The version that S3's answer to a write names; the newest one if it names none."""
    version = answer.get("VersionId", "null")
    place = {"VersionId": version} if version != "null" else {}
    try:
        found = stack.ask("head_object", key, **place)
    except ConnectionLost:
        if not answer:
            raise
        raise IdUnknown(
            f"{key} is uploaded, and its job will run; AWS could not be reached to read the job's "
            "id. Do not send it again: list the jobs."
        ) from None
    if found is None:
        raise NotFound(f"There is no {key}, or it was deleted while it was uploaded.")
    return uploaded_of(key, found)


def uploaded_of(key: str, answer: Mapping[str, Any]) -> Uploaded:
    """The version of an upload that S3's answer to a HEAD is about."""
    head = head_of(answer)
    return Uploaded(key, head.version, head.etag, head.modified, head.size, head.metadata)


def _made_whole(
    stack: Stack, place: dict[str, str], body: bytes, metadata: Mapping[str, str]
) -> Uploaded | None:
    """Make an object by one call, perhaps sent twice; None if there is another at its key."""
    from botocore.exceptions import ClientError

    began = time.monotonic()
    try:
        answer = stack.s3.put_object(**place, Body=body, Metadata=dict(metadata), IfNoneMatch="*")
    except ClientError as error:
        if error.response["Error"]["Code"] not in CONDITION_FAILED:
            raise
        if not error.response["ResponseMetadata"].get("RetryAttempts"):
            return None
        found = stack.ask("head_object", place["Key"])
        if not found or (found["ContentLength"], found["Metadata"]) != (len(body), dict(metadata)):
            return None
        at = found.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        now = parsedate_to_datetime(at) if at else datetime.now(UTC)
        is_new = found["LastModified"] >= now - timedelta(
            seconds=time.monotonic() - began + SURE_SECONDS
        )
        return uploaded_of(place["Key"], found) if is_new else None
    return uploaded_as(stack, place["Key"], answer)


def copy(
    stack: Stack,
    source: Mapping[str, str],
    size: int,
    key: str,
    metadata: Mapping[str, str],
    progress: Callable[[int], None] = lambda _: None,
    *,
    etag: str = "",
) -> Uploaded:
    """Copy an object within S3, in parts; `etag`: what the source must have to the end."""
    from botocore.exceptions import ClientError

    place = {"Bucket": stack.bucket, "Key": key}
    conditions = {"CopySourceIfMatch": f'"{etag}"'} if etag else {}
    with aws.explained():
        metadata = with_options_apart(stack.s3, stack.bucket, metadata)
        try:
            answer = copy_parts(stack.s3, source, size, place, metadata, progress, **conditions)
        except ClientError as error:
            if not etag or error.response["Error"]["Code"] not in CONDITION_FAILED:
                raise
            raise NotFound(
                f"s3://{source['Bucket']}/{source['Key']} was replaced while it was copied."
            ) from error
        return uploaded_as(stack, key, answer)


def copy_parts(
    s3: Any,
    source: Mapping[str, str],
    size: int,
    place: Mapping[str, str],
    metadata: Mapping[str, str],
    progress: Callable[[int], None] = lambda _: None,
    **conditions: str,
) -> dict[str, Any]:
    """Do what `copy` says; return S3's answer."""
    if not size:
        return dict(s3.put_object(**place, Metadata=dict(metadata)))
    step = max(COPY_BYTES, -(-size // MAX_PARTS))

    def send(begun: Mapping[str, str], number: int, first: int) -> dict[str, str]:
        last = min(first + step, size) - 1
        # S3 refuses a range of an object below 5 MB.
        part = {"CopySourceRange": f"bytes={first}-{last}"} if step < size else {}
        answer = s3.upload_part_copy(
            **begun, PartNumber=number, CopySource=dict(source), **part, **conditions
        )
        progress(last + 1 - first)
        return {"ETag": answer["CopyPartResult"]["ETag"]}

    return _in_parts(s3, place, metadata, send, range(0, size, step))


def _stream_parts(
    s3: Any,
    place: Mapping[str, str],
    parts: Iterator[bytes],
    metadata: Mapping[str, str],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    def send(begun: Mapping[str, str], number: int, body: bytes) -> dict[str, str]:
        if number > MAX_PARTS:
            most = MAX_PARTS * PART_BYTES
            raise Error(f"{place['Key']}: an upload has at most {most:,} bytes. Divide it.")
        answer = s3.upload_part(**begun, PartNumber=number, Body=body, ChecksumAlgorithm=CHECKSUM)
        progress(len(body))
        # S3 wants each part's checksum again at the end, if it returned one.
        return {one: answer[one] for one in ("ETag", f"Checksum{CHECKSUM}") if one in answer}

    # S3 refuses parts with a checksum if the upload was begun without.
    return _in_parts(s3, place, metadata, send, parts, ChecksumAlgorithm=CHECKSUM)


def _in_parts(
    s3: Any,
    place: Mapping[str, str],
    metadata: Mapping[str, str],
    send: Callable[[Mapping[str, str], int, In], dict[str, str]],
    parts: Iterable[In],
    **more: str,
) -> dict[str, Any]:
    """Make an object of parts, some at a time, or abort it; S3's answer, empty if it was lost."""
    made = s3.create_multipart_upload(**place, Metadata=dict(metadata), **more)
    begun = {**place, "UploadId": made["UploadId"]}
    try:
        numbered = at_once(lambda one: send(begun, *one), enumerate(parts, 1), PARTS_AT_ONCE)
        by_number = {one[0]: answer for one, answer in numbered}
        sent = [{"PartNumber": one, **by_number[one]} for one in sorted(by_number)]
        with suppress(s3.exceptions.NoSuchUpload):  # It is complete already: that answer was lost.
            return dict(s3.complete_multipart_upload(**begun, MultipartUpload={"Parts": sent}))
    except BaseException:  # What is left after an interruption, the bucket's lifecycle removes.
        with suppress(Error, s3.exceptions.NoSuchUpload), aws.explained():
            s3.abort_multipart_upload(**begun)
        raise
    return {}


def _parts(stream: BinaryIO) -> Iterator[bytes]:
    """A stream in parts of `PART_BYTES`, of which only the last is smaller: a pipe gives little."""
    while True:
        part = bytearray()
        while len(part) < PART_BYTES and (read := stream.read(PART_BYTES - len(part))):
            part += read
        if not part:
            return
        yield bytes(part)

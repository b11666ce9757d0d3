"""What lies in S3 already as a source.

It is copied, read as a table, or read by the stack where it lies.

The stack reads the objects of its source bucket where they lie. What is asked for by an object's
name is then its job, as if the object were written now.
"""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from dropbatch.client import aws
from dropbatch.client.sources import Source, stream_of, table_source
from dropbatch.client.tables.frames import SUFFIXES, table_of_file
from dropbatch.client.transfer.objects import blocks, head_of
from dropbatch.client.uploads import Uploaded
from dropbatch.core import names
from dropbatch.errors import NotFound, UsageError

if TYPE_CHECKING:
    from dropbatch.client.stack import Stack
    from dropbatch.client.transfer.objects import ObjectHead

S3 = "s3://"
READ_BYTES = 64 << 10
"""Bytes of a small read of a table in S3."""


def is_stored(source: object) -> bool:
    """Whether a source is named as an object of S3."""
    return isinstance(source, str) and source.startswith(S3)


def stored_name(url: str) -> str:
    """The name of the upload that an object becomes.

    Its own, or that of the table which is made of it.
    """
    name = url.rpartition("/")[2]
    return PurePosixPath(name).with_suffix(".csv").name if _is_table(name) else name


def open_stored(stack: Stack, url: str, template: str) -> Source:
    """Open an object.

    Args:
        stack: with whose clients.
        url: `s3://bucket/key`.
        template: the option, if it is given: which columns of a table are needed.

    Raises:
        NotFound: there is none.
        UsageError: it is no such name, or a table that cannot be read.
    """
    bucket, head = find_object(stack, url)
    key = url.removeprefix(S3).partition("/")[2]
    place = {"Bucket": bucket, "Key": key} | (
        {"VersionId": head.version} if head.version != "null" else {}
    )
    etag = head.etag if head.version == "null" else ""
    pinned = place | ({"IfMatch": f'"{etag}"'} if etag else {})
    if _is_table(key):
        file = io.BufferedReader(_ObjectFile(stack.s3, pinned, head.size), READ_BYTES)
        try:
            table = table_of_file(file)
        except UsageError as error:
            error.source = url
            raise
        return table_source(table, stored_name(url), template, head.metadata)
    stream = stream_of(blocks(stack.s3, pinned, head.size))
    return Source(
        stored_name(url), stream, head.size, stored=place, etag=etag, metadata=head.metadata
    )


def find_object(stack: Stack, url: str) -> tuple[str, ObjectHead]:
    """The bucket of an object that is named `s3://bucket/key`, and what S3 knows of it.

    Raises:
        NotFound: there is none.
        UsageError: it is no such name.
    """
    bucket, _, key = url.removeprefix(S3).partition("/")
    if not bucket or not key or key.endswith("/"):
        raise UsageError(f"{url} names no object. Write s3://bucket/key.")
    found = stack.ask("head_object", key, Bucket=bucket)
    if found is None:
        raise NotFound(f"There is no {url}.")
    return bucket, head_of(found)


def _is_table(key: str) -> bool:
    return key.lower().endswith(SUFFIXES)


class _ObjectFile(io.RawIOBase):
    """An object as a file that can be read anywhere.

    Of a table, only the columns that are needed are fetched.
    """

    def __init__(self, s3: Any, place: dict[str, str], size: int) -> None:  # noqa: ANN401
        self._s3, self._place, self._size, self._at = s3, place, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        end = min(self._at + len(buffer), self._size)
        begun = self._at
        for block in blocks(self._s3, self._place, end, begun):
            buffer[self._at - begun : self._at - begun + len(block)] = block
            self._at += len(block)
        return self._at - begun


# ── where it lies ─────────────────────────────────────────────────────────────────────────────────


def path_in_place(stack: Stack, url: str) -> str | None:
    """The path under `inbox/` that an object of the source bucket has.

    None if the stack cannot read it there.
    """
    bucket, _, key = url.removeprefix(S3).partition("/")
    if (
        not bucket
        or bucket != stack.source_bucket
        or not key.startswith(stack.source_prefix)
        or _is_table(key)
    ):
        return None
    path = key.removeprefix(stack.source_prefix).lstrip("/")
    return path if names.is_upload(names.INBOX + path) else None


def upload_in_place(stack: Stack, url: str) -> Uploaded:
    """The upload that an object of the source bucket is."""
    bucket, head = find_object(stack, url)
    path = names.INBOX + (path_in_place(stack, url) or "")
    key = url.removeprefix(S3).partition("/")[2]
    return Uploaded(
        path, head.version, head.etag, head.modified, head.size, head.metadata, bucket, key
    )


def start_in_place(stack: Stack, upload: Uploaded) -> None:
    """Tell the stack of an object of its source bucket, as EventBridge does.

    It makes at most one job of a version.

    Raises:
        NotPermitted: AWS denied it.
    """
    created = {"key": upload.object_key} | (
        {"version-id": upload.version} if upload.version != "null" else {}
    )
    event = {
        "source": "aws.s3",
        "detail-type": "Object Created",
        "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "detail": {"bucket": {"name": upload.bucket}, "object": created},
    }
    with aws.explained():
        stack.service("sqs").send_message(
            QueueUrl=stack.outputs["UploadQueueUrl"], MessageBody=json.dumps(event)
        )

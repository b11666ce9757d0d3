"""Objects of S3: what S3 knows of one, its bytes although connections break, listings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dropbatch.client import aws
from dropbatch.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from dropbatch.client.stack import Stack

CHUNK_BYTES = 1 << 20
MAX_ATTEMPTS = 5
"""Attempts to read an object when the connection is cut off."""
CONDITION_FAILED = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
"""Codes of a call whose condition (`IfMatch`, `IfNoneMatch`) did not hold."""


@dataclass(frozen=True)
class ObjectHead:
    """What S3 knows about an object.

    Attributes:
        size: in bytes.
        etag: without quotes.
        version: its version id; `null` in a bucket without versions.
        modified: of that version.
        metadata: by name, without `x-amz-meta-`.
        checksum: the CRC32 that S3 keeps, in base64; empty if it was not asked for, or there is
            none.
        is_kms: whether a key of KMS encrypts it: then its ETag is no digest of its content.
    """

    size: int
    etag: str
    version: str
    modified: datetime
    metadata: dict[str, str] = field(repr=False)
    checksum: str = ""
    is_kms: bool = False


def head_of(answer: Mapping[str, Any]) -> ObjectHead:
    """What S3's answer to a HEAD or a GET says."""
    return ObjectHead(
        answer["ContentLength"],
        answer["ETag"].strip('"'),
        answer.get("VersionId", "null"),
        answer["LastModified"],
        answer["Metadata"],
        answer.get("ChecksumCRC32", ""),
        "kms" in answer.get("ServerSideEncryption", ""),
    )


def blocks(s3: Any, place: Mapping[str, str], size: int, start: int = 0) -> Iterator[bytes]:  # noqa: ANN401
    """The bytes of an object; read on where a connection was cut off.

    Args:
        s3: the client.
        place: bucket, key, and what else S3 is to be asked with, such as `IfMatch`.
        size: where to end, or where the object ends before.
        start: where to begin.

    Raises:
        NotFound: it was deleted, or is no more the one of `IfMatch`.
        Error: AWS refused it.
    """
    from botocore.exceptions import ClientError

    held = start
    for attempt in range(MAX_ATTEMPTS):
        if held >= size:
            return
        with aws.explained(retry=attempt + 1 < MAX_ATTEMPTS):
            try:
                answer = s3.get_object(**place, Range=f"bytes={held}-{size - 1}")
            except ClientError as error:
                if error.response["Error"]["Code"] in CONDITION_FAILED:
                    raise NotFound(f"{place['Key']} was replaced while it was read.") from error
                raise
            for block in answer["Body"].iter_chunks(CHUNK_BYTES):
                held += len(block)
                yield block
            return


def pages_of(stack: Stack, prefix: str, after: str = "") -> Iterator[list[dict[str, Any]]]:
    """The objects of the bucket under a prefix, a page of a listing at a time.

    Args:
        stack: the stack.
        prefix: of their keys.
        after: they come after this key.
    """
    where = {"Bucket": stack.bucket, "Prefix": prefix} | ({"StartAfter": after} if after else {})
    pages = iter(stack.s3.get_paginator("list_objects_v2").paginate(**where))
    while True:
        with aws.explained():
            page = next(pages, None)
        if page is None:
            return
        yield page.get("Contents", [])


def common_prefix(first: str, last: str) -> str:
    """The prefix that the first and the last of sorted keys have, and so all between them."""
    same = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None
    )
    return first[:same] if same is not None else min(first, last, key=len)

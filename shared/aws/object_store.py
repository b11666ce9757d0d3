"""The object store: S3, seen as keys of one bucket. Knows keys and bytes, but no jobs.

Objects that matter are written once (`If-None-Match: *`): 412 means that the object already exists,
409 that two writes collided and one should try again.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from botocore.exceptions import (
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    ReadTimeoutError,
)

from dropbatch.core.errors import UploadRefused
from dropbatch.core.names import encryption
from shared.aws.client_errors import ARCHIVED, is_refusal, storage_errors
from shared.errors import (
    ObjectNotFoundError,
    RefusedError,
    StorageError,
    UploadDeniedError,
    WriteConflictError,
)
from shared.spool import spool

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

BLOCK_BYTES = 4 << 20
"""Bytes read at a time when an object is copied through this process."""

MAX_PARALLEL_READS = 8
"""Sections fetched at the same time: S3 takes tens of milliseconds to the first byte."""

_Wanted = TypeVar("_Wanted")
_Found = TypeVar("_Found")

_MAX_TRIES = 3
_COPYING = frozenset({"upload_part_copy", "complete_multipart_upload"})
"""Operations that S3 answers only when all bytes are in place."""
_ENCRYPTING = frozenset({"put_object", "create_multipart_upload"})
"""Operations that decide how an object is encrypted."""
_GONE = {
    *("404", "NoSuchKey", "NoSuchVersion", "NoSuchUpload"),
    *("405", "MethodNotAllowed", "412", "PreconditionFailed"),
}


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What HEAD returns about an object; its version is `null` if the bucket has no versions."""

    size: int
    etag: str
    version: str
    modified: datetime
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MultipartPart:
    """A piece of an object that is being assembled."""

    number: int
    size: int
    etag: str


class ObjectVersion(NamedTuple):
    """One version of an object, or a delete marker."""

    key: str
    version: str


class ObjectStore:
    """One bucket."""

    def __init__(
        self,
        client: S3Client,
        bucket: str,
        copying: Callable[[], S3Client] | None = None,
        kms_key: str = "",
    ) -> None:
        """Take a client for quick calls and, for copies, how to make one that waits longer."""
        self.client = client
        self.bucket = bucket
        self.copying = copying or (lambda: client)
        self.kms_key = kms_key

    def in_bucket(self, bucket: str) -> ObjectStore:
        """The objects of another bucket, with the same clients."""
        return ObjectStore(self.client, bucket, self.copying, self.kms_key)

    def head(self, key: str, version: str = "") -> ObjectInfo | None:
        """What HEAD returns about the object under a key; None if there is no object."""
        try:
            answer = self._call("head_object", Key=key, **_version(version))
        except ObjectNotFoundError:
            return None
        return ObjectInfo(
            answer["ContentLength"],
            answer["ETag"].strip('"'),
            answer.get("VersionId", "null"),
            answer["LastModified"],
            answer.get("Metadata", {}),
        )

    def existing(self, key: str) -> ObjectInfo:
        """What HEAD returns about an object that was written; raises `ObjectNotFoundError`."""
        stored = self.head(key)
        if stored is None:
            raise ObjectNotFoundError(f"{key} does not exist")
        return stored

    def read_version(self, key: str, version: str, etag: str, start: int, length: int) -> bytes:
        """Bytes of one version of an upload; `UploadDeniedError` if S3 refuses to hand it out."""
        arguments = {
            **_version(version),
            "IfMatch": f'"{etag}"',
            "Range": f"bytes={start}-{start + length - 1}",
        }
        try:
            return self._read(key, arguments)
        except ObjectNotFoundError as error:
            raise UploadRefused(
                "source_gone",
                f"s3://{self.bucket}/{key} (version {version}) was removed or overwritten "
                "while it was being read. Upload it again.",
            ) from error
        except RefusedError as error:
            if error.code != ARCHIVED:
                raise UploadDeniedError(f"{error.code}: {error.said}") from error
            raise UploadRefused(
                "source_archived",
                f"s3://{self.bucket}/{key} (version {version}) is in an archive storage class, "
                "from which S3 reads nothing. Restore it, then upload a copy of it.",
            ) from error

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """An object's bytes, or a section of them; raises `ObjectNotFoundError`."""
        if length == 0:
            return b""
        if start == 0 and length is None:
            return self._read(key, {})
        last = "" if length is None else start + length - 1
        return self._read(key, {"Range": f"bytes={start}-{last}"})

    def spool(self, key: str, kept: ExitStack) -> bytes | mmap.mmap:
        """A whole object: in memory if it is small, else on disk as long as the stack lives."""
        return spool(self.blocks(key, 0, self.existing(key).size), kept)

    def blocks(self, key: str, start: int, length: int) -> Iterator[bytes]:
        """A section of an object, a few MB at a time."""
        for section in _in_blocks(key, start, length):
            yield self.get(*section)

    def sections(self, wanted: Iterable[tuple[str, int, int]]) -> Iterator[bytes]:
        """Sections of objects (key, offset, bytes), a few MB at a time, some fetched ahead."""
        return self.read_ahead(
            (block for section in wanted for block in _in_blocks(*section)), MAX_PARALLEL_READS
        )

    def read_ahead(
        self, wanted: Iterable[tuple[str, *tuple[int, ...]]], most: int
    ) -> Iterator[bytes]:
        """What `get` returns for each (key, offset, bytes), in order, at most `most` ahead."""
        return in_order(lambda section: self.get(*section), wanted, most)

    def put_if_absent(
        self,
        key: str,
        body: bytes | mmap.mmap | IO[bytes],
        metadata: Mapping[str, str] | None = None,
        kind: str = "",
    ) -> bool:
        """Write bytes, a file or a mapping unless an object exists; whether this call did."""
        described = _optional(metadata, kind)
        for attempt in range(_MAX_TRIES):
            if not isinstance(body, bytes):
                body.seek(0)
            try:
                self._call("put_object", Key=key, Body=body, IfNoneMatch="*", **described)
            except ObjectExistsError:
                return False
            except WriteConflictError:
                if attempt == _MAX_TRIES - 1:
                    raise
            else:
                return True
        raise AssertionError("unreachable")

    def replace(self, key: str, body: bytes, etag: str, metadata: Mapping[str, str]) -> None:
        """Replace the object that has this ETag; raises `StorageError` if it is another one now."""
        self._call("put_object", Key=key, Body=body, IfMatch=f'"{etag}"', **_optional(metadata, ""))

    def put(self, key: str, body: bytes, kind: str = "") -> None:
        """Write an object, replacing any that exists."""
        self._call("put_object", Key=key, Body=body, **_optional(None, kind))

    # ── deleting ──────────────────────────────────────────────────────────────────────────────────

    def versions(self, prefix: str) -> list[ObjectVersion]:
        """The first 1,000 versions of objects whose keys begin so, delete markers included."""
        answer = self._call("list_object_versions", Prefix=prefix)
        return [
            ObjectVersion(one["Key"], one["VersionId"])
            for one in (*answer.get("Versions", ()), *answer.get("DeleteMarkers", ()))
        ]

    def delete(self, versions: Sequence[ObjectVersion]) -> None:
        """Delete versions for good, at most 1,000; `RefusedError` if all that remain are locked."""
        wanted = [{"Key": one.key, "VersionId": one.version} for one in versions]
        answer = self._call("delete_objects", Delete={"Objects": wanted, "Quiet": True})
        if errors := answer.get("Errors"):
            call = f"S3 delete_objects: {len(errors)} not deleted, the first"
            code = errors[0].get("Code", "")
            if all(is_refusal(one.get("Code", "")) for one in errors):
                raise RefusedError(call, code, errors[0].get("Message", ""))
            raise StorageError(f"{call}: {code}")

    # ── assembling objects by server-side copy ────────────────────────────────────────────────────

    def create_multipart_upload(self, key: str, metadata: Mapping[str, str], kind: str) -> str:
        """Start assembling a new object; return the id of the multipart upload."""
        described = _optional(metadata, kind)
        return str(self._call("create_multipart_upload", Key=key, **described)["UploadId"])

    def upload_part_copy(self, key: str, upload_id: str, number: int, source: str) -> None:
        """Copy a whole object to its place among the pieces of a new one; twice changes nothing."""
        copied = {"PartNumber": number, "CopySource": {"Bucket": self.bucket, "Key": source}}
        self._call("upload_part_copy", Key=key, UploadId=upload_id, **copied)

    def list_parts(self, key: str, upload_id: str) -> list[MultipartPart]:
        """The pieces copied; `ObjectNotFoundError` if the upload was completed or removed."""
        found: list[MultipartPart] = []
        position: dict[str, int] = {}
        while True:
            answer = self._call("list_parts", Key=key, UploadId=upload_id, **position)
            found += [
                MultipartPart(one["PartNumber"], one["Size"], one["ETag"])
                for one in answer.get("Parts", [])
            ]
            if not answer.get("IsTruncated"):
                return found
            position = {"PartNumberMarker": answer["NextPartNumberMarker"]}

    def complete_multipart_upload(
        self, key: str, upload_id: str, pieces: list[MultipartPart]
    ) -> bool:
        """Create the new object from its pieces, unless it exists; whether this call did.

        After a `WriteConflictError` the upload must begin anew: this one is aborted.
        """
        parts = [{"PartNumber": one.number, "ETag": one.etag} for one in pieces]
        try:
            self._call(
                "complete_multipart_upload",
                Key=key,
                UploadId=upload_id,
                MultipartUpload={"Parts": parts},
                IfNoneMatch="*",
            )
        except ObjectExistsError:
            self._abort_multipart_upload(key, upload_id)
            return False
        except WriteConflictError:
            self._abort_multipart_upload(key, upload_id)
            raise
        return True

    def _abort_multipart_upload(self, key: str, upload_id: str) -> None:
        with suppress(ObjectNotFoundError):  # It is gone already.
            self._call("abort_multipart_upload", Key=key, UploadId=upload_id)

    def _read(self, key: str, arguments: dict[str, Any]) -> bytes:
        """Read a body to its end; one that is cut off is requested again, as botocore does not."""
        problem: Exception | None = None
        for _ in range(_MAX_TRIES):
            answer = self._call("get_object", Key=key, **arguments)
            try:
                body: bytes = answer["Body"].read()
            except (IncompleteReadError, ReadTimeoutError, HTTPClientError, OSError) as error:
                problem = error
            else:
                return body
        raise StorageError(
            f"S3 get_object {key}: the body was cut off {_MAX_TRIES} times: {problem}"
        ) from problem

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        client = self.copying() if operation in _COPYING else self.client
        call = f"S3 {operation} {arguments.get('Key', '')}"
        if operation in _ENCRYPTING:
            arguments |= encryption(self.kms_key)
        with storage_errors(call):
            try:
                answer: dict[str, Any] = getattr(client, operation)(Bucket=self.bucket, **arguments)
            except ClientError as error:
                code = error.response["Error"]["Code"]
                if "IfNoneMatch" in arguments and code in {"PreconditionFailed", "412"}:
                    raise ObjectExistsError from error
                if code in {"ConditionalRequestConflict", "409"}:
                    raise WriteConflictError(f"{call}: {error}") from error
                if code in _GONE:
                    raise ObjectNotFoundError(f"{call}: {error}") from error
                raise
            return answer


def in_order(
    read: Callable[[_Wanted], _Found], wanted: Iterable[_Wanted], most: int
) -> Iterator[_Found]:
    """What is read for each that is wanted, in order, at most so many ahead in threads."""
    ahead: deque[Future[_Found]] = deque()
    threads = ThreadPoolExecutor(most)
    try:
        for one in wanted:
            if len(ahead) == most:
                yield ahead.popleft().result()
            ahead.append(threads.submit(read, one))
        while ahead:
            yield ahead.popleft().result()
    finally:  # No wait: the garbage collector may close this while another thread begins.
        threads.shutdown(wait=False, cancel_futures=True)


class ObjectExistsError(Exception):
    """A write-once object already exists (412); never leaves this module."""


def _in_blocks(key: str, start: int, length: int) -> Iterator[tuple[str, int, int]]:
    for offset in range(start, start + length, BLOCK_BYTES):
        yield key, offset, min(BLOCK_BYTES, start + length - offset)


def _version(version: str) -> dict[str, str]:
    return {"VersionId": version} if version and version != "null" else {}


def _optional(metadata: Mapping[str, str] | None, kind: str) -> dict[str, Any]:
    given = {"Metadata": dict(metadata or {}), "ContentType": kind}
    return {name: value for name, value in given.items() if value}

"""Uploading: a stream of bytes becomes an object; its version determines its job's id.

Each version is a job, which is billed, and boto3 sends a call again if its answer is lost. So every upload is sent in
parts, as is every copy that becomes one: however often its calls are sent, it is one version.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Semaphore, Thread
from typing import TYPE_CHECKING, Any, BinaryIO

from dropbatch.client import aws
from dropbatch.core import keys
from dropbatch.errors import Error, NotFound, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime

    from dropbatch.client.stack import Stack

PART_BYTES = 16 << 20
"""Bytes of an upload's parts: S3 allows 10,000, so an upload has up to 160 GB."""
MAX_PARTS = 10_000
PARTS_AT_ONCE = 4
CHECKSUM = "CRC32"
ABORT_SECONDS = 0.5
"""Seconds to wait until a broken upload is aborted; the bucket's lifecycle removes what is left of it."""


@dataclass(frozen=True)
class Uploaded:
    """One version of an upload.

    Attributes:
        key: `inbox/` or `validate/` and the path.
        version: its version id.
        etag: without quotes.
        modified: of that version.
        size: in bytes.
        metadata: its options, and what it is a retry of.
    """

    key: str
    version: str
    etag: str
    modified: datetime
    size: int
    metadata: Mapping[str, str] = field(compare=False, repr=False)

    @property
    def path(self) -> str:
        """The path under `inbox/` or `validate/`."""
        return keys.upload_path(self.key)

    def job_id(self, bucket: str, choice: int = 0) -> str:
        """The id of its job.

        Args:
            bucket: the upload's.
            choice: 0 unless another upload has that id.
        """
        return keys.job_id(bucket, self.key, self.version, self.etag, self.modified, choice)


def upload_key(name: str | None, own: str, folder: str = keys.INBOX) -> str:
    """The key of an upload.

    Args:
        name: its path; if it ends in a slash, the folder; None for its own name.
        own: its own name.
        folder: `inbox/` or `validate/`.

    Raises:
        UsageError: a segment begins with `_` or `.`, so the key would be no upload.
    """
    path = own if name is None else name + own if name.endswith("/") else name
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"The name {os.fsencode(path)!r} is not UTF-8, as S3 needs it. Choose another `name`."
        ) from None
    key = folder + path.removeprefix(folder).lstrip("/")
    if not keys.is_upload(key):
        raise UsageError(
            f"{path!r} is not an upload: a segment of it begins with _ or . or is missing. Choose another `name`."
        )
    return key


def upload(
    stack: Stack,
    stream: BinaryIO,
    key: str,
    metadata: Mapping[str, str],
    progress: Callable[[int], None] = lambda _: None,
) -> Uploaded:
    """Upload a stream. Holds a few parts in memory, whatever its size.

    Args:
        stack: the stack.
        stream: read to its end; may be a pipe.
        key: of the object.
        metadata: of the object, see `dropbatch.core.options.metadata_of`.
        progress: called with each number of bytes sent, from several threads.

    Raises:
        NotPermitted: AWS denied the upload.
        Error: it failed, or is too large.
    """
    place = {"Bucket": stack.bucket, "Key": key}
    with aws.explained():
        first = _part(stream)
        if first:
            answer = _in_parts(stack, place, first, stream, metadata, progress)
        else:  # S3 does not promise to take an empty part.
            answer = stack.s3.put_object(**place, Metadata=dict(metadata))
        return uploaded_as(stack, key, answer)


def uploaded_as(stack: Stack, key: str, answer: dict[str, Any]) -> Uploaded:
    """The version that S3's answer to a write names; the newest one if it names none.

    Raises:
        NotFound: there is none, or it was deleted at once.
    """
    version = answer.get("VersionId", "null")
    found = stack.ask("head_object", key, **({"VersionId": version} if version != "null" else {}))
    if found is None:
        raise NotFound(f"There is no {key}, or it was deleted while it was uploaded.")
    etag, version = found["ETag"].strip('"'), found.get("VersionId", "null")
    return Uploaded(key, version, etag, found["LastModified"], found["ContentLength"], found["Metadata"])


def _in_parts(
    stack: Stack,
    place: dict[str, str],
    part: bytes,
    stream: BinaryIO,
    metadata: Mapping[str, str],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    s3 = stack.s3
    place = begin(s3, place, metadata)

    def send(number: int, body: bytes) -> dict[str, Any]:
        sent = send_part(s3, place, number, body)
        progress(len(body))
        return sent

    try:
        done = _at_once(send, _numbered(part, stream, place["Key"]))
        done.sort(key=lambda one: int(one["PartNumber"]))
        answer = complete(s3, place, done)
    except BaseException:
        abort = Thread(target=s3.abort_multipart_upload, kwargs=place, daemon=True)
        abort.start()
        abort.join(ABORT_SECONDS)
        raise
    return answer


def begin(s3: Any, place: Mapping[str, str], metadata: Mapping[str, str]) -> dict[str, str]:  # noqa: ANN401
    """Begin an object that is sent in parts; return the arguments of its calls: bucket, key, and id of the upload."""
    # boto3 sends a CRC32 with each part. S3 refuses it if the upload was begun without: "expected checksum Type: null".
    begun = s3.create_multipart_upload(**place, Metadata=dict(metadata), ChecksumAlgorithm=CHECKSUM)
    return {**place, "UploadId": begun["UploadId"]}


def send_part(s3: Any, place: Mapping[str, str], number: int, body: bytes | bytearray) -> dict[str, Any]:  # noqa: ANN401
    """Send a part; return what `complete` says about it."""
    answer = s3.upload_part(**place, PartNumber=number, Body=body, ChecksumAlgorithm=CHECKSUM)
    # S3 wants each part's checksum again at the end; not every service that speaks its API returns one.
    return {"PartNumber": number} | {name: answer[name] for name in ("ETag", f"Checksum{CHECKSUM}") if name in answer}


def complete(s3: Any, place: Mapping[str, str], parts: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: ANN401
    """Make an object of its parts; return S3's answer, without a version if only the call's first answer had it."""
    with suppress(s3.exceptions.NoSuchUpload):  # It is complete already: that answer was lost.
        answer: dict[str, Any] = s3.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})
        return answer
    return {}


def _at_once(send: Callable[[int, bytes], dict[str, Any]], parts: Iterator[tuple[int, bytes]]) -> list[dict[str, Any]]:
    """Send several parts at once, on threads for which an interrupted program does not wait.

    An executor's threads would be waited for: a stalled connection holds one for minutes.
    """
    queue: SimpleQueue[tuple[int, bytes] | None] = SimpleQueue()
    room = Semaphore(PARTS_AT_ONCE)
    done: list[dict[str, Any]] = []
    errors: list[Exception] = []

    def work() -> None:
        while one := queue.get():
            try:
                done.append(send(*one))
            except Exception as error:  # noqa: BLE001 - raised by the caller's thread
                errors.append(error)
            finally:
                room.release()

    workers = [Thread(target=work, daemon=True) for _ in range(PARTS_AT_ONCE)]
    for worker in workers:
        worker.start()
    try:
        for one in parts:
            room.acquire()
            if errors:
                break
            queue.put(one)
    finally:
        for _ in workers:
            queue.put(None)
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return done


def _numbered(part: bytes, stream: BinaryIO, key: str) -> Iterator[tuple[int, bytes]]:
    for number in range(1, MAX_PARTS + 1):
        yield number, part
        part = _part(stream)
        if not part:
            return
    raise Error(f"{key}: an upload has at most {MAX_PARTS * PART_BYTES:,} bytes. Divide it.")


def _part(stream: BinaryIO) -> bytes:
    """Up to `PART_BYTES`; fewer only at the end: a pipe gives what it has, however little."""
    part = bytearray()
    while len(part) < PART_BYTES and (read := stream.read(PART_BYTES - len(part))):
        part += read
    return bytes(part)

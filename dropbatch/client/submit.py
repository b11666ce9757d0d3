"""Submitting: a source is opened, checked by the rules of the stack, and sent. Each step by itself.

So that many sources can all be checked before the first is sent.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import warnings
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from dropbatch.client import aws
from dropbatch.client.check import check_beginning
from dropbatch.client.find import retry_ids
from dropbatch.client.job import Job
from dropbatch.client.sources import (
    CHUNK_BYTES,
    S3,
    Source,
    find_object,
    is_stored,
    names_table,
    open_source,
    open_stored,
    stream_of,
)
from dropbatch.client.stack import common_prefix, head_of, pages_of
from dropbatch.client.threads import at_once
from dropbatch.client.upload import PART_BYTES, Uploaded, copy, upload, upload_key, uploaded_as
from dropbatch.core import names
from dropbatch.core.models import model_advice
from dropbatch.core.options import metadata_of, option_name, options_keys
from dropbatch.errors import NotFound, NothingToRetry, NotPermitted, UploadRefused, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import BinaryIO

    from dropbatch.client.stack import ObjectHead, Stack


@dataclass
class Submission:
    """A source on its way into the bucket.

    Attributes:
        stack: where it goes.
        source: as `Client.submit` takes it.
        key: of the upload.
        metadata: of the upload.
        size: in bytes; None if it is not known.
        template: the option, if it is given: which columns of a table are needed.
        in_place: whether it lies in the stack's source bucket and is read there.
        existed: whether it had its job already when it was sent.
    """

    stack: Stack
    source: object
    key: str
    metadata: Mapping[str, str] = field(repr=False)
    size: int | None
    _opened: Source | None
    _stream: BinaryIO | None
    template: object = None
    in_place: bool = False
    existed: bool = False

    @property
    def place(self) -> tuple[str, str]:
        """Bucket and key of what becomes a job.

        The upload's, or the source's if it is read where it lies.
        """
        if not self.in_place:
            return self.stack.bucket, self.key
        return self.stack.source_bucket, str(self.source).removeprefix(
            f"s3://{self.stack.source_bucket}/"
        )

    def check(self, read: Callable[[str], bytes | None]) -> None:
        """Check the options, and the beginning of the source, by the rules of the stack.

        Args:
            read: returns an object of the bucket, or None: `_options.json`.

        Raises:
            UsageError: the stack would refuse the options, the model or the path.
            UploadRefused: it would refuse the file.
        """
        opened = self.open()
        try:
            self._stream = _checked(self.stack, opened.stream, self.key, self.metadata, read)
        except (UploadRefused, UsageError) as error:
            if isinstance(self.source, str | PathLike):
                error.source = str(self.source)
            raise

    def send(self, progress: Callable[[int], None] = lambda _: None) -> Job:
        """Send it; return its job.

        Args:
            progress: called with each number of bytes sent, from several threads.

        Raises:
            Error: it failed; nothing of it is left in the bucket.
        """
        if self.in_place:
            return self._start(progress)
        opened = self.open()
        if opened.stored:
            what = opened.stored, opened.size or 0, self.key
            uploaded = copy(self.stack, *what, self.metadata, progress, etag=opened.etag)
        else:
            uploaded = upload(
                self.stack, self._stream or opened.stream, self.key, self.metadata, progress
            )
        return Job.of_upload(self.stack, uploaded)

    def _start(self, progress: Callable[[int], None]) -> Job:
        """Have the stack read the source where it lies, unless that has a job already."""
        uploaded = upload_in_place(self.stack, str(self.source))
        self.existed = Job.of_upload(self.stack, uploaded).exists()
        if not self.existed:
            start_in_place(self.stack, uploaded)
        progress(uploaded.size)
        return Job.of_upload(self.stack, uploaded)

    def open(self) -> Source:
        """The source, opened."""
        if self._opened is None:
            self._opened = _open(self.stack, self.source, self.template)
        return self._opened

    def close(self) -> None:
        """Close the source, unless the user has opened it."""
        if self._opened and not hasattr(self.source, "read"):
            self._opened.stream.close()
        self._opened = self._stream = None

    def release(self) -> None:
        """Close the source if it can be opened again.

        Of many files, only those that are sent are open.
        """
        if self.opens_again:
            self.close()

    @property
    def opens_again(self) -> bool:
        """Whether the source can be read twice: it is a file or lies in S3.

        A pipe gives its bytes once.
        """
        named = isinstance(self.source, str | PathLike)
        return named and (is_stored(self.source) or Path(self.source).is_file())  # type: ignore[arg-type]


def prepare(
    stack: Stack,
    source: object,
    name: str | None,
    options: Mapping[str, object],
) -> Submission:
    """Open a source; nothing is sent.

    Args:
        stack: where it is to go.
        source: as for `Client.submit`.
        name: as for `Client.submit`.
        options: as for `Client.submit`; None for one that is not set. With any, what lies in the
            source bucket is copied.

    Raises:
        UsageError: the source cannot be read, or the name or an option is wrong.
    """
    template = next(
        (value for name, value in options.items() if option_name(name) == "template"), None
    )
    opened = _open(stack, source, template)
    submission = Submission(stack, source, "", {}, opened.size, opened, None, template)
    try:
        given = {one: value for one, value in options.items() if value is not None}
        path = path_in_place(stack, str(source)) if opened.stored else None
        submission.in_place = path is not None and name in {None, path} and not given
        submission.key = upload_key(path if name is None else name, opened.name)
        own = metadata_of({**opened.options, **given})
        replaced = set(map(option_name, own))
        kept = opened.metadata.items()
        submission.metadata = {
            name: value for name, value in kept if option_name(name) not in replaced
        } | own
    except BaseException:
        submission.close()
        raise
    return submission


def _open(stack: Stack, source: object, template: object) -> Source:
    if isinstance(source, str) and is_stored(source):
        return open_stored(stack, source, template if isinstance(template, str) else "")
    return open_source(source, template)


def _checked(
    stack: Stack,
    stream: BinaryIO,
    key: str,
    metadata: Mapping[str, str],
    read: Callable[[str], bytes | None],
) -> BinaryIO:
    """The stream, after its beginning was read and checked.

    What AWS does not let the caller read may be an `_options.json`: then what seems wrong is only
    said.
    """
    blocks_, held, errors = (
        iter(lambda: stream.read(CHUNK_BYTES), b""),
        list[bytes](),
        list[UsageError](),
    )

    def kept() -> Iterator[bytes]:
        try:
            for block in blocks_:
                held.append(block)
                yield block
        except UsageError as error:  # Of the source: the check would take it for one of its own.
            errors.append(error)
            raise

    folder_options, is_known = None, True
    try:
        found = map(read, options_keys(key, names.INBOX))
        folder_options = next((one for one in found if one is not None), None)
    except NotPermitted:
        is_known = False
    try:
        check_beginning(
            kept(),
            names.upload_path(key),
            metadata,
            folder_options=folder_options,
            default_model=stack.default_model,
        )
    except (UploadRefused, UsageError) as error:
        if is_known:
            raise
        path = names.upload_path(key)
        warnings.warn(
            f"{path}: {error} It is sent, for its folder's _options.json may not be read, "
            "and may set this.",
            stacklevel=5,
        )
    if errors:
        raise errors[0]
    return stream_of(chain(held, blocks_))


def retry(job: Job, options: Mapping[str, object]) -> Uploaded:
    """Copy a job's retry file into `inbox/`, with its metadata.

    Warns of an earlier retry, and of an odd model.

    Args:
        job: it must be over.
        options: replace those of the job.

    Raises:
        NotFound: the job is not over, or none of its records can be tried again.
        UsageError: an option is unknown or has a wrong value, or the token is none.
    """
    given = metadata_of(options)
    manifest = job.manifest()
    files = [entry["name"] for entry in manifest["files"] if entry["kind"] == "retry"]
    if not files:
        failed = manifest["counts"]["failed"]
        why = "none of its failed records can be tried again" if failed else "no record failed"
        raise NothingToRetry(f"Job {job.id} has no retry file: {why}.")
    stack = job.stack
    source = job.folder + files[0]
    key = names.INBOX + retry_path(job.path, PurePosixPath(files[0]).suffix)
    _warn_of_another(job, key)
    if advice := model_advice(given.get("model") or manifest["model"] or ""):
        warnings.warn(advice, stacklevel=3)
    found = stack.ask("head_object", source)
    if found is None:
        raise NotFound(f"The retry file of job {job.id} was deleted.")
    metadata = {"retry-of": job.id} | found["Metadata"] | given
    return copy(
        stack, {"Bucket": stack.bucket, "Key": source}, found["ContentLength"], key, metadata
    )


def _warn_of_another(job: Job, key: str) -> None:
    """Warn if the job was retried, whether that retry is over or not."""
    others = retry_ids(job)
    with suppress(NotFound):
        newest = uploaded_as(job.stack, key, {})
        if newest.metadata.get("retry-of") == job.id:
            others.append(newest.job_id(job.stack.bucket))
    if others:
        warnings.warn(
            f"Job {job.id} is retried already, by job {others[-1]}. All its failed records "
            "are sent and billed again. "
            f"A retry of job {others[-1]} sends what that one leaves over.",
            stacklevel=4,
        )


def retry_path(path: str, suffix: str) -> str:
    """The path of a retry.

    The upload's, with `.retry` and the retry file's suffix in place of its own suffixes.

    It is shortened if it would be longer than paths may be.
    """
    folder, slash, name = path.rpartition("/")
    stem = name.removesuffix(".gz").removesuffix(".zst")
    stem = (stem.rpartition(".")[0] or stem).removesuffix(".retry")
    room = names.MAX_PATH_BYTES - len(f"{folder}{slash}.retry{suffix}".encode())
    return f"{folder}{slash}{stem.encode()[:room].decode(errors='ignore')}.retry{suffix}"


READS_AT_ONCE = 16
EVER = datetime.min.replace(tzinfo=UTC)


def find_existing(
    stack: Stack, submissions: Sequence[Submission], since: datetime = EVER
) -> dict[str, Uploaded]:
    """Find the uploads that need not be sent.

    A listing a page, and a call for each that may be the same.

    Args:
        stack: the stack.
        submissions: what is to be sent; each is read if an object of its size is found. What can be
            read once is always sent: nothing of it would be left. What the stack reads where it
            lies is never sent.
        since: uploads that are older do not count.

    Returns:
        The newest version of each that the bucket holds, by key.
    """
    by_key = {one.key: one for one in submissions if one.opens_again and not one.in_place}
    found: dict[str, Uploaded] = {}
    candidates = [
        by_key[key]
        for key, size in _listed(stack, by_key, since)
        if by_key[key].size in {None, size}
    ]
    for submission, same in at_once(
        lambda one: _same(stack, one, since), candidates, READS_AT_ONCE
    ):
        if same:
            found[submission.key] = same
    return found


def _listed(stack: Stack, by_key: Mapping[str, Any], since: datetime) -> list[tuple[str, int]]:
    """Those of some keys that exist, with their sizes."""
    if not by_key:
        return []
    first, last = min(by_key), max(by_key)
    found = []
    for page in pages_of(stack, common_prefix(first, last)):
        found += [
            (one["Key"], one["Size"])
            for one in page
            if one["Key"] in by_key and one["LastModified"] >= since
        ]
        if page and page[-1]["Key"] > last:
            break
    return found


def _same(stack: Stack, submission: Submission, since: datetime) -> Uploaded | None:
    answer = stack.ask("head_object", submission.key, ChecksumMode="ENABLED")
    if answer is None:
        return None
    head = head_of(answer)
    if head.modified < since or head.metadata != submission.metadata:
        return None
    opened = submission.open()
    try:
        if opened.stored:
            is_same = _is_copy(stack, submission, head)
        else:
            is_same = bool({head.etag, head.checksum} & _fingerprints(opened.stream))
    finally:
        submission.release()
    if not is_same:
        return None
    return Uploaded(
        submission.key, head.version, head.etag, head.modified, head.size, head.metadata
    )


def _is_copy(stack: Stack, submission: Submission, head: ObjectHead) -> bool:
    """Whether an object of the same size is a copy.

    Its digest says so or, where none does, its time.

    An object that is encrypted with a key of KMS, or was sent in parts, has an ETag that is no
    digest of its content.
    """
    source = find_object(stack, str(submission.source))[1]
    digests = _digest_of(source), _digest_of(head)
    return digests[0] == digests[1] if all(digests) else source.modified <= head.modified


def _digest_of(head: ObjectHead) -> str:
    """What the ETag of an object says of its whole content, as if it was sent in one part.

    Empty if nothing.
    """
    if head.is_kms or not (matched := re.fullmatch(r"([0-9a-f]{32})(-1)?", head.etag)):
        return ""
    whole, in_part = matched.groups()
    return (
        head.etag
        if in_part
        else f"{hashlib.md5(bytes.fromhex(whole), usedforsecurity=False).hexdigest()}-1"
    )


def _fingerprints(stream: BinaryIO) -> set[str]:
    """The ETags and checksums that S3 may show for these bytes.

    Sent by one call, or in parts as by `upload`.
    """
    whole, parts, checksums, crc, count = hashlib.md5(usedforsecurity=False), b"", b"", 0, 0
    while part := stream.read(PART_BYTES):
        whole.update(part)
        parts += hashlib.md5(part, usedforsecurity=False).digest()
        checksums += zlib.crc32(part).to_bytes(4, "big")
        crc = zlib.crc32(part, crc)
        count += 1
    return {
        whole.hexdigest(),
        f"{hashlib.md5(parts, usedforsecurity=False).hexdigest()}-{count}",
        base64.b64encode(crc.to_bytes(4, "big")).decode(),
        f"{base64.b64encode(zlib.crc32(checksums).to_bytes(4, 'big')).decode()}-{count}",
    }


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
        or names_table(key)
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

"""Submitting: a source is opened, checked by the rules of the stack, and sent, each by itself.

So many sources can all be checked before the first is sent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from dropbatch.client import aws
from dropbatch.client.check import Checked, check_beginning
from dropbatch.client.job import Job
from dropbatch.client.sources import (
    CHUNK_BYTES,
    Source,
    given_options,
    is_stored,
    names_table,
    open_source,
    stream_of,
)
from dropbatch.client.stack import S3, Stack, common_prefix, find_object, pages_of
from dropbatch.client.threads import at_once
from dropbatch.client.upload import Uploaded, copy, upload, upload_key, uploaded_of
from dropbatch.core import names
from dropbatch.core.options import metadata_of, option_name, options_keys, with_room
from dropbatch.errors import NotPermitted, UploadRefused, UsageError

DIGEST = "source-digest"
"""Metadata of an upload: what tells its source's content from another."""
EVER = datetime.min.replace(tzinfo=UTC)


@dataclass
class Submission:
    """A source on its way into the bucket.

    Attributes:
        metadata: of the upload, without its digest.
        template: the option, if it is given: which columns of a table are needed.
        in_place: whether it lies in the stack's source bucket and is read there.
        existed: whether it had its job already when it was sent.
        notes: what of it is not sent.
        checked: what the check has found.
    """

    stack: Stack
    source: object
    key: str
    metadata: Mapping[str, str] = field(repr=False)
    size: int | None
    _opened: Source | None
    _stream: BinaryIO | None = None
    template: object = None
    in_place: bool = False
    existed: bool = False
    notes: Sequence[str] = ()
    checked: Checked = field(default_factory=Checked)

    @property
    def place(self) -> tuple[str, str]:
        """Bucket and key of what becomes a job: the upload's, or those of what is read in place."""
        if not self.in_place:
            return self.stack.bucket, self.key
        bucket = self.stack.source_bucket
        return bucket, str(self.source).removeprefix(f"{S3}{bucket}/")

    @cached_property
    def digest(self) -> str:
        """What tells the source's content from another; empty of one that can be read once."""
        if not self.opens_again:
            return ""
        if is_stored(self.source):
            return self.open().digest
        path = Path(str(self.source))
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error

    def metadata_with_digest(self) -> dict[str, str]:
        """The metadata that the upload has in the bucket; the whole source is read for it."""
        return {**self.metadata, **({DIGEST: self.digest} if self.digest else {})}

    def check(self, read: Callable[[str], bytes | None]) -> list[str]:
        """Check the options and the beginning; what is odd, and what is not sent.

        `read` returns an object of the bucket, or None: `_options.json`.
        """
        beginning = _Beginning(self.open().stream)
        try:
            notes = self._odd(beginning.blocks(), read)
            if beginning.error:
                raise beginning.error
        except (UploadRefused, UsageError) as error:
            if isinstance(self.source, str | PathLike):
                error.source = str(self.source)
            raise
        self._stream = beginning.again()
        return [*self.notes, *notes]

    def _odd(self, blocks: Iterable[bytes], read: Callable[[str], bytes | None]) -> list[str]:
        """What is odd; if `_options.json` may not be read, what seems wrong too."""
        path = names.upload_path(self.key)
        folder_options, is_known = None, True
        try:
            found = map(read, options_keys(self.key))
            folder_options = next((one for one in found if one is not None), None)
        except NotPermitted:
            is_known = False
        known: dict[str, Any] = {
            "folder_options": folder_options,
            "default_model": self.stack.default_model,
        }
        try:
            self.checked = check_beginning(blocks, path, self.metadata, **known)
        except (UploadRefused, UsageError) as error:
            if is_known:
                raise
            why = "for its folder's _options.json may not be read, and may set this"
            return [f"{path}: {error} It is sent, {why}."]
        return self.checked.notes

    def send(self, progress: Callable[[int], None] = lambda _: None) -> Job:
        """Send it; return its job."""
        if self.in_place:
            return self._start(progress)
        opened = self.open()
        metadata = self.metadata_with_digest()
        if opened.stored:
            what = opened.stored, opened.size or 0, self.key
            uploaded = copy(self.stack, *what, metadata, progress, etag=opened.etag)
        else:
            stream = self._stream or opened.stream
            uploaded = upload(self.stack, stream, self.key, metadata, progress)
        return Job.of_upload(self.stack, uploaded)

    def _start(self, progress: Callable[[int], None]) -> Job:
        uploaded = upload_in_place(self.stack, str(self.source))
        job = Job.of_upload(self.stack, uploaded)
        self.existed = job.resolved().uploaded is None  # A job that is found drops it.
        if not self.existed:
            start_in_place(self.stack, uploaded)
        progress(uploaded.size)
        return job

    def open(self) -> Source:
        """The source, opened."""
        if self._opened is None:
            self._opened = open_source(self.source, self.template, self.stack)
        return self._opened

    def close(self) -> None:
        """Close the source, unless the user has opened it."""
        if self._opened and not hasattr(self.source, "read"):
            self._opened.stream.close()
        self._opened = self._stream = None

    def release(self) -> None:
        """Close the source if it can be opened again: of many files, only those sent are open."""
        if self.opens_again:
            self.close()

    @property
    def opens_again(self) -> bool:
        """Whether the source can be read twice: a file, or an object of S3; a pipe cannot."""
        if not isinstance(self.source, str | PathLike):
            return False
        return is_stored(self.source) or Path(self.source).is_file()


class _Beginning:
    """A stream whose beginning is read for a check, and then again from its first byte."""

    def __init__(self, stream: BinaryIO) -> None:
        self._left = iter(lambda: stream.read(CHUNK_BYTES), b"")
        self._held = list[bytes]()
        self.error: UsageError | None = None
        """What reading the source raised: `check_beginning` passes over it, as over its own."""

    def blocks(self) -> Iterator[bytes]:
        try:
            for block in self._left:
                self._held.append(block)
                yield block
        except UsageError as error:
            self.error = error
            raise

    def again(self) -> BinaryIO:
        return stream_of(chain(self._held, self._left))


def prepare(
    stack: Stack, source: object, name: str | None, options: Mapping[str, object]
) -> Submission:
    """Open a source; nothing is sent."""
    given = given_options(options)
    template = next((given[one] for one in given if option_name(one) == "template"), None)
    opened = open_source(source, template, stack)
    try:
        path = path_in_place(stack, str(source)) if opened.stored else None
        own = metadata_of({**opened.options, **given})
        replaced = set(map(option_name, own))
        kept = {
            one: value for one, value in opened.metadata.items() if option_name(one) not in replaced
        }
        return Submission(
            stack,
            source,
            upload_key(path if name is None else name, opened.name),
            kept | own,
            opened.size,
            opened,
            template=template,
            # With another name or options, a copy of it is sent.
            in_place=path is not None and name in {None, path} and not given,
            notes=opened.notes,
        )
    except BaseException:
        if not hasattr(source, "read"):
            opened.stream.close()
        raise


def find_existing(
    stack: Stack, submissions: Sequence[Submission], since: datetime = EVER
) -> dict[str, Uploaded]:
    """Find the uploads that need not be sent: the same path, options and content.

    A listing a page, and a call for each that may be the same. A pipe is always sent.
    """
    by_key = {one.key: one for one in submissions if one.opens_again and not one.in_place}

    def found_if_same(key: str) -> Uploaded | None:
        answer = stack.ask("head_object", key)
        if answer is None:
            return None
        found = uploaded_of(key, answer)
        wanted, _ = with_room(by_key[key].metadata_with_digest())
        by_key[key].release()
        return found if found.modified >= since and found.metadata == wanted else None

    listed = _listed(stack, by_key, since)
    return {key: found for key, found in at_once(found_if_same, listed) if found}


def _listed(stack: Stack, by_key: Mapping[str, Submission], since: datetime) -> Iterator[str]:
    if not by_key:
        return
    first, last = min(by_key), max(by_key)
    for page in pages_of(stack, common_prefix(first, last)):
        for one in page:
            wanted = by_key.get(one["Key"])
            if wanted and one["LastModified"] >= since and wanted.size in {None, one["Size"]}:
                yield wanted.key
        if page and page[-1]["Key"] > last:
            return


def path_in_place(stack: Stack, url: str) -> str | None:
    """The path under `inbox/` of an object of the source bucket; None if it is not read there."""
    bucket, _, key = url.removeprefix(S3).partition("/")
    is_source = bucket and bucket == stack.source_bucket and key.startswith(stack.source_prefix)
    if not is_source or names_table(key):
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
    """Tell the stack of an object of its source bucket, as EventBridge does: one job a version."""
    version = {"version-id": upload.version} if upload.version != "null" else {}
    event = {
        "source": "aws.s3",
        "detail-type": "Object Created",
        "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "detail": {
            "bucket": {"name": upload.bucket},
            "object": {"key": upload.object_key, **version},
        },
    }
    queue = stack.outputs["UploadQueueUrl"]
    with aws.explained():
        stack.service("sqs").send_message(QueueUrl=queue, MessageBody=json.dumps(event))

"""Submitting: a source is opened, checked by the rules of the stack, and sent. Each step by itself.

So that many sources can all be checked before the first is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, BinaryIO

from dropbatch.client.check import check_beginning
from dropbatch.client.job import Job
from dropbatch.client.sources import CHUNK_BYTES, Source, open_source, stream_of
from dropbatch.client.transfer.objects import blocks, head_of
from dropbatch.client.uploads import copy, upload, upload_key
from dropbatch.core import keys
from dropbatch.core.options import metadata_of, options_keys
from dropbatch.core.task_token import token_metadata, without_task_token
from dropbatch.errors import NotFound, NotPermitted, UploadRefused, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dropbatch.client.stack import Stack
    from dropbatch.client.transfer.objects import ObjectHead

S3 = "s3://"


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
    """

    stack: Stack
    source: object
    key: str
    metadata: Mapping[str, str] = field(repr=False)
    size: int | None
    _opened: Source | None
    _stream: BinaryIO | None
    template: object = None

    @property
    def is_stored(self) -> bool:
        """Whether the source lies in S3."""
        return is_stored(self.source)

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
        opened = self.open()
        if opened.stored:
            uploaded = copy(self.stack, opened.stored, opened.size or 0, self.key, self.metadata, progress)
        else:
            uploaded = upload(self.stack, self._stream or opened.stream, self.key, self.metadata, progress)
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
        """Close the source if it can be opened again: of many files, only those that are sent are open."""
        if self.is_stored or (isinstance(self.source, str | PathLike) and self.size is not None):
            self.close()


def prepare(
    stack: Stack,
    source: object,
    name: str | None,
    options: Mapping[str, object],
    folder: str = keys.INBOX,
    task_token: str | None = None,
) -> Submission:
    """Open a source; nothing is sent.

    Args:
        stack: where it is to go.
        source: as for `Client.submit`.
        name: as for `Client.submit`.
        options: as for `Client.submit`; None for one that is not set.
        folder: `inbox/` or `validate/`.
        task_token: as for `Client.submit`.

    Raises:
        UsageError: the source cannot be read, or the name, an option or the token is wrong.
    """
    template = options.get("template")
    opened = _open(stack, source, template)
    submission = Submission(stack, source, "", {}, opened.size, opened, None, template)
    try:
        submission.key = upload_key(name, opened.name, folder)
        given = {one: value for one, value in options.items() if value is not None}
        own = metadata_of({**opened.options, **given}, token_metadata(task_token))
        submission.metadata = without_task_token(opened.metadata) | own
    except BaseException:
        submission.close()
        raise
    return submission


def is_stored(source: object) -> bool:
    """Whether a source is named as an object of S3."""
    return isinstance(source, str) and source.startswith(S3)


def _open(stack: Stack, source: object, template: object) -> Source:
    if not isinstance(source, str) or not is_stored(source):
        return open_source(source, template)
    bucket, head = find_object(stack, source)
    key = source.removeprefix(S3).partition("/")[2]
    place = {"Bucket": bucket, "Key": key} | ({"VersionId": head.version} if head.version != "null" else {})
    pinned = place if head.version != "null" else place | {"IfMatch": f'"{head.etag}"'}
    stream = stream_of(blocks(stack.s3, pinned, head.size))
    return Source(key.rpartition("/")[2], stream, head.size, stored=place, metadata=head.metadata)


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


def _checked(
    stack: Stack,
    stream: BinaryIO,
    key: str,
    metadata: Mapping[str, str],
    read: Callable[[str], bytes | None],
) -> BinaryIO:
    """The stream, after its beginning was read and checked."""
    blocks_, held, errors = iter(lambda: stream.read(CHUNK_BYTES), b""), list[bytes](), list[UsageError]()

    def kept() -> Iterator[bytes]:
        try:
            for block in blocks_:
                held.append(block)
                yield block
        except UsageError as error:  # Of the source: the check would take it for one of its own.
            errors.append(error)
            raise

    try:
        folder_options = next(filter(None, map(read, options_keys(key, keys.INBOX))), None)
    except NotPermitted:
        folder_options = None
    default = stack.default_model
    check_beginning(kept(), keys.upload_path(key), metadata, folder_options=folder_options, default_model=default)
    if errors:
        raise errors[0]
    return stream_of(chain(held, blocks_))

"""Submitting: a source is opened, checked by the rules of the stack, and sent. Each step by itself.

So that many sources can all be checked before the first is sent.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from dropbatch.client.check import check_beginning
from dropbatch.client.job import Job
from dropbatch.client.sources import CHUNK_BYTES, Source, open_source, stream_of
from dropbatch.client.transfer.stored import (
    is_stored,
    open_stored,
    path_in_place,
    start_in_place,
    upload_in_place,
)
from dropbatch.client.uploads import copy, upload, upload_key
from dropbatch.core import names
from dropbatch.core.options import metadata_of, option_name, options_keys
from dropbatch.core.task_token import token_metadata, without_task_token
from dropbatch.errors import NotPermitted, UploadRefused, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from dropbatch.client.stack import Stack


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
    task_token: str | None = None,
) -> Submission:
    """Open a source; nothing is sent.

    Args:
        stack: where it is to go.
        source: as for `Client.submit`.
        name: as for `Client.submit`.
        options: as for `Client.submit`; None for one that is not set. With any, what lies in the
            source bucket is copied.
        task_token: as for `Client.submit`.

    Raises:
        UsageError: the source cannot be read, or the name, an option or the token is wrong.
    """
    template = next(
        (value for name, value in options.items() if option_name(name) == "template"), None
    )
    opened = _open(stack, source, template)
    submission = Submission(stack, source, "", {}, opened.size, opened, None, template)
    try:
        given = {one: value for one, value in options.items() if value is not None}
        path = path_in_place(stack, str(source)) if opened.stored else None
        as_it_lies = not given and task_token is None
        submission.in_place = path is not None and name in {None, path} and as_it_lies
        submission.key = upload_key(path if name is None else name, opened.name)
        own = metadata_of({**opened.options, **given}, token_metadata(task_token))
        replaced = set(map(option_name, own))
        kept = without_task_token(opened.metadata).items()
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
            catalog=stack.catalog,
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

"""The library's entry: a stack, and what a user does with it."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from dropbatch.client import aws
from dropbatch.client.find_jobs import find_job, history, time_of
from dropbatch.client.job import Job
from dropbatch.client.sources import CHUNK_BYTES, open_source, stream_of
from dropbatch.client.stack import find_stack
from dropbatch.client.uploads import upload, upload_key
from dropbatch.core import keys
from dropbatch.core.options import metadata_of, options_keys
from dropbatch.errors import NotPermitted, UploadRefused, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import date


class Client:
    """A deployed stack.

    Args:
        stack: its name in CloudFormation.
        local: use the stack that `make up` left running on this machine instead.
        region: the AWS region; as boto3 finds it if not given.
        profile: the AWS profile; as boto3 finds it if not given.

    Raises:
        NotFound: there is no such stack.
        NotPermitted: AWS denied the call, or has no valid credentials.
    """

    def __init__(
        self, stack: str = "dropbatch", *, local: bool = False, region: str | None = None, profile: str | None = None
    ) -> None:
        self.stack = find_stack(stack, local=local, region=region, profile=profile)

    def submit(
        self,
        source: str | PathLike[str] | BinaryIO | Iterable[Mapping[str, Any]] | object,
        *,
        name: str | None = None,
        progress: Callable[[int], None] = lambda _: None,
        check: bool = True,
        **options: object,
    ) -> Job:
        """Upload requests; the stack makes a job of them within seconds.

        Args:
            source: a path, a binary file, an iterable of dicts, or a frame of pandas, polars or pyarrow.
            name: the path under `inbox/`; if it ends in a slash, the folder. The file's name if not given.
            progress: called with each number of bytes sent.
            check: check the options and the first 12 MB before anything is sent, by the rules of the stack. A file of
                whose first 1,000 records none can be sent is refused; of other bad ones among them, and of a
                model that is not known or takes no batches, you are warned.
            options: such as `model`, `template`, `max_cost`; see the list in docs/options.md.

        Returns:
            The job. Its id is known, also before the stack has created it.

        Raises:
            UsageError: the source, the name or an option is wrong.
            UploadRefused: the stack would refuse the upload.
            NotPermitted: AWS denied the upload.
        """
        return self._upload(keys.INBOX, source, name, progress, options, check=check)

    def validate(self, source: object, *, name: str | None = None, **options: object) -> dict[str, Any]:
        """Check requests as the stack reads them; nothing is sent to Workers AI. Waits for the report.

        Args:
            source: as for `submit`.
            name: as for `submit`: which `_options.json` holds depends on it.
            options: as for `submit`.

        Returns:
            The report, as in `report.json`.

        Raises:
            Error: there is no report after an hour.
        """
        from dropbatch.client.waiting import wait_for_report

        return wait_for_report(self._upload(keys.VALIDATE, source, name, lambda _: None, options))

    def _upload(
        self,
        folder: str,
        source: object,
        name: str | None,
        progress: Callable[[int], None],
        options: Mapping[str, object],
        *,
        check: bool = False,
    ) -> Job:
        opened = open_source(source, options.get("template"))
        with nullcontext() if opened.stream is source else opened.stream:
            key = upload_key(name, opened.name, folder)
            given = {one: value for one, value in options.items() if value is not None}
            metadata = metadata_of({**opened.options, **given})
            stream = opened.stream
            try:
                stream = self._checked(stream, key, metadata) if check else stream
            except (UploadRefused, UsageError) as error:
                if isinstance(source, str | PathLike):
                    error.args = (f"{source}: {error}",)
                raise
            return Job.of_upload(self.stack, upload(self.stack, stream, key, metadata, progress))

    def _checked(self, stream: BinaryIO, key: str, metadata: Mapping[str, str]) -> BinaryIO:
        """The stream, after its beginning was read and checked."""
        from dropbatch.client.check import check_beginning

        blocks, read, errors = iter(lambda: stream.read(CHUNK_BYTES), b""), list[bytes](), list[UsageError]()

        def kept() -> Iterator[bytes]:
            try:
                for block in blocks:
                    read.append(block)
                    yield block
            except UsageError as error:  # Of the source: the check would take it for one of its own.
                errors.append(error)
                raise

        try:
            folder_options = next(filter(None, map(self.stack.read, options_keys(key, keys.INBOX))), None)
        except NotPermitted:
            folder_options = None
        default = self.stack.default_model
        check_beginning(kept(), keys.upload_path(key), metadata, folder_options=folder_options, default_model=default)
        if errors:
            raise errors[0]
        return stream_of(chain(read, blocks))

    def job(self, name: str) -> Job:
        """The job with an id, or the newest of an upload's path, or the job of a result's key.

        Raises:
            NotFound: there is no such job.
        """
        return find_job(self.stack, name)

    def jobs(self, since: str | date = "7d") -> Iterator[Job]:
        """Jobs created since a time, oldest first.

        Args:
            since: a date or datetime, or text such as `30m`, `12h`, `7d`, `2w` or `2026-11-21`.

        Raises:
            UsageError: it is no time.
        """
        return (job for job, _ in history(self.stack, time_of(since)))

    def pause(self) -> None:
        """Submit nothing more, for all jobs; accepted batches are collected. Only operators may do this."""
        self._command("pause")

    def resume(self) -> None:
        """Resume the paused stack. Only operators may do this."""
        self._command("run")

    def _command(self, word: Literal["run", "pause"]) -> None:
        with aws.explained():
            self.stack.s3.put_object(Bucket=self.stack.bucket, Key=keys.STACK_CONTROL, Body=word.encode())

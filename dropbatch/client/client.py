"""The library's entry: a stack, and what a user does with it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import date
from os import PathLike
from typing import Any, BinaryIO, Literal, Unpack

from dropbatch.client import aws
from dropbatch.client.find import find_job, history, jobs_under, time_of
from dropbatch.client.job import Job, JobOptions
from dropbatch.client.stack import find_stack
from dropbatch.client.submit import prepare
from dropbatch.core import names
from dropbatch.errors import UsageError


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
        self,
        stack: str = "dropbatch",
        *,
        local: bool = False,
        region: str | None = None,
        profile: str | None = None,
    ) -> None:
        self.stack = find_stack(stack, local=local, region=region, profile=profile)

    def __repr__(self) -> str:
        return f"<Client {self.stack.name} s3://{self.stack.bucket}>"

    def submit(
        self,
        source: str
        | PathLike[str]
        | BinaryIO
        | Iterable[Mapping[str, Any]]
        | Iterable[str]
        | object,
        *,
        name: str | None = None,
        progress: Callable[[int], None] = lambda _: None,
        check: bool = True,
        **options: Unpack[JobOptions],
    ) -> Job:
        """Upload requests; the stack makes a job of them within seconds.

        Args:
            source: a path; `s3://bucket/key`, copied on S3's side, or read where it lies if that is
                the stack's source bucket; a binary file; an iterable of dicts or of texts; or a
                frame of pandas, polars or pyarrow, or a series of texts.
            name: the path under `inbox/`; if it ends in a slash, the folder. The file's name if not
                given.
            progress: called with each number of bytes sent.
            check: check the options and the first 12 MB before anything is sent, by the rules of
                the stack. A file of whose first 1,000 records none can be sent is refused; of other
                bad ones among them, and of a model that takes no batches, you are
                warned.
            options: such as `model`, `template`, `max_cost`; see the list in docs/options.md.

        Returns:
            The job. Its id is known, also before the stack has created it.

        Raises:
            UsageError: the source, the name or an option is wrong.
            UploadRefused: the stack would refuse the upload.
            NotPermitted: AWS denied the upload.
        """
        submission = prepare(self.stack, source, name, options)
        is_empty = isinstance(source, Sized) and not isinstance(source, str) and not len(source)
        try:
            if submission.size == 0 or is_empty:
                raise UsageError("There is nothing to submit: the source has no records.")
            notes = submission.check(self.stack.read) if check else submission.notes
            for note in notes:
                warnings.warn(note, stacklevel=2)
            return submission.send(progress)
        finally:
            submission.close()

    def validate(
        self, source: object, *, name: str | None = None, **options: Unpack[JobOptions]
    ) -> dict[str, Any]:
        """Check requests as the stack reads them, on this machine; nothing is sent.

        Args:
            source: as for `submit`.
            name: as for `submit`: which `_options.json` holds depends on it.
            options: as for `submit`.

        Returns:
            The report.

        Raises:
            UsageError: an option is wrong, or the source cannot be read.
        """
        from dropbatch.client.validate import validate

        return validate(source, name, options, stack=self.stack)

    def job(self, name: str) -> Job:
        """The job with an id, or the newest of an upload's path, or the job of a result's key.

        Raises:
            NotFound: there is no such job.
        """
        return find_job(self.stack, name)

    def jobs(self, since: str | date | None = None, *, prefix: str = "") -> Iterator[Job]:
        """Jobs, oldest first; with a prefix, by path, those of one path oldest first.

        Args:
            since: only jobs created since then: a date or datetime, or text such as `30m`, `12h`,
                `7d`, `2w` or `2026-11-21`. The last seven days if neither this nor a prefix is
                given.
            prefix: only jobs whose path begins with it, such as `reviews/`.

        Raises:
            UsageError: it is no time.
        """
        if not prefix:
            return (
                job for job, _ in history(self.stack, time_of("7d" if since is None else since))
            )
        after = "" if since is None else f"{time_of(since):%Y%m%dT%H%M%SZ}"
        return (job for job in jobs_under(self.stack, prefix) if job.id >= after)

    def pause(self) -> None:
        """Submit nothing more, for all jobs; accepted batches are collected.

        Only operators may do this.
        """
        self._command("pause")

    def resume(self) -> None:
        """Resume the paused stack. Only operators may do this."""
        self._command("run")

    def _command(self, word: Literal["run", "pause"]) -> None:
        with aws.explained():
            self.stack.s3.put_object(
                Bucket=self.stack.bucket, Key=names.STACK_CONTROL, Body=word.encode()
            )

"""The library's entry: a stack, and what a user does with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dropbatch import aws
from dropbatch import names as keys
from dropbatch.jobs import find_job, history
from dropbatch.stack import find_stack

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from dropbatch.job import Job


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

    def job(self, name: str) -> Job:
        """The job with an id, or the newest of an upload's path, or the job of a result's key.

        Raises:
            NotFound: there is no such job.
        """
        return find_job(self.stack, name)

    def jobs(self, since: datetime) -> Iterator[Job]:
        """Jobs created since a time, oldest first."""
        for job, _ in history(self.stack, since):
            yield job

    def pause(self) -> None:
        """Submit nothing more, for all jobs; accepted batches are collected. Only operators may do this."""
        self._command("pause")

    def resume(self) -> None:
        """Resume the paused stack. Only operators may do this."""
        self._command("run")

    def _command(self, word: Literal["run", "pause"]) -> None:
        with aws.explained():
            self.stack.s3.put_object(Bucket=self.stack.bucket, Key=keys.STACK_CONTROL, Body=word.encode())

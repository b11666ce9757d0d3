"""Control objects: one word in an object, which the stack reads and obeys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dropbatch import aws

if TYPE_CHECKING:
    from dropbatch.stack import Stack


def control_job(stack: Stack, job_id: str, word: Literal["run", "pause", "cancel", "cancel now"]) -> None:
    """Write a job's control object."""
    _put(stack, f"control/jobs/{job_id}", word)


def control_stack(stack: Stack, word: Literal["run", "pause"]) -> None:
    """Write the stack's control object; only operators may do this."""
    _put(stack, "control/stack", word)


def _put(stack: Stack, key: str, word: str) -> None:
    with aws.explained():
        stack.s3.put_object(Bucket=stack.bucket, Key=key, Body=word.encode())

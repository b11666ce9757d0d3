"""Uploading files: key, metadata, and the version that S3 created."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dropbatch import aws
from dropbatch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dropbatch.stack import Stack


@dataclass(frozen=True)
class Uploaded:
    """One version of an upload: the path under its folder, the version, the ETag without quotes."""

    path: str
    version: str
    etag: str


def upload(
    stack: Stack,
    file: Path,
    path: str,
    metadata: Mapping[str, str],
    *,
    folder: str = "inbox",
    progress: Callable[[int], None],
) -> Uploaded:
    """Upload a file, a large one in parts.

    Args:
        stack: the stack.
        file: on this machine.
        path: under the folder.
        metadata: of the new object.
        folder: `inbox`, or `validate` to only check it.
        progress: called with each number of bytes sent.

    Raises:
        Error: the file cannot be read, or AWS denied the upload, or it failed.
    """
    try:
        with aws.explained(), answers_of(stack, "PutObject", "CompleteMultipartUpload") as answers:
            stack.s3.upload_file(
                str(file), stack.bucket, f"{folder}/{path}", ExtraArgs={"Metadata": dict(metadata)}, Callback=progress
            )
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from error
    return uploaded_as(path, answers)


@contextmanager
def answers_of(stack: Stack, *operations: str) -> Iterator[list[dict[str, Any]]]:
    """Collect S3's answers to some operations: boto3's transfers do not return them, and only they have the version."""
    answers: list[dict[str, Any]] = []
    events = stack.s3.meta.events
    for operation in operations:
        events.register(
            f"after-call.s3.{operation}", lambda parsed, **_: answers.append(parsed), unique_id=f"dropbatch-{operation}"
        )
    try:
        yield answers
    finally:
        for operation in operations:
            events.unregister(f"after-call.s3.{operation}", unique_id=f"dropbatch-{operation}")


def uploaded_as(path: str, answers: list[dict[str, Any]]) -> Uploaded:
    """The version that S3's last answer names."""
    answer = answers[-1]
    etag: str = answer.get("ETag") or answer["CopyObjectResult"]["ETag"]
    return Uploaded(path, answer.get("VersionId", "null"), etag.strip('"'))

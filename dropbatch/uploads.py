"""Uploading files: key, metadata, and the version that S3 created."""

from __future__ import annotations

import difflib
from contextlib import contextmanager
from dataclasses import dataclass
from email.header import Header
from typing import TYPE_CHECKING, Any

from dropbatch import aws
from dropbatch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from dropbatch.stack import Stack

OPTIONS = (
    *("model", "format", "template", "delimiter", "system", "defaults"),
    *("deadline-hours", "max-failed-fraction", "max-cost", "tags"),
)
"""The members of an upload's metadata that Dropbatch reads."""
MAX_METADATA_BYTES = 2_048
"""S3's limit for one object."""


@dataclass(frozen=True)
class Uploaded:
    """One version of an upload: the path under its folder, the version, the ETag without quotes."""

    path: str
    version: str
    etag: str


def metadata_of(options: Mapping[str, str]) -> dict[str, str]:
    """Options as S3 metadata: non-ASCII text becomes encoded words (RFC 2047), as S3's own tools write it.

    Raises:
        Error: an option is unknown, or all of them together are too large.
    """
    for name in options:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, 1)
            meant = f" Did you mean {near[0]!r}?" if near else f" The options are {', '.join(OPTIONS)}."
            raise UsageError(f"There is no option {name!r}.{meant}")
    encoded = {name: _encoded(value) for name, value in options.items()}
    size = sum(len(name) + len(value) for name, value in encoded.items())
    if size > MAX_METADATA_BYTES:
        raise UsageError(
            f"The options take {size:,} bytes, and S3 allows {MAX_METADATA_BYTES:,} for an object. "
            "Put them in an _options.json in the upload's folder.",
        )
    return encoded


def _encoded(value: str) -> str:
    plain = value.isascii() and value.isprintable() and value == value.strip() and not value.startswith("=?")
    return value if plain else Header(value, "utf-8", maxlinelen=100_000).encode(linesep="")


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

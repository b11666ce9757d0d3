"""The task token of an upload.

The secret with which its job is reported to an execution of AWS Step Functions.

It is no option: no object but the upload has it, and neither a retry nor a copy that Dropbatch
makes inherits it. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

TASK_TOKEN = "task_token"  # noqa: S105 - a name
"""Metadata of an upload, in any spelling."""
MAX_TOKEN = 1_024
"""Characters of a token: the metadata of an object has room for 2,048 bytes."""


def task_tokens(metadata: Mapping[str, str]) -> set[str]:
    """The tokens in an upload's metadata: more than one if two spellings differ."""
    given = {value.strip() for name, value in metadata.items() if _is_token(name)}
    return given - {""}


def without_task_token(metadata: Mapping[str, str]) -> dict[str, str]:
    """The metadata of a copy of an upload: its job is not the one that the execution waits for."""
    return {name: value for name, value in metadata.items() if not _is_token(name)}


def _is_token(name: str) -> bool:
    return name.strip().lower().replace("-", "_") == TASK_TOKEN


def token_metadata(token: str | None) -> dict[str, str]:
    """The metadata of an upload with this token, or without one.

    Raises:
        UsageError: it is no token; the message does not contain it.
    """
    if token is None:
        return {}
    if (
        not 0 < len(token) <= MAX_TOKEN
        or not token.isascii()
        or not token.isprintable()
        or " " in token
    ):
        raise UsageError(
            f"The task token must have 1 to {MAX_TOKEN:,} ASCII characters without blanks."
        )
    return {TASK_TOKEN.replace("_", "-"): token}

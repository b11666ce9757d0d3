"""Ids of files and batches, and where they are in the bucket. Pure.

An id holds the time at which it was made, counted backwards, so that S3's order of keys is newest
first. Only what has the form of an id becomes part of a key.
"""

from __future__ import annotations

import re
import secrets

FILES = "files/file-"
"""The prefix of uploaded files."""
BATCHES = "files/batches/"
MAX_KEY = "~"
"""Sorts after every id."""

_END_MS = 1 << 44
"""Unix milliseconds from which times count backwards: in the year 2527."""
_TIME_DIGITS = 11
_OWN = r"[0-9a-f]{27}"
_FILE_ID = re.compile(f"file-({_OWN})")
_RESULT_ID = re.compile(f"file-(output|error)-({_OWN})")
_BATCH_ID = re.compile(f"batch_({_OWN})")


def new_id(now: float) -> str:
    """What a new file's or batch's id ends in.

    Args:
        now: Unix seconds.
    """
    return f"{_END_MS - int(now * 1000):0{_TIME_DIGITS}x}{secrets.token_hex(8)}"


def created_at(any_id: str) -> int:
    """When a file or a batch was created, in Unix seconds."""
    digits = any_id.replace("_", "-").rpartition("-")[2][:_TIME_DIGITS]
    return (_END_MS - int(digits, 16)) // 1000


def is_file(file_id: str) -> bool:
    """Whether this is the id of an uploaded file."""
    return _FILE_ID.fullmatch(file_id) is not None


def is_batch(batch_id: str) -> bool:
    """Whether this is the id of a batch."""
    return _BATCH_ID.fullmatch(batch_id) is not None


def is_any(given: str) -> bool:
    """Whether this is the id of a file, of a file of results, or of a batch."""
    return is_file(given) or is_batch(given) or batch_of_result(given) is not None


def file_key(file_id: str) -> str:
    """The key of an uploaded file."""
    return f"files/{file_id}"


def batch_key(batch_id: str) -> str:
    """The key of a batch's record."""
    return f"{BATCHES}{batch_id}.json"


def upload_path(batch_id: str) -> str:
    """The path under `inbox/` of a batch's upload."""
    return f"openai/{batch_id}.jsonl"


def result_file(batch_id: str, kind: str) -> str:
    """The id of a batch's file of answers (`output`) or of failures (`error`)."""
    return f"file-{kind}-{batch_id.removeprefix('batch_')}"


def batch_of_result(file_id: str) -> tuple[str, str] | None:
    """The batch and the kind of a file of results; None if this is no such id."""
    matched = _RESULT_ID.fullmatch(file_id)
    return (f"batch_{matched[2]}", matched[1]) if matched else None

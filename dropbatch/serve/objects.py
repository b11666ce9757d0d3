"""Ids, keys, errors, and the objects of files and batches as OpenAI's API shows them. Pure.

An id holds the time at which it was made, counted backwards, so that S3's order of keys is newest
first. Only what has the form of an id becomes part of a key.
"""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from typing import Any

import msgspec

from dropbatch.core.names import JobState
from dropbatch.errors import Error, NotFound, NotPermitted

SERVER_ERROR = 500


class ApiError(Exception):
    """A request that is not carried out; `param` is at fault, `code` is a word for programs."""

    def __init__(
        self, status: int, message: str, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        """The response's object."""
        kind = "server_error" if self.status >= SERVER_ERROR else "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


def wrong(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """The error for a parameter or a member with a wrong value."""
    return ApiError(400, message, param, code)


def no_such(kind: str, its_id: str, param: str = "id") -> ApiError:
    """The error for an unknown file or batch."""
    return ApiError(404, f"No such {kind} object: {its_id[:100]}", param, "not_found")


def of_library(error: Error) -> ApiError:
    """The error for one of the library's: AWS failed or denied a call."""
    if isinstance(error, NotFound):
        return ApiError(404, str(error), None, "not_found")
    if isinstance(error, NotPermitted):
        return ApiError(SERVER_ERROR, str(error), None, "not_permitted")
    return ApiError(503, str(error), None, "service_unavailable")


FILES = "files/file-"
"""The prefix of uploaded files."""
BATCHES = "files/batches/"
_END_MS = 1 << 44
"""Unix milliseconds from which times count backwards: in the year 2527."""
_TIME_DIGITS = 11
_OWN = r"[0-9a-f]{27}"
_FILE_ID = re.compile(f"file-({_OWN})")
_RESULT_ID = re.compile(f"file-(output|error)-({_OWN})")
_BATCH_ID = re.compile(f"batch_({_OWN})")


def new_id(now: float) -> str:
    """What the id of a new file or batch ends in; `now` is in Unix seconds."""
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


FINAL_STATUSES = frozenset({"completed", "failed", "expired", "cancelled"})
_STATUSES = {
    JobState.SPLITTING: "validating",
    JobState.IN_PROGRESS: "in_progress",
    JobState.FINALIZING: "finalizing",
}
NO_MODEL = (
    "No model was named. Start the server with a model, as in DROPBATCH_MODEL; or name one of "
    "Workers AI's (@cf/…) in metadata.model or in the file; or set the stack's DefaultModel. "
    "Other vendors' names do not count."
)


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch as it is stored; times are Unix seconds.

    Attributes:
        model: if the metadata names one.
        deleted: kinds of its result files that were deleted.
        unstarted: whether its upload failed, which the client was told.
    """

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    expires_at: int
    model: str | None = None
    metadata: dict[str, str] | None = None
    cancelling_at: int | None = None
    deleted: tuple[str, ...] = ()
    unstarted: bool = False


def file_object(
    file_id: str,
    size: int,
    filename: str,
    expires_at: int | None,
    **more: Any,
) -> dict[str, Any]:
    """A file as OpenAI's API shows it: an upload, unless `more` says otherwise."""
    return {
        "id": file_id,
        "object": "file",
        "bytes": size,
        "created_at": created_at(file_id),
        "expires_at": expires_at,
        "filename": filename,
        "purpose": "batch",
        "status": "processed",
        **more,
    }


def model_object(model_id: str) -> dict[str, Any]:
    """A model as OpenAI's API shows it."""
    return {"id": model_id, "object": "model", "created": 0, "owned_by": model_id.split("/")[1]}


def batch_object(
    record: Record, status: dict[str, Any] | None, manifest: dict[str, Any] | None
) -> dict[str, Any]:
    """A batch as OpenAI's API shows it, made of its job's `status.json` and `manifest.json`."""
    ended = manifest or {}
    state = _state(record, status, manifest)
    is_read = status is not None and status["state"] != JobState.SPLITTING
    described = manifest or (status if is_read else None) or {}  # Before, there are no counts.
    counts = described.get("counts", {})
    total, succeeded, failed = (counts.get(name) or 0 for name in ("total", "succeeded", "failed"))
    ended_at = {state: _unix(ended["completed_at"])} if ended else {}
    errors = {"object": "list", "data": [_error(ended["error"])]} if state == "failed" else None
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "model": ended.get("model") or record.model,
        "errors": errors,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": state,
        "output_file_id": result_file(record.id, "output") if ended and succeeded else None,
        "error_file_id": result_file(record.id, "error") if ended and failed else None,
        "created_at": created_at(record.id),
        # The time of its upload, which the job's id begins with.
        "in_progress_at": _unix(described["job_id"].partition("-")[0]) if described else None,
        "expires_at": record.expires_at,
        "finalizing_at": ended_at.get("completed"),
        "completed_at": ended_at.get("completed"),
        "failed_at": ended_at.get("failed"),
        "expired_at": ended_at.get("expired"),
        "cancelling_at": record.cancelling_at,
        "cancelled_at": ended_at.get("cancelled"),
        "request_counts": {"total": total, "completed": succeeded, "failed": failed},
        "usage": _usage(ended.get("usage") or {}),
        "metadata": record.metadata,
    }


def failed_object(shown: dict[str, Any], error: dict[str, str]) -> dict[str, Any]:
    """The object of a batch that will never have a job."""
    errors = {"object": "list", "data": [_error(error)]}
    return shown | {"status": "failed", "errors": errors, "failed_at": shown["created_at"]}


def _error(error: dict[str, str]) -> dict[str, str | None]:
    message = NO_MODEL if error["code"] == "no_model" else error["message"]
    return {"code": error["code"], "message": message, "param": None, "line": None}


def _state(record: Record, status: dict[str, Any] | None, manifest: dict[str, Any] | None) -> str:
    if manifest:
        ended = str(manifest["state"])
        is_late = _unix(manifest["completed_at"]) >= record.expires_at
        has_failed = ended == JobState.COMPLETED and manifest["counts"]["failed"]
        return "expired" if is_late and has_failed else ended
    if record.cancelling_at is not None:
        return "cancelling"
    return _STATUSES.get(status["state"], "finalizing") if status else "validating"


def _unix(written: str) -> int:
    return int(datetime.fromisoformat(written).timestamp())


def _usage(counted: dict[str, int | None]) -> dict[str, Any] | None:
    read, written = counted.get("prompt_tokens"), counted.get("completion_tokens") or 0
    total = counted.get("total_tokens")
    if total is None and read is None:
        return None
    return {
        "input_tokens": read or 0,
        "input_tokens_details": {"cached_tokens": counted.get("cached_tokens") or 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": counted.get("reasoning_tokens") or 0},
        "total_tokens": total or (read or 0) + written,
    }

"""OpenAI's batch object, made of what was asked for and what the job has written. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from dropbatch.core.names import JobState
from dropbatch.openai_api import names

FINAL_STATUSES = frozenset({"completed", "failed", "expired", "cancelled"})
_STATUSES = {
    JobState.SPLITTING: "validating",
    JobState.IN_PROGRESS: "in_progress",
    JobState.FINALIZING: "finalizing",
}


NO_MODEL = (
    "No model was named. Start the server with a model, as in DROPBATCH_MODEL; or name one "
    "of Workers AI's (@cf/…) "
    "in metadata.model or in the file; or set the stack's DefaultModel. Other vendors' "
    "names do not count."
)


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch as it is stored.

    Attributes:
        expires_at: Unix seconds.
        model: if the metadata names one.
        metadata: as it was given.
        cancelling_at: Unix seconds; None unless it was cancelled.
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

    def cancelled_now(self, now: float) -> Record:
        """The same, being cancelled."""
        return msgspec.structs.replace(self, cancelling_at=int(now))

    def never_started(self) -> Record:
        """The same, whose upload failed."""
        return msgspec.structs.replace(self, unstarted=True)

    def without(self, kind: str) -> Record:
        """The same without one of its result files."""
        return msgspec.structs.replace(self, deleted=tuple(sorted({*self.deleted, kind})))


def batch_object(
    record: Record, status: dict[str, Any] | None, manifest: dict[str, Any] | None
) -> dict[str, Any]:
    """A batch as OpenAI's API shows it.

    Args:
        record: what was asked for.
        status: the job's `status.json`; None until the job exists.
        manifest: None until the job is over.
    """
    ended = manifest or {}
    state = _state(record, status, manifest)
    # While its upload is read, a batch has no counts yet.
    described = (
        ended or (status if status and status["state"] != JobState.SPLITTING else None) or {}
    )
    counts = described.get("counts", {})
    succeeded, failed = counts.get("succeeded") or 0, counts.get("failed") or 0
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
        "output_file_id": names.result_file(record.id, "output") if ended and succeeded else None,
        "error_file_id": names.result_file(record.id, "error") if ended and failed else None,
        "created_at": names.created_at(record.id),
        # The time of its upload, which the job's id begins with.
        "in_progress_at": _unix(described["job_id"].partition("-")[0]) if described else None,
        "expires_at": record.expires_at,
        "finalizing_at": ended_at.get("completed"),
        "completed_at": ended_at.get("completed"),
        "failed_at": ended_at.get("failed"),
        "expired_at": ended_at.get("expired"),
        "cancelling_at": record.cancelling_at,
        "cancelled_at": ended_at.get("cancelled"),
        "request_counts": {
            "total": counts.get("total") or 0,
            "completed": succeeded,
            "failed": failed,
        },
        "usage": _usage(ended.get("usage") or {}),
        "metadata": record.metadata,
    }


def _error(error: dict[str, str]) -> dict[str, str | None]:
    """A job's error, which names an upload's metadata, in the words of this API."""
    message = error["message"].replace("x-amz-meta-model", "metadata.model")
    if error["code"] == "no_model":
        message = NO_MODEL
    return {"code": error["code"], "message": message, "param": None, "line": None}


def _state(record: Record, status: dict[str, Any] | None, manifest: dict[str, Any] | None) -> str:
    if manifest:
        is_late = (
            _unix(manifest["completed_at"]) >= record.expires_at and manifest["counts"]["failed"]
        )
        return (
            "expired"
            if is_late and manifest["state"] == JobState.COMPLETED
            else str(manifest["state"])
        )
    if record.cancelling_at is not None:
        return "cancelling"
    return _STATUSES.get(status["state"], "finalizing") if status else "validating"


def _unix(written: str) -> int:
    """Unix seconds of a time in ISO 8601 that ends in Z."""
    return int(datetime.fromisoformat(written).timestamp())


def _usage(counted: dict[str, int | None]) -> dict[str, Any] | None:
    if counted.get("total_tokens") is None and counted.get("prompt_tokens") is None:
        return None
    read, written = counted.get("prompt_tokens") or 0, counted.get("completion_tokens") or 0
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": counted.get("cached_tokens") or 0},
        "output_tokens": written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": counted.get("total_tokens") or read + written,
    }

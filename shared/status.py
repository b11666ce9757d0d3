"""`status.json`: where users see how a job stands, from its first seconds to after its end."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from shared.words import JobState

if TYPE_CHECKING:
    from shared.words import Job

JSON = "application/json"


def moment(at: float | None) -> str | None:
    """Unix seconds as users read them: ISO 8601, UTC, whole seconds."""
    return None if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def status_of(job: Job, succeeded: int, failed: int, waiting_for: dict[str, Any] | None) -> dict[str, Any]:
    """The status as users read it, without its time."""
    over = job.state in {JobState.COMPLETED, JobState.FAILED}
    return {
        "job_id": job.job_id,
        "state": job.state.value,
        "counts": {"total": job.total, "succeeded": succeeded, "failed": failed},
        "fraction_done": 1.0 if over else None if job.total is None else job.fraction,
        "waiting_for": None if over else waiting_for,
    }


def encode_status(status: dict[str, Any], now: float) -> bytes:
    """The bytes of `status.json`."""
    return msgspec.json.format(msgspec.json.encode({**status, "updated_at": moment(now)}), indent=1) + b"\n"


def digest_of(status: dict[str, Any]) -> str:
    """What tells one status from another, its time apart."""
    return hashlib.sha256(msgspec.json.encode(status)).hexdigest()[:16]

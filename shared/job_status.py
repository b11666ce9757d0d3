"""A job's counts: the totals of its final batches, which the manifest tells, and `status.json`.

`status.json` shows a job's progress to its user, from its first seconds to after its end.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from dropbatch.core import names
from dropbatch.core.names import FINAL_JOB_STATES, JobState
from shared.models import NEVER, Batch, BatchState, Job, JobTotals, Wait
from shared.services import Services

JSON_TYPE = "application/json"


def iso_time(at: float | None) -> str | None:
    """Unix seconds in the form that users read: ISO 8601, UTC, whole seconds."""
    return None if at is None else f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def counted(sums: JobTotals, batch: Batch) -> JobTotals:
    """A job's sums with one more final batch: its submits, and its part unless it was divided."""
    part, accepted = batch.part, batch.accepted
    # A part of an answer tells only its own tokens, and the rest is billed too.
    has_reply = batch.ending is None or bool(batch.cause)
    collected = min(accepted, int(has_reply))
    is_reported = part is not None and part.usage.is_reported
    without_tokens = accepted - (collected if is_reported else 0)
    sums = replace(
        sums,
        given_up=sums.given_up + batch.given_up,
        unknowable=sums.unknowable + batch.unknowable,
        told=sums.told + (batch.told_at > 0),
        pieces=sums.pieces + batch.pieces,
        unmetered_size=sums.unmetered_size + without_tokens * batch.records.body_size,
        unmetered_records=sums.unmetered_records + without_tokens * batch.records.sendable,
        uncollected=sums.uncollected + accepted - collected,
    )
    if part is None:
        return sums
    return replace(
        sums,
        batches=sums.batches + 1,
        succeeded=sums.succeeded + part.succeeded,
        failed=sums.failed + part.failed,
        for_capacity=sums.for_capacity + part.for_capacity,
        incomplete=sums.incomplete + part.incomplete,
        errors_size=sums.errors_size + part.errors,
        retry_size=sums.retry_size + part.retry,
        usage=sums.usage.plus(part.usage),
        estimated=sums.estimated + batch.records.estimate,
        answered=sums.answered
        + batch.records.estimate * part.succeeded // max(batch.records.sendable, 1),
    )


@dataclass(frozen=True, slots=True)
class PendingBatches:
    """Batches pending at the API, among the first hundred that are not appended yet."""

    queued: int = 0  # the API has not started them, as far as it reports
    running: int = 0
    oldest_at: float | None = None

    def plus(self, batch: Batch) -> PendingBatches:
        """The same with one more batch, if it is pending."""
        if batch.state is not BatchState.QUEUED:
            return self
        known = (at for at in (self.oldest_at, batch.accepted_at) if at is not None)
        oldest = min(known, default=None)
        running = batch.pending is not None and batch.pending.status == "running"
        if running:
            return replace(self, running=self.running + 1, oldest_at=oldest)
        return replace(self, queued=self.queued + 1, oldest_at=oldest)

    def for_status(self) -> dict[str, Any]:
        """The member `pending`: with a time, not an age, that stays while nothing happens."""
        return {
            "batches": self.queued + self.running,
            "queued": self.queued,
            "running": self.running,
            "oldest_since": iso_time(self.oldest_at),
        }


def build_status(
    job: Job,
    wait: Wait | None,
    counts: tuple[int, int] | None = None,
    pending: PendingBatches | None = None,
) -> dict[str, Any]:
    """The status as users read it, without its time; without counts, those its last status told."""
    splitting = None
    if job.state is JobState.SPLITTING:
        splitting = {"bytes_read": job.reading.bytes_read, "bytes": job.upload.size}
    over = job.state in FINAL_JOB_STATES
    succeeded, failed = counts or (job.status.succeeded, job.status.failed)
    return {
        "job_id": job.job_id,
        "state": job.state.value,
        "error": {"code": job.error.code, "message": job.error.message} if job.error else None,
        "tags": job.tags,
        "counts": {"total": job.total, "succeeded": succeeded, "failed": failed},
        "incomplete": job.sums.incomplete,
        "fraction_done": 1.0 if over else None if job.total is None else job.status.fraction,
        "splitting": splitting,
        "pending": None if over else (pending or PendingBatches()).for_status(),
        "waiting_for": None if over or wait is None else _for_status(wait),
    }


def _for_status(wait: Wait) -> dict[str, Any]:
    until = iso_time(wait.until) if wait.until < NEVER else None
    return {"code": wait.code, "message": wait.message, "until": until}


def noted_wait(job: Job, now: float) -> Wait | None:
    """What a job's own calls have shown that it waits for, if that still holds."""
    if job.wait is None or now >= job.wait.until:
        return None
    # Until then it is shown: users are not told, and each new note would be a new status.
    return replace(job.wait, until=NEVER)


def final_status(job: Job) -> dict[str, Any]:
    """The status of a job whose result files are complete."""
    over = replace(job, state=job.final_state)
    return build_status(over, None, (job.sums.succeeded, job.sums.failed))


def encode_status(status: dict[str, Any], now: float) -> bytes:
    """The bytes of `status.json`."""
    return for_people({**status, "updated_at": iso_time(now)})


def for_people(value: dict[str, Any]) -> bytes:
    """An object as JSON on several lines."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def write_status(services: Services, job: Job, status: dict[str, Any]) -> None:
    """Write a job's `status.json`; if no lease protects it, as of now if the job has moved on."""
    key = names.result(job.upload.key, job.job_id, "status.json")
    services.store.put(key, encode_status(status, services.now()), kind=JSON_TYPE)
    if services.now() < job.lease_until:
        return
    known = services.ledger.job(job.job_id)
    if known is None or (known.ended_at is None and known.state is job.state):
        return
    newest = final_status(known)
    if known.ended_at is None:
        newest = build_status(known, noted_wait(known, services.now()))
    services.store.put(key, encode_status(newest, services.now()), kind=JSON_TYPE)


def status_digest(status: dict[str, Any]) -> str:
    """A digest of a status without its time."""
    return hashlib.sha256(msgspec.json.encode(status)).hexdigest()[:16]

"""Finish: a job is brought on until its result files and its manifest are there; users are told how it stands.

The files grow with the job (`functions.poll.result_files`); at the end they are joined, and the manifest is written
last. A visit does what its time allows and leaves the rest to the next: wherever one ends or dies, the job item says
how far things are. The tiling law is checked on the way: the batches must cover the records without gap or overlap.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from functions.poll.bisect_batch import MAX_SUBMITS, UNIFORM
from functions.poll.report import write_report
from functions.poll.result_files import (
    STEP_SECONDS,
    Kind,
    append_segment,
    assemble_file,
    batch_entry,
    coverage_error,
    entry_of,
    next_final_batches,
    readable,
    seconds_for_digests,
)
from functions.poll.waiting_for import report_long_wait, waiting_for
from shared import s3_keys as keys
from shared.aws.object_store import ObjectNotFoundError
from shared.claims import MAX_CLAIMS, claim_seconds, report_stuck
from shared.errors import InvariantError, LeaseLostError
from shared.job_status import JSON_TYPE, build_status, encode_status, iso_time, status_digest
from shared.models import FINAL_JOB_STATES, TOO_OLD_CODE, BatchState, ErrorDetail, Isolation, Job, JobState, Usage
from shared.observability import count, logger
from shared.retry import exponential

if TYPE_CHECKING:
    from collections.abc import Callable

    from functions.poll.result_files import ReadyBatches
    from shared.bootstrap import Services

QUICK_LOOK_BATCHES = 10
"""Batches looked at when a part came in shortly after another, to see whether it was the last."""
MANIFEST_BATCHES = 1_000
"""Batches that a manifest lists itself; more move to `batches.jsonl`."""
LEASE_SECONDS = 140.0
MIN_VISIT_SECONDS, MAX_VISIT_SECONDS = 10.0, 180.0
"""Seconds between two visits of a job, while something changes and when nothing does."""
STATUS_SECONDS = 10.0
"""Seconds a status stands before a part that came in between is told."""


def advance_job(services: Services, job_id: str, remaining: Callable[[], float]) -> bool:
    """Bring a job on: take in what is final, finish it when everything is, tell users how it stands.

    Returns:
        False if somebody else had the job in hand, who may not have seen the batch that was finished last.

    Raises:
        StorageError: a service refused or broke off; the job's `due_at` brings it up again.
        LawBrokenError: the batches do not tile the upload; the job does not finish.
    """
    now = services.now()
    job = services.ledger.job(job_id)
    if job is None or job.state in FINAL_JOB_STATES:
        return True
    if job.lease_until > now:
        return job.state is JobState.SPLITTING  # Its end makes the job due.
    # A job that is due is leased before anything can fail, so that it counts a claim and does not come up at once.
    if not (job.due_at or now) <= now and now < job.told_at + STATUS_SECONDS:
        ahead = next_final_batches(services, job, "output", QUICK_LOOK_BATCHES)
        if not _is_all(job, ahead) and not ahead.fills_a_step(job):
            return True
    until = now + claim_seconds(job.claims, min(LEASE_SECONDS, remaining() + 10))
    leased = services.ledger.lease_job(job, now, until)
    if leased is None:
        return False
    count("OldestJobAge", now - leased.created_at)
    report_stuck(leased.claims, job_id)
    try:
        if leased.claims > MAX_CLAIMS and leased.total is not None:
            _give_up(services, leased, remaining)
        else:
            _advance(services, leased, remaining)
    except LeaseLostError:
        logger.info("lease lost", job_id=job_id)
        return False
    return True


def _advance(services: Services, job: Job, remaining: Callable[[], float]) -> None:
    ahead = next_final_batches(services, job, "output")
    while not _is_all(job, ahead) and ahead.fills_a_step(job) and remaining() > STEP_SECONDS:
        job = append_segment(services, job, "output", ahead, final=False)
        ahead = next_final_batches(services, job, "output")
    if not _is_all(job, ahead):
        if job.is_too_old(services.now()) and job.error is None:
            services.ledger.fail_job(job.job_id, TOO_OLD_CODE, services.now())  # Its batches end without a call.
        _update_status(services, job, ahead)
    elif not _finalize(services, job, ahead, remaining):
        services.ledger.release_job(job, services.now())


def _is_all(job: Job, ahead: ReadyBatches) -> bool:
    """Whether these are all batches that were still missing, and there will be no more.

    Raises:
        LawBrokenError: they should be, and are not: the upload has other records than its batches.
    """
    if job.total is None or not ahead.last:
        return False
    covered = job.output.next_id + sum(batch.requests for batch in ahead.leaves)
    if covered != job.total:
        raise coverage_error(job, f"its batches hold {covered} records, expected {job.total}")
    return True


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _finalize(services: Services, job: Job, ahead: ReadyBatches, remaining: Callable[[], float]) -> bool:
    """Every batch is final: write the result files, the manifest last; False if the time was not enough."""
    if job.state is not JobState.FINALIZING:
        moved = services.ledger.update_leased_job(job, {"state": JobState.FINALIZING})
        if moved is None:
            raise LeaseLostError(job.job_id)
        job = moved
    if ahead.leaves:
        if remaining() < STEP_SECONDS:
            return False
        job = append_segment(services, job, "output", ahead, final=True)
    sums = job.sums
    if job.output.next_id != job.total or job.output.lines != job.total or sums.succeeded + sums.failed != job.total:
        raise coverage_error(job, f"{job.output.lines} lines for {job.total} records")
    for kind in _wanted(job):
        written = _write_file(services, job, kind, remaining)
        if written is None:
            return False
        job = written
    if remaining() < seconds_for_digests(job, _wanted(job)):
        return False
    _close(services, job, _wanted(job), remaining)
    return True


def _close(services: Services, job: Job, kinds: list[Kind], remaining: Callable[[], float]) -> None:
    """The files are there: manifest, status, notice, and the ledger's last word."""
    now = services.now()
    job = replace(job, completed_at=now)
    manifest = _manifest(services, job, kinds, remaining)
    write_report(services, job, manifest, remaining)
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
    services.store.put_if_absent(keys.result(job.upload.key, job.job_id, "manifest.json"), body, kind=JSON_TYPE)
    over = JobState.FAILED if job.error else JobState.COMPLETED
    status = build_status(replace(job, state=over), job.sums.succeeded, job.sums.failed, None)
    services.store.put(
        keys.result(job.upload.key, job.job_id, "status.json"), encode_status(status, now), kind=JSON_TYPE
    )
    services.notices.publish_job_over(_event_detail(services, job, manifest), now)
    # The ledger's word comes last: until then the job comes due again, and all above is there already or done anew.
    if services.ledger.end_job(job, over, now):
        count("JobsFailed" if job.error else "JobsCompleted")
        logger.info("job over", job_id=job.job_id, state=over, records=job.total, failed=job.sums.failed)


def _give_up(services: Services, job: Job, remaining: Callable[[], float]) -> None:
    """What stood in the way for days is taken for good: the job ends `failed`, with the lines up to the fault.

    Nothing that was paid for is lost: answers and parts stay in staging as long as any.
    """
    job = services.ledger.job(job.job_id) or job
    if services.store.head(keys.result(job.upload.key, job.job_id, "manifest.json")):
        # All is written, only nobody takes the notice of it.
        services.ledger.end_job(job, JobState.FAILED if job.error else JobState.COMPLETED, services.now())
        return
    words = (
        "Dropbatch could not finish this job; the poll function's log says why. output.jsonl holds the lines up to the "
        f"fault, and what else was answered is kept under staging/{job.job_id}/. Please report it."
    )
    moved = services.ledger.update_leased_job(
        job, {"state": JobState.FINALIZING, "error": ErrorDetail("internal", words)}
    )
    if moved is None:
        raise LeaseLostError(job.job_id)
    job = moved
    while remaining() > STEP_SECONDS:
        ahead = next_final_batches(services, job, "output", up_to_fault=True)
        if not ahead.leaves:
            break
        job = append_segment(services, job, "output", ahead, final=False)
    kinds = []
    for kind in _wanted(job):
        try:
            written = _write_file(services, job, kind, remaining)
        except (InvariantError, ObjectNotFoundError):
            logger.exception("file not written", job_id=job.job_id, kind=kind)
            continue
        if written is None:
            return
        job = written
        kinds.append(kind)
    _close(services, job, kinds, remaining)


def _write_file(services: Services, job: Job, kind: Kind, remaining: Callable[[], float]) -> Job | None:
    """Bring one result file to its end; the job as it is then, None if the time was not enough."""
    while getattr(job, kind).mark != job.output.mark:
        if remaining() < STEP_SECONDS:
            return None
        behind = next_final_batches(services, job, kind)
        job = append_segment(services, job, kind, behind, final=behind.last)
    return assemble_file(services, job, kind, remaining)


def _wanted(job: Job) -> list[Kind]:
    """The files there will be: the output of every completed job, others only if they hold something."""
    wanted: dict[Kind, bool] = {
        "output": job.error is None or job.output.size > 0,
        "errors": job.sums.errors_size > 0,
        "retry": job.sums.retry_size > 0,
        "batches": job.sums.batches > MANIFEST_BATCHES,
    }
    return [kind for kind, is_wanted in wanted.items() if is_wanted]


def _manifest(services: Services, job: Job, kinds: list[Kind], remaining: Callable[[], float]) -> dict[str, Any]:
    listed = readable(services.ledger.batches(job.job_id)) if job.sums.batches <= MANIFEST_BATCHES else ()
    usage: Usage = job.sums.usage
    isolation = job.isolation or Isolation()
    return {
        "job_id": job.job_id,
        "state": JobState.FAILED.value if job.error else JobState.COMPLETED.value,
        "error": {"code": job.error.code, "message": job.error.message} if job.error else None,
        "model": job.plan.model or None,
        "source": {
            "bucket": job.upload.bucket,
            "key": job.upload.object_key,
            "version": job.upload.version,
            "etag": job.upload.etag,
            "bytes": job.upload.size,
        },
        "counts": {"total": job.total, "succeeded": job.sums.succeeded, "failed": job.sums.failed},
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        },
        "cost": None,
        "batches": [batch_entry(batch) for batch in listed if batch.state is not BatchState.HALVED],
        "isolation": {
            "submits": isolation.submits,
            "at_most": MAX_SUBMITS,
            "not_tried_alone": sorted(cause for cause, known in isolation.causes.items() if known == UNIFORM),
        },
        "files": [entry_of(services, job, kind, remaining) for kind in kinds],
        "created_at": iso_time(job.created_at),
        "completed_at": iso_time(job.completed_at),
    }


def _event_detail(services: Services, job: Job, manifest: dict[str, Any]) -> dict[str, Any]:
    """What the notice of a job's end tells: the manifest without its lists, and where each result file is."""
    names = [*(file["name"] for file in manifest["files"]), "manifest.json"]
    return {
        **{name: manifest[name] for name in ("job_id", "state", "error", "model", "source", "counts", "usage")},
        "results": {
            "bucket": services.store.bucket,
            **{name.partition(".")[0]: keys.result(job.upload.key, job.job_id, name) for name in names},
        },
    }


# ── telling users ────────────────────────────────────────────────────────────────────────────────────────────────────


def _update_status(services: Services, job: Job, ahead: ReadyBatches) -> None:
    """Write `status.json` if something changed, and give the job back."""
    now = services.now()
    done = ahead.succeeded + ahead.failed
    fraction = max(job.fraction, round(done / job.total, 4)) if job.total else job.fraction
    waiting = waiting_for(services, job)
    report_long_wait(waiting, job.job_id, now)
    held_up = waiting.for_status() if waiting else None
    status = build_status(replace(job, fraction=fraction), ahead.succeeded, ahead.failed, held_up, ahead.pending)
    digest = status_digest(status)
    changed = digest != job.status_sha
    if changed:
        services.store.put(
            keys.result(job.upload.key, job.job_id, "status.json"), encode_status(status, now), kind=JSON_TYPE
        )
    quiet = 0 if changed else job.quiet + 1
    due = now + exponential(MIN_VISIT_SECONDS, quiet, MAX_VISIT_SECONDS)
    told = {"told_at": now, "told_succeeded": ahead.succeeded, "told_failed": ahead.failed}
    services.ledger.release_job(job, due, fraction=fraction, quiet=quiet, status_sha=digest, **told)

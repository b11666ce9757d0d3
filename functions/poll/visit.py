"""A job's visits: its result files grow as batches become final, until the job ends.

A visit does what its time allows and leaves the rest to the next one: wherever it ends or dies, the
job item has the progress. Each visit checks that the batches tile the upload: they must cover the
records without gap or overlap.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from dropbatch.core.names import FINAL_JOB_STATES, JobState
from functions.poll.commands import end_long_hold
from functions.poll.doubts import is_overdue
from functions.poll.end import finalize, give_up
from functions.poll.files import (
    STEP_SECONDS,
    ReadyBatches,
    append_segment,
    coverage_error,
    next_final_batches,
)
from functions.poll.sweep import next_sweep, sweep
from shared.errors import LeaseLostError, StorageError
from shared.job_control import follow_job_control
from shared.job_status import build_status, status_digest, write_status
from shared.models import TOO_OLD_CODE, Batch, DueKind, ErrorDetail, Job, Status
from shared.observability import count, logger, report_stuck
from shared.pacing import cost
from shared.pacing.waits import (
    account_fault,
    report_long_wait,
    show_denied,
    waiting_for,
    watch_account,
)
from shared.retry import CLAIMS_BEFORE_ALARM, MAX_CLAIMS, claim_seconds, exponential, retry_seconds
from shared.services import Invocation, Services

QUICK_LOOK_BATCHES = 10  # Read to see whether a part that came soon was the last
VISIT_LEASE_SECONDS = 140.0
MIN_VISIT_SECONDS, MAX_VISIT_SECONDS = 10.0, 180.0  # Between visits, if something changes
MIN_ANSWERED_RECORDS = 100  # Answered records from which a job's `max_failed_fraction` is tested


def visit_job(invocation: Invocation, job_id: str) -> bool:
    """Visit a job: append what is final, finish it when everything is, write its status.

    Return False if another run holds it, which may not have seen the batch finished last.
    """
    services = invocation.services
    now = services.now()
    job = services.ledger.job(job_id)
    if job is None or job.state in FINAL_JOB_STATES:
        return True
    if job.state is JobState.SPLITTING:
        try:
            _watch_split(invocation, job)
        except LeaseLostError:
            logger.info("another run appends", job_id=job_id)
        return True  # The end of split makes the job due.
    if job.lease_until > now:
        return False
    # A job that is due is leased before anything can fail, so that it counts a claim and is not due
    # again immediately.
    is_due = any(at <= now for at in (job.due_at, next_sweep(job, now)) if at is not None)
    if not is_due and now < job.status.at + MIN_VISIT_SECONDS:
        ahead = next_final_batches(services, job, "output", QUICK_LOOK_BATCHES)
        if not _is_all(job, ahead) and not ahead.fills_a_step(job):
            _visit_soon_if_limited(services, job)
            return True
    until = now + claim_seconds(job.claims, min(VISIT_LEASE_SECONDS, invocation.seconds_left + 10))
    try:
        return _visit(invocation, job, until)
    except LeaseLostError:
        logger.info("lease lost", job_id=job_id)
        return False
    except StorageError as error:
        show_denied(services, replace(job, lease_until=until), error)
        # A visit may be repeated, so nobody has to wait for the lease's end. The claim counts, if
        # it was written. Later the lease is kept: parts that arrive must not use up its tries.
        if job.claims < CLAIMS_BEFORE_ALARM:
            again_at = services.now() + retry_seconds(job.claims)
            services.ledger.retry_job(replace(job, lease_until=until), again_at, job.claims + 1)
        raise


def _visit_soon_if_limited(services: Services, job: Job) -> None:
    """Have a job with `max_cost` visited soon: what a batch has cost may give others room."""
    # Sooner than for its status, for which nobody wakes.
    soon = job.status.at + MIN_VISIT_SECONDS / 2
    is_limited = job.cost is not None and not job.cost.is_reached
    if is_limited and job.due_at is not None and job.due_at > soon:
        services.ledger.bring_visit_forward(job, soon)


def _visit(invocation: Invocation, job: Job, until: float) -> bool:
    services = invocation.services
    leased = services.ledger.lease_job(job, services.now(), until)
    if leased is None:
        return False
    count("OldestJobAge", services.now() - leased.created_at)
    report_stuck(leased.claims, leased.job_id)
    if leased.claims > MAX_CLAIMS and leased.total is not None:
        give_up(invocation, leased)
    else:
        _advance(invocation, leased)
    return True


def _advance(invocation: Invocation, job: Job) -> None:
    services = invocation.services
    if job.state is not JobState.FINALIZING:
        job = end_long_hold(services, follow_job_control(services, job.job_id) or job)
        job = watch_account(services, job)
        job = sweep(invocation, job)
    job, ahead = _append_final(invocation, job)
    if not _is_all(job, ahead):
        if job.error is None and (fault := _fault(services, job, ahead)):
            failed = services.ledger.fail_job(job, fault, services.now())
            if failed:
                _advance(invocation, failed)  # Its batches end without a call.
                return
        _update_status(services, job, ahead)
    elif unfinished := finalize(invocation, job, ahead):
        services.ledger.release_job(unfinished, services.now())


def _append_final(invocation: Invocation, job: Job) -> tuple[Job, ReadyBatches]:
    """Append what fills a step, as time allows; not during a sweep, which makes more of it."""
    services = invocation.services
    ahead = next_final_batches(services, job, "output")
    sweep_at = next_sweep(job, services.now())
    if sweep_at is not None and sweep_at <= services.now():
        return job, ahead
    while not _is_all(job, ahead) and ahead.fills_a_step(job) and invocation.allows(STEP_SECONDS):
        job = append_segment(services, job, "output", ahead, final=False)
        ahead = next_final_batches(services, job, "output")
    return job, ahead


def _watch_split(invocation: Invocation, job: Job) -> None:
    """Visit a job whose upload is still being read: append, judge, write the status.

    Lease and claims are left to split, which would lose its turn. Of two visits at once, one stops:
    each writes its status' time if it is still the one that was read. An error is shown at once.
    """
    services = invocation.services
    if services.now() < job.status.at + MIN_VISIT_SECONDS and job.error is None:
        return
    watched = follow_job_control(services, job.job_id)
    if watched is None or watched.state is not JobState.SPLITTING:
        return
    watched = watch_account(services, watched)
    ahead = next_final_batches(services, watched, "output")
    shown = _shown(services, watched, ahead)
    digest = status_digest(shown)
    spent, unfinished = _spent(services, watched)
    status = replace(_status_after(watched, ahead, services.now()), sha=digest)
    noted = services.ledger.note_status(watched, status, spent)
    if noted is None:
        return
    _release(services, watched, noted, unfinished)
    if digest != watched.status.sha:
        write_status(services, replace(noted, lease_until=0.0), shown)
    if noted.error is None and (fault := _fault(services, noted, ahead)):
        services.ledger.fail_job(noted, fault, services.now())
    _append_final(invocation, noted)


def _fault(services: Services, job: Job, ahead: ReadyBatches) -> ErrorDetail | None:
    """Why nothing more of a job is submitted, although its upload can be read; or None."""
    if job.is_too_old(services.now()):
        return TOO_OLD_CODE
    if fault := account_fault(services, job, services.now()):
        return fault
    failed, limit = ahead.failed - ahead.for_capacity, job.max_failed_fraction
    answered = ahead.succeeded + failed
    if limit is None or job.cancelled or answered < MIN_ANSWERED_RECORDS:
        return None
    if failed <= limit * answered:
        return None
    said = f"{failed:,} of the first {answered:,} records failed"
    return ErrorDetail("too_many_failures", f"{said}, more than max_failed_fraction allows.")


def _is_all(job: Job, ahead: ReadyBatches) -> bool:
    """Whether these are all the missing batches, and there will be no more."""
    if job.total is None or not ahead.last:
        return False
    covered = job.output.next_id + sum(batch.records.requests for batch in ahead.leaves)
    if covered != job.total:
        raise coverage_error(job, f"its batches hold {covered} records, expected {job.total}")
    return True


def _update_status(services: Services, job: Job, ahead: ReadyBatches) -> None:
    """Write `status.json` if something changed, and release the job."""
    now = services.now()
    status = _status_after(job, ahead, now)
    shown = _shown(services, replace(job, status=status), ahead)
    digest = status_digest(shown)
    unchanged = job.status.unchanged + 1
    if digest != job.status.sha:
        unchanged = 0
        write_status(services, job, shown)
    status = replace(status, sha=digest, unchanged=unchanged)
    due, work = _next_visit(job, ahead, now, unchanged)
    spent, unfinished = _spent(services, job)
    released = services.ledger.release_job(job, due, work, status=status, **spent)
    if released is None:
        return
    if (sweep_at := next_sweep(released, now)) is not None and sweep_at < due:
        # An error or a command came during this visit, and the release has moved the due time.
        services.ledger.bring_visit_forward(released, max(sweep_at, now))
    _release(services, job, released, unfinished)


def _next_visit(job: Job, ahead: ReadyBatches, now: float, unchanged: int) -> tuple[float, DueKind]:
    """When a job is visited again, and whether that visit moves it on."""
    if ahead.fills_a_step(job):  # This visit had no time for it.
        return now, DueKind.JOB
    due = now + exponential(MIN_VISIT_SECONDS, unchanged, MAX_VISIT_SECONDS)
    work = DueKind.ROUTINE
    if job.deadline_at is not None and now < job.deadline_at <= due:
        due, work = job.deadline_at, DueKind.JOB
    if (sweep_at := next_sweep(job, now)) is not None:
        due, work = max(min(due, sweep_at), now), DueKind.JOB
    return due, work


def _status_after(job: Job, ahead: ReadyBatches, now: float) -> Status:
    succeeded, failed, fraction = ahead.succeeded, ahead.failed, job.status.fraction
    if job.total:
        fraction = max(fraction, round((succeeded + failed) / job.total, 4))
    return replace(job.status, at=now, fraction=fraction, succeeded=succeeded, failed=failed)


def _shown(services: Services, job: Job, ahead: ReadyBatches) -> dict[str, Any]:
    """The status of a job that is not over, without its time."""
    wait = waiting_for(services, job)
    report_long_wait(wait, job.job_id, services.now())
    return build_status(job, wait, (ahead.succeeded, ahead.failed), ahead.pending)


def _spent(services: Services, job: Job) -> tuple[dict[str, object], list[Batch]]:
    """What the job item stores of its limit, if it has one, and its first unfinished batches."""
    if job.cost is None or job.cost.is_reached:
        return {}, []
    overdue = partial(is_overdue, services)
    found, unfinished = cost.measure(services.ledger, job, job.cost, overdue)
    return {"cost": found}, unfinished


def _release(services: Services, before: Job, after: Job, unfinished: list[Batch]) -> None:
    """Make the batches due that a visit's write has given room; else they look by themselves."""
    for batch in cost.with_room(before, after, unfinished):
        services.ledger.postpone(batch, services.now())

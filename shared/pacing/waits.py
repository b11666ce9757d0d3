"""What a job waits for: noted in its item by whoever sees it, and shown in its status.

A pause, a rate limit, a full model are in control items, which hold for every job; what a job's own
calls show, that they fail or are refused, is noted in the job (`Job.wait`). The status shows the
most important, until its `until` or the job's next progress. Without it a job that waits for a
user to act would look like one that is slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from shared.errors import RefusedError, StorageError
from shared.job_status import build_status, iso_time, noted_wait, write_status
from shared.models import ACCOUNT_CHANGED, LASTING_SECONDS, NEVER, Batch, ErrorDetail, Job, Wait
from shared.observability import count, logger
from shared.pacing.breaker import ALARMED, HELD, MODEL_BUSY, TOO_MANY_CALLS, PauseReason
from shared.retry import soon_after
from shared.services import Services
from shared.workers_ai.error_codes import advice
from shared.workers_ai.replies import OutcomeUnknown, Rejected

UPLOAD_DENIED, CALLS_DENIED = "upload_denied", "results_denied"
SUBMITS_FAIL, POLLS_FAIL, POLLS_REFUSED = "submits_fail", "polls_fail", "polls_refused"
IMPORTANCE = (
    *(ACCOUNT_CHANGED, HELD, UPLOAD_DENIED, CALLS_DENIED, *PauseReason),
    *(TOO_MANY_CALLS, MODEL_BUSY, POLLS_REFUSED, SUBMITS_FAIL, POLLS_FAIL),
)
"""Codes of waits; a status shows the first."""
NOTED_EVERY_SECONDS = 240.0  # Minimum seconds between two such notes of one job
NOTED_FOR_SECONDS = 4_500.0  # Seconds for which one is shown: what fails is tried at least hourly
ALARM_AFTER_SECONDS = 3_600.0  # Of a wait without its own alarm, to that of stuck items
MAX_HELD_SECONDS = 30 * 86_400  # Seconds after which a job that is still paused is cancelled
AWS_SERVICES = ("S3 ", "DynamoDB ", "SQS ")  # What a job cannot go on without


def waiting_for(services: Services, job: Job) -> Wait | None:
    """The most important thing that an open job waits for."""
    now = services.now()
    found = services.budget.waits(job.plan.model, now)
    if job.control and job.control.held_since:
        found.append(_held(job.job_id, job.control.held_since))
    if noted := noted_wait(job, now):
        found.append(noted)
    return min(found, key=lambda one: IMPORTANCE.index(one.code), default=None)


def report_long_wait(wait: Wait | None, job_id: str, now: float) -> None:
    """Log and count a job that has waited for over an hour for something without its own alarm."""
    if wait is None or wait.code in {*ALARMED, HELD} or not wait.since:
        return
    if now - wait.since > ALARM_AFTER_SECONDS:
        # Not the message: it may quote a request.
        logger.error("job waits", job_id=job_id, code=wait.code, since=iso_time(wait.since))
        count("StuckItems")


def _held(job_id: str, since: float) -> Wait:
    until = since + MAX_HELD_SECONDS
    words = (
        f"A user paused the job at {iso_time(since)}. Resume it with `dropbatch resume {job_id}`. "
        f"If it is still paused at {iso_time(until)}, it is cancelled."
    )
    return Wait(until, HELD, words)


# ── calls of the API that fail ────────────────────────────────────────────────────────────────────


def is_lasting(since: float, now: float) -> bool:
    """Whether calls have failed for so long that a job's deadline no longer waits for them."""
    return now - since >= LASTING_SECONDS


def note_failing(
    services: Services, job: Job, batch: Batch, reply: Rejected | OutcomeUnknown, *, polling: bool
) -> float:
    """Note one more failed call for a batch; return since when its calls have been failing."""
    now = services.now()
    since = batch.calls_fail_since or now
    if now - since > LASTING_SECONDS and _is_to_note(job, now):
        services.ledger.note_wait(job.job_id, _failing(reply, since, now, polling=polling))
    return since


def _is_to_note(job: Job, now: float) -> bool:
    noted_at = job.wait.until - NOTED_FOR_SECONDS if job.wait else -math.inf
    return now - noted_at > NOTED_EVERY_SECONDS


def _failing(reply: Rejected | OutcomeUnknown, since: float, now: float, *, polling: bool) -> Wait:
    calls, code, answer, said = "submits", SUBMITS_FAIL, 0, ""
    if polling:
        calls, code = "polls", POLLS_FAIL
    if isinstance(reply, Rejected):
        answer = reply.code or reply.status
        if polling and reply.enveloped:  # What a submit is answered may quote a prompt.
            code = POLLS_REFUSED
            said = f" Its words: {reply.message}" if reply.message else ""
    fails = f"answered {calls} of a batch with {answer}"
    if not answer:
        fails = f"not answered {calls} of a batch"
    words = (
        f"Workers AI has {fails} since {iso_time(since)}; Dropbatch repeats them automatically. "
        f"{advice(answer)}{said}"
    )
    return Wait(now + NOTED_FOR_SECONDS, code, words, since)


def clear_failing(services: Services, job: Job, batch: Batch) -> None:
    """Clear the note once a call for the batch has been answered."""
    if batch.calls_fail_since and job.wait:
        services.ledger.note_wait(job.job_id, None)


# ── calls that AWS refuses ────────────────────────────────────────────────────────────────────────


def upload_denied(said: str, since: float) -> Wait:
    """S3 does not hand out a job's upload."""
    words = (
        f"S3 does not hand out the upload: {said} Check the bucket's policy and the key that "
        "encrypts it. It is tried again every few minutes; if it is still denied 24 hours after "
        f"{iso_time(since)}, the job fails."
    )
    return Wait(NEVER, UPLOAD_DENIED, words, since)


def show_denied(services: Services, job: Job, error: Exception) -> None:
    """Show that AWS refuses a call for a job, if it does, now and at its visits."""
    if not isinstance(error, RefusedError) or not error.call.startswith(AWS_SERVICES):
        return
    now, said = services.now(), str(error)
    logger.warning("call denied", job_id=job.job_id, reason=said)
    if not _is_to_note(job, now):
        return
    words = (
        f"AWS refuses a call that the job needs: {said} Check the policies and keys of the bucket, "
        "the table and the queues. It is tried again, and goes on when it is allowed; after 72 "
        "hours the job fails."
    )
    wait = Wait(now + NOTED_FOR_SECONDS, CALLS_DENIED, words)
    try:
        services.ledger.note_wait(job.job_id, wait)
    except StorageError as failed:  # The table may be what is denied.
        logger.error("denied call not noted", job_id=job.job_id, reason=str(failed))
    if job.wait and job.wait.code == CALLS_DENIED and now < job.wait.until:
        return  # Visits show it, and know more: how many batches are pending.
    try:
        write_status(services, job, build_status(job, replace(wait, until=NEVER)))
    except StorageError as failed:
        logger.error("call denied, and not shown", job_id=job.job_id, reason=str(failed))
        count("StuckItems")


@contextmanager
def shown_if_denied(services: Services, jobs: Iterable[Job]) -> Iterator[None]:
    """Show for jobs that what is done for all of them is refused; log and count other failures."""
    try:
        yield
    except StorageError as error:
        count("Errors")
        if not isinstance(error, RefusedError):
            logger.warning("queue not reached", reason=str(error))
            return
        for job in {one.job_id: one for one in jobs}.values():
            show_denied(services, replace(job, lease_until=0.0), error)


# ── an account that changed ───────────────────────────────────────────────────────────────────────
# A job belongs to the Cloudflare account with which it was created: only that knows its ids. If
# `CloudflareAccountId` changes, no call is made for open jobs of the old account. They wait for an
# hour, in which a deployment ends or a typo is mended; then they end `failed`, with their answers.

ACCOUNT_CHANGED_SECONDS = 3_600.0  # Seconds for which a job of another account waits
LOOK_SECONDS = 300.0  # Seconds after which a batch of such a job is looked at again


def is_of_account(services: Services, job: Job) -> bool:
    """Whether a job was created with the account that the stack has now."""
    return job.plan.account == services.settings.cloudflare_account_id


def wait_for_account(job: Job, now: float) -> Wait:
    """No call for a batch of another account."""
    return Wait(soon_after(now + LOOK_SECONDS, 30), ACCOUNT_CHANGED, since=_changed_at(job))


def _changed_at(job: Job) -> float:
    return job.wait.since if job.wait and job.wait.code == ACCOUNT_CHANGED else 0.0


def watch_account(services: Services, job: Job) -> Job:
    """Note since when a job is of another account than the stack's, or that it no longer is."""
    if is_of_account(services, job) == (_changed_at(job) == 0.0):
        return job
    wait = None
    if not is_of_account(services, job):
        now = services.now()
        words = (
            f"{account_words(services, job)}; no call is made for it. Set CloudflareAccountId "
            "back, or it ends after an hour, with the answers that it has; retry.jsonl has the "
            "rest."
        )
        # Shown, and noted, until the job ends.
        wait = Wait(NEVER, ACCOUNT_CHANGED, words, now)
    return services.ledger.note_wait(job.job_id, wait) or job


def account_words(services: Services, job: Job) -> str:
    """What users read of a job of another account."""
    return (
        f"The job was created with the Cloudflare account {job.plan.account}, and the stack has "
        f"{services.settings.cloudflare_account_id} now"
    )


def account_fault(services: Services, job: Job, now: float) -> ErrorDetail | None:
    """Why a job ends that has waited for its account for too long; None while it does not end."""
    since = _changed_at(job)
    if is_of_account(services, job) or not since or now - since < ACCOUNT_CHANGED_SECONDS:
        return None
    return ErrorDetail(
        ACCOUNT_CHANGED,
        f"{account_words(services, job)}, for over an hour. Drop retry.jsonl again for the rest.",
    )

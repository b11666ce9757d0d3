"""Uploads that S3 lists but does not hand out: a policy, a key or the bucket's owner denies it.

It is shown at once and tried again, because somebody may be about to correct it; after a day the
upload ends. A job shows it in its own status. If even HEAD is refused, nothing is known of the
upload but its name, so there is no job: then an object in the folder of its results shows it, and
the event's message is delivered again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core import names
from shared.errors import ObjectNotFoundError, RefusedError, UploadDeniedError
from shared.job_status import JSON_TYPE, build_status, iso_time, write_status
from shared.models import ErrorDetail
from shared.observability import logger
from shared.pacing.waits import UPLOAD_DENIED, upload_denied

if TYPE_CHECKING:
    from shared.aws.object_events import ObjectCreated
    from shared.models import Job
    from shared.services import Services

MAX_DENIED_SECONDS = 86_400.0
"""Seconds for which an upload is tried that S3 does not hand out."""
MIN_WAIT_SECONDS, MAX_WAIT_SECONDS = 15.0, 300.0
"""Seconds between two tries of a job.

Half of the time for which its upload has been denied, within these.
"""
MIN_EVENT_SECONDS, MAX_EVENT_SECONDS = 60.0, 1_800.0
"""The same of an event without a job: each try uses up one of the 100 deliveries of its message."""
FIRST_DELIVERY_SECONDS = 45.0
"""Age of an event in seconds up to which no delivery of its message has failed because the upload was denied."""


class _Notice(msgspec.Struct):
    version: str | None = None


def wait_or_fail(services: Services, job: Job, denied: UploadDeniedError) -> Job | None:
    """Show why the upload of a leased job cannot be read, and try again later.

    Returns:
        The job with an error, if its upload has been denied for too long; else None.

    Raises:
        StorageError: an AWS service failed; the next turn finds the upload denied, too.
    """
    now = services.now()
    noted = job.wait if job.wait and job.wait.code == UPLOAD_DENIED else None
    since = noted.since if noted else now
    logger.warning("upload denied", job_id=job.job_id, since=iso_time(since), reason=str(denied))
    if now - since >= MAX_DENIED_SECONDS or job.is_past_deadline(now):
        message = (
            f"S3 does not hand out the upload: {denied.said} Correct this, and upload it again."
        )
        return services.ledger.fail_job(job, ErrorDetail(UPLOAD_DENIED, message), now)
    wait = upload_denied(denied.said, since)
    write_status(services, job, build_status(job, wait))
    due_at = now + _pause(now - since, MIN_WAIT_SECONDS, MAX_WAIT_SECONDS)
    services.ledger.release_job(job, min(due_at, job.deadline_at or due_at), wait=wait)
    return None


def _pause(seconds: float, shortest: float, longest: float) -> float:
    return min(max(seconds / 2, shortest), longest)


# ── without a job ─────────────────────────────────────────────────────────────────────────────────


def show_denied_event(
    services: Services, event: ObjectCreated, upload_key: str, refusal: RefusedError
) -> None:
    """Show that HEAD of an upload is refused.

    Raises:
        UploadDeniedError: the event is to be tried again.
        StorageError: S3 failed.
    """
    now = services.now()
    age = now - (event.at or now)
    said = f"HEAD of s3://{event.bucket}/{event.key}: {refusal.code} {refusal.said}".strip()
    logger.warning("denied upload has no job", version=event.version, reason=str(refusal))
    if age >= MAX_DENIED_SECONDS:
        error = {
            "code": UPLOAD_DENIED,
            "message": f"S3 told nothing of the upload for 24 hours: {said}. Upload it again.",
        }
        _put_notice(
            services, upload_key, {"state": "failed", "error": error, "version": event.version}
        )
        return
    until = None if event.at is None else event.at + MAX_DENIED_SECONDS
    words = (
        f"S3 refuses to tell anything of the upload to Dropbatch: {said}. Check the "
        "bucket's policy and the object's "
        "encryption. It is tried again, at least every half an hour."
    )
    waiting = {"code": UPLOAD_DENIED, "message": words, "until": iso_time(until)}
    _put_notice(
        services, upload_key, {"state": "waiting", "waiting_for": waiting, "version": event.version}
    )
    raise UploadDeniedError(said, _pause(age, MIN_EVENT_SECONDS, MAX_EVENT_SECONDS))


def end_notice(
    services: Services, event: ObjectCreated, upload_key: str, job_id: str | None
) -> None:
    """If an upload was shown as denied, show what became of it.

    Each delivery of its event may do so.

    Args:
        services: the process's clients and settings.
        event: the upload's.
        upload_key: its key under `inbox/`.
        job_id: of the job that it got; None: it was deleted before.

    Raises:
        StorageError: S3 failed; the event's message is delivered again.
    """
    if event.at is None or services.now() - event.at <= FIRST_DELIVERY_SECONDS:
        return
    try:
        shown = msgspec.json.decode(
            services.store.get(names.denied_notice(upload_key)), type=_Notice
        )
    except ObjectNotFoundError:
        return
    if event.version and shown.version != event.version:  # Another version was denied since.
        return
    told: dict[str, Any] = {"state": "read", "job_id": job_id}
    if job_id is None:
        told = {
            "state": "failed",
            "error": {"code": "source_gone", "message": "It was deleted before it was read."},
        }
    _put_notice(services, upload_key, {**told, "version": event.version})


def _put_notice(services: Services, upload_key: str, told: dict[str, Any]) -> None:
    empty = {"job_id": None, "error": None, "waiting_for": None}
    notice = {**empty, **told, "updated_at": iso_time(services.now())}
    body = msgspec.json.format(msgspec.json.encode(notice), indent=1) + b"\n"
    services.store.put(names.denied_notice(upload_key), body, kind=JSON_TYPE)

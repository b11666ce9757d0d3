"""Upload: from its event to its job, once, however often the event comes.

An upload that S3 lists but does not hand out, because a policy, a key or the bucket's owner denies
it, is shown at once and tried for a day: somebody may be about to correct it. If even HEAD is
refused, nothing is known but its name, so there is no job: an object in the folder of its results
shows it, and the event's message is delivered again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dropbatch.core import names
from dropbatch.core.errors import UploadRefused
from dropbatch.core.names import JobState
from dropbatch.core.options import Options
from dropbatch.core.plan import first_plan, with_default_model
from dropbatch.core.prices import to_billionths
from dropbatch.core.read.cut import RANGE_BYTES
from functions.submit.options import find_retried, limits_of, pin_options, resolve_options
from shared.aws.object_events import ObjectCreated
from shared.aws.object_store import ObjectInfo
from shared.errors import ObjectNotFoundError, RefusedError, StorageError, UploadDeniedError
from shared.job_status import JSON_TYPE, build_status, encode_status, iso_time, write_status
from shared.models import ErrorDetail, Job, Upload
from shared.observability import count, logger
from shared.pacing.cost import first_limit
from shared.pacing.waits import UPLOAD_DENIED, upload_denied
from shared.retry import retry_seconds
from shared.services import Services
from shared.settings import Settings

MAX_EVENT_AGE_SECONDS = 60 * 86_400
"""Above it an event is refused: its job's item and manifest may be deleted, it would run again."""
NEW_SECONDS = 3_600.0
"""Age of an object up to which a job that is over still has its item, whatever became of others."""
TURN_LEASE_SECONDS = 150.0
MAX_DENIED_SECONDS = 86_400.0
"""Seconds for which an upload is tried that S3 does not hand out."""
FIRST_DELIVERY_SECONDS = 45.0
"""An event's age up to which no delivery has failed because the upload was denied."""


class Created(NamedTuple):
    """A new job, leased by its creator, and its pinned options."""

    job: Job
    options: Options


def create_job(services: Services, event: ObjectCreated) -> Created | None:
    """Create the job of an upload; None if it has one, or gets none."""
    now = services.now()
    key = _upload_key(services.settings, event)
    if key is None:
        logger.info("not an upload", bucket=event.bucket)
        return None
    if event.at is not None and now - event.at > MAX_EVENT_AGE_SECONDS:
        logger.warning("event refused: too old", bucket=event.bucket)
        return None
    try:
        stored = services.store.in_bucket(event.bucket).head(event.key, event.version)
    except RefusedError as refusal:
        show_denied_event(services, event, key, refusal)
        return None
    if stored is None:
        logger.warning("upload deleted before its job was created", version=event.version)
        end_notice(services, event, key, None)
        return None
    source_key = None if event.bucket == services.settings.bucket_name else event.key
    upload = Upload(event.bucket, key, stored.version, stored.etag, stored.size, source_key)
    job_id, created = _find_or_create(services, upload, stored, now)
    if job_id is None:
        logger.error("no job id left for an upload", version=upload.version)
    else:
        end_notice(services, event, key, job_id)
    return created


def _find_or_create(
    services: Services, upload: Upload, stored: ObjectInfo, now: float
) -> tuple[str | None, Created | None]:
    """The id of an upload's job, None if others have all of its ids; and the job if it is new."""
    for choice in range(names.JOB_ID_CHOICES):
        job_id = names.job_id(
            upload.bucket, upload.object_key, upload.version, upload.etag, stored.modified, choice
        )
        known = services.ledger.job(job_id)
        if known is None:
            is_new = now - stored.modified.timestamp() < NEW_SECONDS
            manifest = names.result(upload.key, job_id, "manifest.json")
            if not is_new and services.store.head(manifest):
                logger.info("job is over", job_id=job_id)
                return job_id, None
            created = _new_job(services, job_id, upload, stored.metadata, now)
            if _create(services, created.job):
                return job_id, created
            known = services.ledger.job(job_id)
        if known and known.upload == upload:
            return job_id, None
    return None, None


def _upload_key(settings: Settings, event: ObjectCreated) -> str | None:
    """An object's key under `inbox/`, by which the source bucket's are known, too; or None."""
    key = event.key
    if event.bucket != settings.bucket_name:
        is_source = event.bucket == settings.source_bucket_name
        if not is_source or not key.startswith(settings.source_prefix):
            return None
        key = f"{names.INBOX}{key.removeprefix(settings.source_prefix).lstrip('/')}"
    return key if names.is_upload(key) else None


def _create(services: Services, job: Job) -> bool:
    try:
        if services.ledger.create_job(job) is None:
            return False
        _created(services, job)
    except StorageError:
        # It may have been created.
        services.ledger.retry_job(job, services.now() + retry_seconds(0), claims=0)
        raise
    return True


def _created(services: Services, job: Job) -> None:
    if job.upload.size > RANGE_BYTES:  # A small one is read in a moment, and shown then.
        body = encode_status(build_status(job, None, (0, 0)), job.created_at)
        key = names.result(job.upload.key, job.job_id, "status.json")
        services.store.put_if_absent(key, body, kind=JSON_TYPE)
    count("Uploads")
    logger.info("job created", job_id=job.job_id, size=job.upload.size, model=job.plan.model)


def _new_job(
    services: Services, job_id: str, upload: Upload, metadata: Mapping[str, str], now: float
) -> Created:
    error: ErrorDetail | None = None
    options = Options()
    by_default = True
    limits = limits_of(services)
    retried = None
    try:
        retried = find_retried(services, metadata)
        options = resolve_options(services, upload.key, metadata, retried)
    except UploadRefused as fault:
        error = ErrorDetail(fault.code, fault.message)
    except RefusedError as refusal:  # Without its options, the job would send what nobody wants.
        if not refusal.call.startswith("S3 "):
            raise
        error = ErrorDetail(
            "bad_options", f"S3 does not hand out what the options are read from: {refusal}"
        )
    else:
        by_default = options.model is None
        options = pin_options(services, upload.key, job_id, with_default_model(options, limits))
    until, hours = now + TURN_LEASE_SECONDS, options.deadline_hours
    job = Job(
        job_id=job_id,
        state=JobState.SPLITTING,
        upload=upload,
        plan=first_plan(options, limits, by_default=by_default),
        created_at=now,
        due_at=until,
        lease_until=until,
        claims=1,
        error=error,
        deadline_at=None if hours is None else now + hours * 3_600,
        max_failed_fraction=options.max_failed_fraction,
        cost=None if options.max_cost is None else first_limit(to_billionths(options.max_cost)),
        output_tokens=options.output_tokens or 0,
        tags=options.tags or {},
        retry_of=retried.manifest if retried else "",
    )
    return Created(job, options)


# ── denied ────────────────────────────────────────────────────────────────────────────────────────


class _Notice(msgspec.Struct):
    version: str | None = None


def wait_or_fail(services: Services, job: Job, denied: UploadDeniedError) -> Job | None:
    """Show why an upload cannot be read, and try again later; the failed job if that lasts long."""
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
    due_at = now + min(max((now - since) / 2, 15.0), 300.0)
    services.ledger.release_job(job, min(due_at, job.deadline_at or due_at), wait=wait)
    return None


# ── without a job ─────────────────────────────────────────────────────────────────────────────────


def show_denied_event(
    services: Services, event: ObjectCreated, upload_key: str, refusal: RefusedError
) -> None:
    """Show that HEAD of an upload is refused; raises `UploadDeniedError` if it is tried again."""
    now = services.now()
    age = now - (event.at or now)
    said = f"HEAD of s3://{event.bucket}/{event.key}: {refusal.code} {refusal.said}".strip()
    logger.warning("denied upload has no job", version=event.version, reason=str(refusal))
    if age >= MAX_DENIED_SECONDS:
        words = f"S3 told nothing of the upload for 24 hours: {said}. Upload it again."
        error = {"code": UPLOAD_DENIED, "message": words}
        told = {"state": "failed", "error": error, "version": event.version}
        _put_notice(services, upload_key, told)
        return
    until = None if event.at is None else event.at + MAX_DENIED_SECONDS
    words = (
        f"S3 refuses to tell anything of the upload to Dropbatch: {said}. "
        "Check the bucket's policy "
        "and the object's encryption. It is tried again, at least every half an hour."
    )
    waiting = {"code": UPLOAD_DENIED, "message": words, "until": iso_time(until)}
    told = {"state": "waiting", "waiting_for": waiting, "version": event.version}
    _put_notice(services, upload_key, told)
    # Each try is one of the 100 deliveries of its message.
    raise UploadDeniedError(said, min(max(age / 2, 60.0), 1_800.0))


def end_notice(
    services: Services, event: ObjectCreated, upload_key: str, job_id: str | None
) -> None:
    """If an upload was shown as denied, show what became of it: its job, or that it was deleted."""
    if event.at is None or services.now() - event.at <= FIRST_DELIVERY_SECONDS:
        return
    try:
        notice = services.store.get(names.denied_notice(upload_key))
        shown = msgspec.json.decode(notice, type=_Notice)
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
    body = encode_status({**empty, **told}, services.now())
    services.store.put(names.denied_notice(upload_key), body, kind=JSON_TYPE)

"""From an upload's event to its job.

Which upload it is, whether it has a job already, its model and options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core import names
from dropbatch.core.cost import to_billionths
from dropbatch.core.errors import UploadRefused
from dropbatch.core.names import JobState
from dropbatch.core.options import Options
from dropbatch.core.plan import first_plan, with_default_model
from functions.submit.denied_uploads import end_notice, show_denied_event
from functions.submit.job_options import find_retried, pin_options, resolve_options
from functions.submit.pin_plan import limits_of
from shared.errors import RefusedError, StorageError
from shared.job_status import JSON_TYPE, build_status, encode_status
from shared.models import ErrorDetail, Job, Upload
from shared.observability import count, logger
from shared.pacing.cost import first_limit
from shared.retry import retry_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.aws.object_events import ObjectCreated
    from shared.services import Services
    from shared.settings import Settings

MAX_EVENT_AGE_SECONDS = 60 * 86_400
"""Age in seconds above which an event is refused.

Its job's item and manifest may be deleted, so it would run again.
"""

TURN_LEASE_SECONDS = 150.0


def create_job(services: Services, event: ObjectCreated) -> Job | None:
    """Create the job of an upload, leased by its creator.

    None if there is nothing to do, or it has one already.

    One that exists is due at its time, whatever became of its creator.

    Raises:
        UploadDeniedError: S3 tells nothing of the upload; the message is delivered again.
        StorageError: an AWS service failed; the message is delivered again.
    """
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
    for choice in range(names.JOB_ID_CHOICES):
        job_id = names.job_id(
            upload.bucket, upload.object_key, upload.version, upload.etag, stored.modified, choice
        )
        known = services.ledger.job(job_id)
        if known is None:
            if services.store.head(names.result(upload.key, job_id, "manifest.json")):
                logger.info("job is over", job_id=job_id)
                end_notice(services, event, key, job_id)
                return None
            job = _new_job(services, job_id, upload, stored.metadata, now)
            if _create(services, job):
                end_notice(services, event, key, job_id)
                return job
            known = services.ledger.job(job_id)
        if known and known.upload == upload:
            end_notice(services, event, key, job_id)
            return None
    logger.error("no job id left for an upload", version=upload.version)
    return None


def _upload_key(settings: Settings, event: ObjectCreated) -> str | None:
    """The key under `inbox/` that identifies an object as an upload; None if it is not one.

    An object of the source bucket, which the stack does not own, gets the key that it would have
    there: its own key, with `SourcePrefix` replaced by `inbox/`.
    """
    key = event.key
    if event.bucket != settings.bucket_name:
        if event.bucket != settings.source_bucket_name or not key.startswith(
            settings.source_prefix
        ):
            return None
        key = f"{names.INBOX}{key.removeprefix(settings.source_prefix).lstrip('/')}"
    return key if names.is_upload(key) else None


def _create(services: Services, job: Job) -> bool:
    """Create a job, leased by its creator; False if an item with its id exists."""
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
    body = encode_status(build_status(job, None, (0, 0)), job.created_at)
    services.store.put_if_absent(
        names.result(job.upload.key, job.job_id, "status.json"), body, kind=JSON_TYPE
    )
    count("Uploads")
    logger.info("job created", job_id=job.job_id, size=job.upload.size, model=job.plan.model)


def _new_job(
    services: Services, job_id: str, upload: Upload, metadata: Mapping[str, str], now: float
) -> Job:
    """A new job; its options are pinned before its item is written."""
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
    until = now + TURN_LEASE_SECONDS
    return Job(
        job_id=job_id,
        state=JobState.SPLITTING,
        upload=upload,
        plan=first_plan(options, limits, by_default=by_default),
        created_at=now,
        due_at=until,
        lease_until=until,
        claims=1,
        error=error,
        deadline_at=None
        if options.deadline_hours is None
        else now + options.deadline_hours * 3_600,
        max_failed_fraction=options.max_failed_fraction,
        cost=None if options.max_cost is None else first_limit(to_billionths(options.max_cost)),
        output_tokens=options.output_tokens or 0,
        tags=options.tags or {},
        retry_of=retried.manifest if retried else "",
    )

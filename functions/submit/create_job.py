"""From an arrival to a job: which upload it is, whether it has a job already, which model it wants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions.submit.batch_limits import FIRST_BATCH_RECORDS, records_per_reply
from functions.submit.source_bucket import upload_key
from shared import s3_keys as keys
from shared.job_status import JSON_TYPE, build_status, encode_status
from shared.models import FINAL_JOB_STATES, Job, JobState, SplitPlan, Upload
from shared.observability import count, logger
from shared.settings import MODEL_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

    from functions.submit.upload_events import ObjectCreated
    from shared.aws.object_store import ObjectInfo
    from shared.bootstrap import Services

MAX_EVENT_AGE_SECONDS = 60 * 86_400
"""Seconds after which an event is refused: its job's item and manifest may be gone, and it would run again."""

LEASE_SECONDS = 150.0


def get_or_create_job(services: Services, arrival: ObjectCreated) -> tuple[Job, bool] | None:
    """The job for an arrived upload and whether this call created it; None where there is nothing to do.

    Raises:
        StorageError: S3 or DynamoDB refused or broke off; the message will come again.
    """
    now = services.now()
    key = upload_key(services.settings, arrival)
    if key is None:
        logger.info("not an upload", bucket=arrival.bucket)
        return None
    if arrival.at is not None and now - arrival.at > MAX_EVENT_AGE_SECONDS:
        logger.warning("event refused: too old", bucket=arrival.bucket)
        return None
    stored = services.store.in_bucket(arrival.bucket).head(arrival.key, arrival.version)
    if stored is None:
        logger.warning("upload gone before its job began", version=arrival.version)
        return None
    source_key = None if arrival.bucket == services.settings.bucket_name else arrival.key
    upload = Upload(arrival.bucket, key, stored.version, stored.etag, stored.size, source_key)
    for choice in range(keys.JOB_ID_CHOICES):
        job_id = keys.job_id(upload.bucket, upload.object_key, upload.version, upload.etag, stored.modified, choice)
        known = services.ledger.job(job_id)
        if known is None:
            if services.store.head(keys.result(upload.key, job_id, "manifest.json")):
                logger.info("job is over", job_id=job_id)
                return None
            job = _new_job(services, job_id, upload, stored, now)
            if services.ledger.create_job(job):
                body = encode_status(build_status(job, 0, 0, None), now)
                services.store.put_if_absent(keys.result(upload.key, job_id, "status.json"), body, kind=JSON_TYPE)
                count("Uploads")
                logger.info("job begun", job_id=job_id, size=upload.size, model=job.plan.model)
                return job, True
            known = services.ledger.job(job_id)
        if known and known.upload == upload:
            return None if known.state in FINAL_JOB_STATES else (known, False)
    logger.error("no job id left for an upload", version=upload.version)
    return None


def _new_job(services: Services, job_id: str, upload: Upload, stored: ObjectInfo, now: float) -> Job:
    settings = services.settings
    until = now + LEASE_SECONDS
    model = requested_model(upload.key, stored.metadata, settings.default_model)
    most = min(settings.max_requests_per_batch, records_per_reply(model, settings.transport))
    return Job(
        job_id=job_id,
        state=JobState.SPLITTING,
        upload=upload,
        plan=SplitPlan(
            model=model,
            max_requests=most,
            max_bytes=settings.max_batch_bytes,
            account=settings.cloudflare_account_id,
            first_requests=min(FIRST_BATCH_RECORDS, most),
        ),
        created_at=now,
        due_at=until,
        lease_until=until,
        claims=1,
    )


def requested_model(key: str, metadata: Mapping[str, str], default: str) -> str:
    """The model an upload asks for, right or wrong: its metadata, its path, the stack's default; empty for none."""
    if metadata.get("model"):
        return metadata["model"].strip()
    path = key.removeprefix(keys.INBOX)
    if path.startswith(("@cf/", "@hf/")):
        segments = path.split("/")
        return "/".join(segments[:3]) if len(segments) > 3 else "/".join(segments[:-1])  # noqa: PLR2004 - a model id has three
    return default


def is_model(model: str) -> bool:
    """Whether it has the form of a model id."""
    return MODEL_ID.fullmatch(model) is not None and not {".", ".."} & set(model.split("/"))

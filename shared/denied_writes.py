"""Writes under `results/` or `staging/` that S3 refuses for good: shown in `status.json`, or else an alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import RefusedError, StorageError
from shared.job_status import build_status, write_status
from shared.models import DeniedWrite
from shared.observability import count, logger

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Job

RESULTS_DENIED = "results_denied"
"""Code of a job for which Dropbatch may not write."""
WRITES = ("S3 put_object", "S3 create_multipart_upload", "S3 upload_part", "S3 complete_multipart_upload")
NOTED_EVERY_SECONDS = 240.0
"""Minimum seconds between two notes of one job."""


def denied_message(said: str) -> str:
    """What a user is told of a refused write, with what S3 said."""
    return (
        f"S3 refuses what Dropbatch writes for the job: {said} Check the bucket's policy and its key. It is tried "
        "again, and goes on when it is allowed; after 72 hours the job fails."
    )


def show_denied_write(services: Services, job: Job, error: StorageError) -> None:
    """Show that S3 refuses a write for a job, now and at its visits; what is not a refused write is left alone.

    Args:
        services: the process's clients and settings.
        job: with the lease that this run has, or without one.
        error: of the step that failed, which is tried again.
    """
    if not isinstance(error, RefusedError) or not error.call.startswith(WRITES):
        return
    now, said = services.now(), str(error)
    told = {"code": RESULTS_DENIED, "message": denied_message(said), "until": None}
    logger.warning("write denied", job_id=job.job_id, reason=said)
    try:
        if job.denied_write is None or now - job.denied_write.at > NOTED_EVERY_SECONDS:
            services.ledger.note_denied_write(job.job_id, DeniedWrite(now, said))
        write_status(services, job, build_status(job, job.status_succeeded, job.status_failed, told))
    except StorageError as failed:
        logger.error("write denied, and not shown", job_id=job.job_id, reason=str(failed))
        count("StuckItems")

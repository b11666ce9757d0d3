"""Calls for a job that AWS refuses for good: shown in `status.json`, or else an alarm."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from shared.errors import RefusedError, StorageError
from shared.job_status import build_status, denied_for_status, write_status
from shared.models import DeniedWrite
from shared.observability import count, logger

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from shared.models import Job
    from shared.services import Services

SERVICES = ("S3 ", "DynamoDB ", "SQS ")
"""What a job cannot go on without; reports of its end are given up after some minutes."""
NOTED_EVERY_SECONDS = 240.0
"""Minimum seconds between two notes of one job."""


def show_denied(services: Services, job: Job, error: Exception) -> None:
    """Show that AWS refuses a call for a job, now and at its visits.

    What is not such a refusal is left alone.

    Args:
        services: the process's clients and settings.
        job: with the lease that this run has, or without one.
        error: of the step that failed, which is tried again.
    """
    if not isinstance(error, RefusedError) or not error.call.startswith(SERVICES):
        return
    now, said, noted = services.now(), str(error), job.denied_write
    logger.warning("call denied", job_id=job.job_id, reason=said)
    if noted and now - noted.at <= NOTED_EVERY_SECONDS:
        return
    denied = DeniedWrite(now, said)
    try:
        services.ledger.note_denied_write(job.job_id, denied)
    except StorageError as failed:  # The table may be what is denied.
        logger.error("denied call not noted", job_id=job.job_id, reason=str(failed))
    if noted and job.status_at > noted.at and denied_for_status(job, now):
        return  # Visits show it, and know more: how many batches are pending.
    try:
        told = denied_for_status(replace(job, denied_write=denied), now)
        write_status(
            services, job, build_status(job, job.status_succeeded, job.status_failed, told)
        )
    except StorageError as failed:
        logger.error("call denied, and not shown", job_id=job.job_id, reason=str(failed))
        count("StuckItems")


@contextmanager
def shown_if_denied(services: Services, jobs: Iterable[Job]) -> Iterator[None]:
    """Show for jobs that what is done for all of them is refused.

    They are due again, and nothing else waits for it.

    Nor does anything wait for a call that fails otherwise: that is only logged and counted.
    """
    try:
        yield
    except StorageError as error:
        count("Errors")
        if not isinstance(error, RefusedError):
            logger.warning("queue not reached", reason=str(error))
            return
        for job in {one.job_id: one for one in jobs}.values():
            show_denied(services, replace(job, lease_until=0.0), error)

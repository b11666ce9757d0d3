"""EventBridge is told that a job is over, at least once.

After the manifest and before the ledger's final state: if a function dies in between, or the
service fails, the job stays due and the event is sent again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from functions.poll.results.manifest import event_detail
from shared.errors import RefusedError
from shared.observability import count, logger

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Job

MAX_REFUSED_SECONDS = 300.0
"""Seconds after the end of a job for which an event that is refused for good is sent again."""


def announce(services: Services, job: Job, manifest: dict[str, Any], now: float) -> None:
    """Publish that a job is over.

    Raises:
        StorageError: the event was not taken; it must be sent again.
    """
    try:
        services.notices.publish_job_over(event_detail(services.store.bucket, job, manifest), now)
    except RefusedError as error:
        if job.ended_at is None or now - job.ended_at < MAX_REFUSED_SECONDS:
            raise
        logger.error("event not published", job_id=job.job_id, reason=str(error))
        count("Errors")

"""Calls for a batch that have been failing for a long time.

Noted in its job, for `status.json` and the alarm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.models import LastingError
from shared.workers_ai.replies import Rejected

if TYPE_CHECKING:
    from shared.models import Batch, Job
    from shared.services import Services
    from shared.workers_ai.replies import OutcomeUnknown

NOTED_AFTER_SECONDS = 900.0
"""Seconds of failing calls after which `status.json` reports them."""
NOTED_EVERY_SECONDS = 240.0
"""Minimum seconds between two such notes of one job."""


def is_lasting(since: float, now: float) -> bool:
    """Whether calls have been failing for so long, Unix seconds.

    That a job's deadline no longer waits for them.
    """
    return now - since >= NOTED_AFTER_SECONDS


def note_lasting_error(
    services: Services, job: Job, batch: Batch, reply: Rejected | OutcomeUnknown, *, polling: bool
) -> float:
    """Note one more failed call for a batch; return since when its calls have been failing.

    Args:
        services: the process's clients and settings.
        job: the batch's job.
        batch: as claimed.
        reply: to that call.
        polling: whether the batch was polled, not submitted.

    Raises:
        StorageError: DynamoDB failed.
    """
    now = services.now()
    since = batch.calls_fail_since or now
    if now - since > NOTED_AFTER_SECONDS and (
        job.lasting_error is None or now - job.lasting_error.at > NOTED_EVERY_SECONDS
    ):
        code, refused, message = 0, False, ""
        if isinstance(reply, Rejected):
            code, refused = reply.code or reply.status, reply.enveloped
            # What a submit is answered may quote a prompt.
            message = reply.message if refused and polling else ""
        services.ledger.note_lasting_error(
            job.job_id, LastingError(code, since, now, polling, refused, message)
        )
    return since


def clear_lasting_error(services: Services, job: Job, batch: Batch) -> None:
    """Clear the note once a call for the batch has been answered.

    Raises:
        StorageError: DynamoDB failed.
    """
    if batch.calls_fail_since and job.lasting_error:
        services.ledger.note_lasting_error(job.job_id, None)

"""Calls for a batch that have been failing for a long time: noted in its job, for `status.json` and the alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.models import LastingError

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Batch, Job

NOTED_AFTER_SECONDS = 900.0
"""Seconds of failing calls after which `status.json` reports them."""
NOTED_EVERY_SECONDS = 240.0
"""Minimum seconds between two such notes of one job."""


def note_lasting_error(services: Services, job: Job, batch: Batch, code: int, *, polling: bool) -> float:
    """Note one more failed call for a batch; return since when its calls have been failing.

    Args:
        services: the process's clients and settings.
        job: the batch's job.
        batch: as claimed.
        code: the API's code or the HTTP status; 0 for no connection or no answer.
        polling: whether the batch was polled, not submitted.

    Raises:
        StorageError: DynamoDB failed.
    """
    now = services.now()
    since = batch.calls_fail_since or now
    if now - since > NOTED_AFTER_SECONDS and (
        job.lasting_error is None or now - job.lasting_error.at > NOTED_EVERY_SECONDS
    ):
        services.ledger.note_lasting_error(job.job_id, LastingError(code, since, now, polling))
    return since


def clear_lasting_error(services: Services, job: Job, batch: Batch) -> None:
    """Clear the note once a call for the batch has been answered.

    Raises:
        StorageError: DynamoDB failed.
    """
    if batch.calls_fail_since and job.lasting_error:
        services.ledger.note_lasting_error(job.job_id, None)

"""What a batch is tried against in vain for long: noted at its job, for `status.json` and the alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.models import LastingError

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Batch, Job

NOTED_AFTER_SECONDS = 900.0
"""Seconds of calls that came to nothing, after which a job's user is told."""
NOTED_EVERY_SECONDS = 240.0
"""Seconds between two such notes of one job, at least."""


def note_lasting_error(services: Services, job: Job, batch: Batch, code: int, *, polling: bool) -> float:
    """Note that one more call for a batch came to nothing; since when they do.

    Args:
        services: the process's clients and settings.
        job: the batch's job.
        batch: as claimed.
        code: the API's code or the HTTP status; 0 for no connection or no answer.
        polling: whether a request_id was asked after, instead of the batch submitted.

    Raises:
        StorageError: the table refused or broke off.
    """
    now = services.now()
    since = batch.vain_since or now
    if now - since > NOTED_AFTER_SECONDS and (job.trouble is None or now - job.trouble.at > NOTED_EVERY_SECONDS):
        services.ledger.note_lasting_error(job.job_id, LastingError(code, since, now, polling))
    return since


def clear_lasting_error(services: Services, job: Job, batch: Batch) -> None:
    """Take back what was noted, once a call for the batch came to something.

    Raises:
        StorageError: the table refused or broke off.
    """
    if batch.vain_since and job.trouble:
        services.ledger.note_lasting_error(job.job_id, None)

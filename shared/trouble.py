"""What a batch is tried against in vain for long: noted at its job, for `status.json` and the alarm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.words import Trouble

if TYPE_CHECKING:
    from shared.services import Services
    from shared.words import Batch, Job

NOTED_AFTER = 900.0
"""Seconds of calls that came to nothing, after which a job's user is told."""
NOTED_AGAIN_AFTER = 240.0
"""Seconds between two such notes of one job, at least."""


def in_vain(services: Services, job: Job, batch: Batch, code: int, *, polling: bool) -> float:
    """Note that one more call for a batch came to nothing; since when they do.

    Args:
        services: all there is.
        job: the batch's job.
        batch: as claimed.
        code: the API's code or the HTTP status; 0 for no connection or no answer.
        polling: whether a request_id was asked after, instead of the batch submitted.

    Raises:
        StorageError: the table refused or broke off.
    """
    now = services.now()
    since = batch.vain_since or now
    if now - since > NOTED_AFTER and (job.trouble is None or now - job.trouble.at > NOTED_AGAIN_AFTER):
        services.ledger.note_trouble(job.job_id, Trouble(code, since, now, polling))
    return since


def no_longer_in_vain(services: Services, job: Job, batch: Batch) -> None:
    """Take back what was noted, once a call for the batch came to something.

    Raises:
        StorageError: the table refused or broke off.
    """
    if batch.vain_since and job.trouble:
        services.ledger.note_trouble(job.job_id, None)

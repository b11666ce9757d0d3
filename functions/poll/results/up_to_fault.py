"""The output of a job that cannot be finished.

Its lines up to the first batch that is missing, odd, or unreadable.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from functions.poll.results.result_files import STEP_SECONDS, append_segment, next_final_batches
from shared import keys
from shared.errors import ObjectNotFoundError
from shared.observability import logger

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.invocation import Invocation
    from shared.models import Batch, Job


def append_up_to_fault(invocation: Invocation, job: Job) -> Job:
    """Append what can be appended, as far as time allows; return the job as it is afterwards.

    Raises:
        LeaseLostError: another run holds the job.
        StorageError: an AWS service failed.
    """
    services = invocation.services
    while invocation.allows(STEP_SECONDS):
        ahead = next_final_batches(services, job, "output", up_to_fault=True)
        if not ahead.leaves:
            break
        try:
            job = append_segment(services, job, "output", ahead, final=False)
        except ObjectNotFoundError:
            logger.exception("batches not appended", job_id=job.job_id)
            leaves = list(takewhile(lambda batch: _is_there(services, batch), ahead.leaves))
            # Then what was appended before is missing.
            if not leaves or len(leaves) == len(ahead.leaves):
                break
            job = append_segment(
                services, job, "output", replace(ahead, leaves=leaves), final=False
            )
    return job


def _is_there(services: Services, batch: Batch) -> bool:
    """Whether the object exists that has a final batch's lines, or from which they are made."""
    written = batch.part.key if batch.part else ""
    return services.store.head(written or keys.staged(batch.job_id, batch.number)) is not None

"""What a final batch cost, noted for the day of its stack in place of what it had reserved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.cost import to_billionths
from functions.poll.results.manifest import cost_so_far
from functions.poll.results.unmetered import unmetered

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Batch, Job


def note_cost(services: Services, job: Job, batch: Batch) -> None:
    """Note what a batch cost that just became final.

    Raises:
        StorageError: DynamoDB failed; what the batch has reserved stays counted for its day.
    """
    part = batch.part
    if part is None or batch.reserved is None or services.day_limit is None:
        return
    more = unmetered(batch, part)
    cost = cost_so_far(job.plan.known_model, part.usage, more.size, more.records)
    amount = to_billionths(cost.amount) if cost else 0
    services.day_limit.settle(f"{batch.job_id} {batch.number}", batch.reserved, amount, services.now())

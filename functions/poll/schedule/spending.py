"""What a job with `max_cost` has spent, computed anew from its batches at each visit (`shared.pacing.cost_limit`)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dropbatch.core.cost import to_billionths
from dropbatch.core.cost_limit import Spent
from functions.poll.results.manifest import cost_so_far
from functions.poll.results.unmetered import unmetered
from shared.models import BatchState
from shared.pacing import cost_limit

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Batch, Job

PAGE_BATCHES, MOST_READ = 100, 1_000
"""Batches that one visit reads, and the most if all of them are final; of those behind, it knows nothing yet."""


def spending(services: Services, job: Job) -> dict[str, Any]:
    """What a visit stores of a job's spending; nothing for a job without a limit.

    Raises:
        StorageError: DynamoDB failed.
    """
    if job.max_cost is None or job.cost_reached:
        return {}
    spent, following = _so_far(services, job)
    known = replace(job, spent=spent)
    is_reached = following is not None and _waits(following) and not cost_limit.allows_batch(known, following)
    return {"spent": spent, "cost_reached": is_reached or spent.amount >= (job.max_cost or 0)}


def _waits(batch: Batch) -> bool:
    """Whether a batch waits to be submitted, and no answer to it can come."""
    return batch.state is BatchState.READY and not (batch.ending or batch.isolating or batch.pollable)


def _so_far(services: Services, job: Job) -> tuple[Spent, Batch | None]:
    """What is spent, and the first batch that is not final.

    The batches up to the output's mark are in the job's sums; the others are read, as far as one visit reads.
    """
    sums = job.sums
    usage, size, records = sums.usage, sums.unmetered_size, sums.unmetered_records
    succeeded, failed = sums.succeeded, sums.failed
    last = services.ledger.batch(job.job_id, job.output.mark) if job.output.mark else None
    settled = last.estimated_before + last.estimate if last else 0
    again, following = 0, None
    batches = services.ledger.batches(job.job_id, after=job.output.mark, page_size=PAGE_BATCHES, unreadable=[])
    for seen, batch in enumerate(batches, 1):
        if (part := batch.part) is not None:
            more = unmetered(batch, part)
            usage, size, records = usage.plus(part.usage), size + more.size, records + more.records
            succeeded, failed = succeeded + part.succeeded, failed + part.failed
            settled += batch.estimate
        elif batch.state is not BatchState.DIVIDED:
            following = following or batch
            again += max(len(batch.submissions) + batch.unknowable - 1, 0) * batch.estimate
        if seen >= MOST_READ or (seen >= PAGE_BATCHES and following):
            break
    cost = cost_so_far(job.plan.known_model, usage, size, records)
    amount = to_billionths(cost.amount) if cost else 0
    measured = settled * succeeded // max(succeeded + failed, 1)
    amount += again * amount // max(measured, 1)  # What was sent again may be paid again.
    return Spent(amount, settled, measured, succeeded), following

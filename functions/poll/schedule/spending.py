"""What a job with `max_cost` has spent, computed anew from its batches at each visit (`shared.pacing.cost_limit`).

A visit stores it, then makes the batches due that now fit. If it dies in between, they look by themselves later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dropbatch.core.cost import to_billionths
from dropbatch.core.cost_limit import Spent
from functions.poll.batch.paid import cost_so_far
from functions.poll.batch.unmetered import unmetered
from shared.models import Batch, BatchState
from shared.pacing import cost_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shared.bootstrap import Services
    from shared.models import Job

PAGE_BATCHES, MOST_READ = 100, 1_000
"""Batches that one visit reads, and the most if all of them are final; of those behind, it knows nothing yet."""


class Spending(NamedTuple):
    """What a visit found of a job's spending.

    Attributes:
        told: what it stores; nothing if neither job nor stack has a limit.
        waiting: the first batches that are ready to be submitted.
    """

    told: dict[str, Any]
    waiting: tuple[Batch, ...] = ()


def spending(services: Services, job: Job) -> Spending:
    """What a job has spent.

    Raises:
        StorageError: DynamoDB failed.
    """
    if job.cost_reached or (job.max_cost is None and services.day_limit is None):
        return Spending({})
    spent, unfinished = _so_far(services, job)
    known, following = replace(job, spent=spent), unfinished[0] if unfinished else None
    is_reached = following is not None and _waits(following) and not cost_limit.allows_batch(known, following)
    is_spent = job.max_cost is not None and spent.amount >= job.max_cost
    waiting = tuple(filter(_waits, unfinished)) if job.max_cost is not None else ()
    return Spending({"spent": spent, "cost_reached": is_reached or is_spent}, waiting)


def release(services: Services, before: Job, after: Job, waiting: Iterable[Batch]) -> None:
    """Make the batches due that a visit's write has given room.

    Args:
        services: the process's clients and settings.
        before: the job as it was read.
        after: as it was written.
        waiting: its first batches that are ready to be submitted, as they were read.

    Raises:
        StorageError: DynamoDB failed.
    """
    for batch in waiting:
        if cost_limit.allows_batch(after, batch) and not cost_limit.allows_batch(before, batch):
            services.ledger.postpone(batch, services.now())


def _waits(batch: Batch) -> bool:
    """Whether a batch waits to be submitted, and no answer to it can come."""
    return batch.state is BatchState.READY and not (batch.ending or batch.isolating or batch.pollable)


def _so_far(services: Services, job: Job) -> tuple[Spent, list[Batch]]:
    """What is spent, and the first batches that are not final.

    The batches up to the output's mark are in the job's sums; the others are read, as far as one visit reads.
    """
    sums = job.sums
    usage, size, records = sums.usage, sums.unmetered_size, sums.unmetered_records
    succeeded, failed = sums.succeeded, sums.failed
    last = services.ledger.batch(job.job_id, job.output.mark) if job.output.mark else None
    settled = last.estimated_before + last.estimate if last else 0
    again, unfinished = 0, list[Batch]()
    batches = services.ledger.batches(job.job_id, after=job.output.mark, page_size=PAGE_BATCHES, unreadable=[])
    for seen, batch in enumerate(batches, 1):
        if (part := batch.part) is not None:
            more = unmetered(batch, part)
            usage, size, records = usage.plus(part.usage), size + more.size, records + more.records
            succeeded, failed = succeeded + part.succeeded, failed + part.failed
            settled += batch.estimate
        elif batch.state is not BatchState.DIVIDED:
            unfinished.append(batch)
            again += max(len(batch.submissions) + batch.unknowable - 1, 0) * batch.estimate
        if seen >= MOST_READ or (seen >= PAGE_BATCHES and unfinished):
            break
    cost = cost_so_far(job.plan.known_model, usage, size, records)
    amount = to_billionths(cost.amount) if cost else 0
    measured = settled * succeeded // max(succeeded + failed, 1)
    amount += again * amount // max(measured, 1)  # What was sent again may be paid again.
    return Spent(amount, settled, measured, succeeded), unfinished

"""What a job with `max_cost` has spent, computed anew from its batches at each visit.

(`shared.pacing.cost_limit`).

A visit stores it, then makes the batches due that now fit. If it dies in between, they look by
themselves later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dropbatch.core.cost import to_billionths
from dropbatch.core.cost_limit import Spent
from functions.poll.batch.paid import cost_so_far
from functions.poll.batch.unanswered import is_overdue
from functions.poll.batch.unmetered import unmetered
from shared.models import Batch, BatchState, Usage
from shared.pacing import cost_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dropbatch.core.cost import Cost
    from shared.bootstrap import Services
    from shared.models import Job

PAGE_BATCHES, MOST_READ = 100, 1_000
"""Batches that one visit reads, and the most if all of them are final.

Of those behind, it knows nothing yet.
"""


class Spending(NamedTuple):
    """What a visit found of a job's spending.

    Attributes:
        told: what it stores; nothing if it has no limit.
        waiting: the first batches that are ready to be submitted.
    """

    told: dict[str, Any]
    waiting: tuple[Batch, ...] = ()


def spending(services: Services, job: Job) -> Spending:
    """What a job has spent.

    Raises:
        StorageError: DynamoDB failed.
    """
    if job.cost_reached or job.max_cost is None:
        return Spending({})
    spent, again, unfinished = _so_far(services, job)
    # As long as an answer may come, more may be known; what may be paid again ends no job.
    is_known = all(_waits(one) or _is_late(services, one) for one in unfinished)
    known = replace(job, spent=spent)
    is_reached = bool(unfinished) and is_known and not cost_limit.allows_batch(known, unfinished[0])
    is_spent = spent.amount - again >= job.max_cost
    return Spending(
        {"spent": spent, "cost_reached": is_reached or is_spent}, tuple(filter(_waits, unfinished))
    )


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
    return batch.state is BatchState.READY and not (
        batch.ending or batch.isolating or batch.pollable
    )


def _is_late(services: Services, batch: Batch) -> bool:
    """Whether a batch is to be submitted again, because its answer is overdue."""
    return batch.state is BatchState.QUEUED and is_overdue(services, batch, services.now())


def _so_far(services: Services, job: Job) -> tuple[Spent, int, list[Batch]]:
    """What is spent, what of it may be paid again for batches that are not final.

    And the first of these.

    The batches up to the output's mark are in the job's sums; the others are read, as far as one
    visit reads.
    """
    sums = job.sums
    usage, size, records = sums.usage, sums.unmetered_size, sums.unmetered_records
    vain_size, vain_records = sums.vain_size, sums.vain_records
    succeeded, sent = sums.succeeded, sums.succeeded + sums.failed - sums.unsent
    last = services.ledger.batch(job.job_id, job.output.mark) if job.output.mark else None
    settled = last.estimated_before + last.estimate if last else 0
    longest, unfinished = 0, list[Batch]()
    batches = services.ledger.batches(
        job.job_id, after=job.output.mark, page_size=PAGE_BATCHES, unreadable=[]
    )
    for seen, batch in enumerate(batches, 1):
        if batch.state in {BatchState.DONE, BatchState.DIVIDED}:
            more = unmetered(batch)
            size, records = size + more.size, records + more.records
            vain_size, vain_records = vain_size + more.vain_size, vain_records + more.vain_records
        else:
            unfinished.append(batch)
            longest += max(len(batch.submissions) + batch.unknowable - 1, 0) * batch.estimate
        if (part := batch.part) is not None:
            usage, settled = usage.plus(part.usage), settled + batch.estimate
            succeeded, sent = succeeded + part.succeeded, sent + batch.sendable
        if seen >= MOST_READ or (seen >= PAGE_BATCHES and unfinished):
            break
    model = job.plan.known_model
    amount = _billionths(cost_so_far(model, usage, size, records))
    vain = _billionths(cost_so_far(model, Usage(), vain_size, vain_records))
    measured = settled * succeeded // max(sent, 1)  # Estimates are of what was sent.
    # What was sent again may be paid again.
    again = longest * (amount - vain) // measured if measured else longest
    return Spent(amount + again, settled, measured, succeeded, vain + again), again, unfinished


def _billionths(cost: Cost | None) -> int:
    return to_billionths(cost.amount) if cost else 0

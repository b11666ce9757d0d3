"""What a job costs, and which of its batches its `max_cost` lets be submitted.

The promise: a job spends a tenth more than `max_cost` at most, whoever dies when. A batch's place
in the sum of its job's estimates is its reservation: the batches up to the job's `room` may be
submitted, those beyond it wait. Each visit measures the room anew from what the final batches have
cost, and stores it under its lease. A submit writes nothing, so no reservation is leaked or counted
twice, and a visit that dies leaves a room that is smaller than it could be, never larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dropbatch.core.formats.base import Task
from dropbatch.core.models import Model
from dropbatch.core.prices import Cost, Tokens, cost_of, estimate_cost, has_price, to_billionths
from shared.job_status import counted
from shared.ledger import Ledger
from shared.models import Batch, BatchState, CostLimit, Job, JobTotals
from shared.workers_ai.usage import Usage

CODE = "cost"  # Of a wait for room; no status shows it, because the job's own answers end it
PAGE_BATCHES, MOST_READ = 100, 1_000  # Batches read beyond the mark, and if all are final
UNMEASURED = 2  # Divides what is left until an answer tells what answers cost
MOST_UNKNOWN = 8  # Outstanding at most, in estimates of what was answered
ANSWERS_SPREAD, TEXTS_SPREAD = 5.0, 1.0
"""Error of a mean of n costs, in means divided by √n: of answers (10 or 10,000 tokens), texts."""
COST_LOOK_SECONDS, MAX_COST_LOOK_SECONDS = 15.0, 1_800.0  # To a look at a batch without room


def allows(job: Job, before: int, more: int) -> bool:
    """Whether a job's limit lets a batch be submitted, by the estimates before it and its own."""
    return job.cost is None or before + more <= job.cost.room


def allows_batch(job: Job, batch: Batch) -> bool:
    """Whether a job's limit lets a batch be submitted now."""
    return allows(job, batch.records.estimated_before, batch.records.estimate)


def look_at(batch: Batch, now: float) -> float:
    """When a batch looks again by itself whether there is room for it, Unix seconds."""
    return now + min(max((now - batch.created_at) / 4, COST_LOOK_SECONDS), MAX_COST_LOOK_SECONDS)


def first_limit(limit: int) -> CostLimit:
    """A new job's limit, in billionths of a dollar."""
    return CostLimit(limit, limit // UNMEASURED)


def measure(
    ledger: Ledger, job: Job, limit: CostLimit, is_overdue: Callable[[Batch], bool]
) -> tuple[CostLimit, list[Batch]]:
    """A job's limit as its final batches leave it, and the first batches that are not final."""
    sums, unfinished = _final_and_unfinished(ledger, job)
    model = job.plan.known_model
    spent = cost_so_far(model, sums)
    amount = to_billionths(spent.amount) if spent else 0
    # What was sent again may be paid again.
    again = sum(max(one.submits - 1, 0) * one.records.estimate for one in unfinished)
    if sums.answered:
        again = min(again * amount // sums.answered, again)
    left = max(limit.limit - amount - again, 0)
    ratio = _ratio(model, amount, sums, left)
    outstanding = left // UNMEASURED
    if sums.answered:
        outstanding = min(int(left / ratio), max(MOST_UNKNOWN * sums.answered, outstanding))
    room, is_reached = sums.estimated + outstanding, False
    is_idle = all(waits_for_submit(one) or is_overdue(one) for one in unfinished)
    if unfinished and is_idle:
        # No answer will tell more, so one batch may use all that is left.
        first = unfinished[0]
        if first.records.estimate <= left:
            room = max(room, first.records.estimated_before + first.records.estimate)
        is_reached = first.records.estimated_before + first.records.estimate > room
    return CostLimit(limit.limit, room, limit.is_reached or is_reached), unfinished


def waits_for_submit(batch: Batch) -> bool:
    """Whether a batch waits to be submitted, and no answer to it can come."""
    is_open = batch.state is BatchState.READY
    return is_open and not (batch.ending or batch.isolating)


def with_room(before: Job, after: Job, batches: Iterable[Batch]) -> list[Batch]:
    """The batches that wait and have room now, but had none before a visit's write."""
    allowed = [one for one in batches if waits_for_submit(one) and allows_batch(after, one)]
    return [one for one in allowed if not allows_batch(before, one)]


def _final_and_unfinished(ledger: Ledger, job: Job) -> tuple[JobTotals, list[Batch]]:
    """The sums of all final batches, and the first others, as far as one measurement reads."""
    sums, unfinished = job.sums, list[Batch]()
    mark, size = job.output.mark, PAGE_BATCHES
    batches = ledger.batches(job.job_id, after=mark, page_size=size, unreadable=[])
    for seen, batch in enumerate(batches, 1):
        if batch.state in {BatchState.DONE, BatchState.DIVIDED}:
            sums = counted(sums, batch)
        else:
            unfinished.append(batch)
        if seen >= MOST_READ or (seen >= PAGE_BATCHES and unfinished):
            break
    return sums, unfinished


def _ratio(model: Model, amount: int, sums: JobTotals, left: int) -> float:
    """What later batches cost at most of their estimates, as far as answers tell; 1 before any.

    As if one more answer was as long as it may be, and with the errors of the means of the records
    that are answered and of those that could follow.
    """
    if not sums.answered:
        return 1.0
    each = sums.answered / sums.succeeded
    measured = (amount + each) / (sums.answered + each)
    spread = TEXTS_SPREAD if model.task is Task.EMBEDDINGS else ANSWERS_SPREAD
    error = spread * math.sqrt(1 / sums.succeeded + measured * each / max(left, 1))
    return min(measured * (1 + error), max(measured, 1.0))


def cost_so_far(model: Model, sums: JobTotals) -> Cost | None:
    """What reported tokens cost, and accepted work without; None for a model without a price."""
    usage = sums.usage
    counts = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
    cost = cost_of(model, Tokens(*(one or 0 for one in counts)))
    if cost and sums.unmetered_size:
        return cost.plus(estimate_cost(model, sums.unmetered_size, sums.unmetered_records))
    return cost


def priced(model: Model, usage: Usage) -> Usage:
    """A batch's usage if it has all tokens that the model bills; else nothing: it is estimated."""
    lacks_output = usage.completion_tokens is None and bool(model.output_price)
    is_whole = usage.is_reported and not lacks_output
    return usage if is_whole or not has_price(model) else Usage()

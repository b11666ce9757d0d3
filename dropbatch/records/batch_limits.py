"""How many records a batch may have, by the job's plan and the batch's number. Calls no service."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dropbatch.records.plan import SplitPlan

FIRST_BATCH_RECORDS = 500
"""Records in the first batches of a job, so that a small job is quick and a first error costs little."""
BATCHES_PER_DOUBLING = 4
"""Batches of one size before the size doubles. Never change it: jobs that are being split must be cut the same way."""


def max_records(plan: SplitPlan, number: int) -> int:
    """Records that one batch of a job may have; depends only on the plan and the batch's number.

    The first four batches have up to `first_requests` records, the next four twice as many, and so on up to
    `max_requests`. Without `first_requests` all have `max_requests`.
    """
    if not plan.first_requests:
        return plan.max_requests
    doublings = min(number // BATCHES_PER_DOUBLING, 30)
    return min(plan.first_requests << doublings, plan.max_requests)

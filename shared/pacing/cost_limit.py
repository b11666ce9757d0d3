"""A job's `max_cost`.

Which of its batches may be submitted, by what its item says that it has spent.

A batch's place in the sum of estimates is its reservation (`dropbatch.core.cost_limit`). So a
submit reserves nothing by a write: it reads the job, and goes on if the batch is within the room
that the job has. A visit computes anew what the batches that are final have cost
(`functions.poll.schedule.spending`) and stores it with its status, in one write under its lease.
Whoever dies leaves nothing behind that the next visit would not compute.

| who dies | what follows |
| --- | --- |
| a submit, before its POST | the batch keeps its place, so its money stays reserved, once, for its next try |
| a submit, after its POST | the batch's recovery finds what became of it, as of any other; it is not reserved again |
| a visit, before its write | the job's room is as it was: smaller than it could be, never larger |
| a visit, after its write | the batches that it gave room were not made due: each looks by itself, a little later |

A batch beyond the room waits until a visit makes it due, or for its own next look, each time
longer; neither its expiry nor its claims count meanwhile. When all batches before it are final and
it still does not fit, nothing more will be known: the visit notes that the limit is reached, and a
sweep ends what was not sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.cost_limit import Spent, fits

if TYPE_CHECKING:
    from shared.models import Batch, Job

COST_LOOK_SECONDS, MAX_COST_LOOK_SECONDS = 15.0, 1_800.0
"""Shortest and longest time until the next look at a batch beyond its job's room.

Between them a quarter of its age.
"""


def allows(job: Job, before: int, more: int) -> bool:
    """Whether a job's limit allows a batch.

    Args:
        job: as just read.
        before: sum of the estimates of the batches before it.
        more: its own estimate.
    """
    return job.max_cost is None or fits(
        job.plan.known_model, job.max_cost, job.spent or Spent(), before, more
    )


def allows_batch(job: Job, batch: Batch) -> bool:
    """Whether a job's limit allows to submit a batch now."""
    return allows(job, batch.estimated_before, batch.estimate)


def look_at(batch: Batch, now: float) -> float:
    """When to look again at a batch beyond its job's room, Unix seconds."""
    return now + min(max((now - batch.created_at) / 4, COST_LOOK_SECONDS), MAX_COST_LOOK_SECONDS)

"""Sweep: after a command for a job, its batches are adjusted, a page at a time, within visits of the job.

- Paused: batches that wait to be submitted are postponed by a day, so that they hide no other job's in the `due` index.
- Resumed: they get their turns again, at the rate at which they can be submitted; the next page follows when the
  batches of this page have had their turns.
- Cancelled: batches that were never accepted end, without waiting for a token of the rate budget; with `cancel now`
  the accepted ones end too.

The job item holds the progress of a pass. It is written on the condition that the control is still the one that was
read, so a command in between begins its own pass. Each batch is changed by one conditional write: a function that dies
leaves the rest of the page to the next visit. After a pause ends, a second pass finds batches that a slow function
postponed meanwhile. Batches that a pass misses are not lost: each is checked when its own turn comes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from functions.poll.due_items import in_parallel, isolated
from functions.poll.poll_batch import poll_batch
from functions.poll.unanswered import end
from shared.errors import LeaseLostError, UnreadableItemError
from shared.ledger import DueEntry
from shared.models import CANCEL_NOW, CANCELLED, Batch, BatchState, Job, JobControl, JobState
from shared.observability import logger
from shared.pacing.controls import Permit

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.bootstrap import Services

PAGE_BATCHES = 100
MAX_SWEEP_SECONDS, RESERVE_SECONDS = 80.0, 40.0
"""Seconds that one visit sweeps, and seconds of its invocation that it leaves to the rest of the visit."""
SLOW_HOLD_SECONDS = 300.0
"""Seconds after which the second pass begins: longer than an invocation that read the job before can run."""


def sweep(services: Services, job: Job, remaining: Callable[[], float]) -> Job:
    """Adjust the batches of a leased job, as far as time allows; return the job as it is afterwards.

    Raises:
        LeaseLostError: a command came meanwhile; the next visit begins again.
        StorageError: DynamoDB failed.
    """
    ends = services.now() + min(MAX_SWEEP_SECONDS, remaining() - RESERVE_SECONDS)
    while (control := job.control) and (next_sweep(job) or math.inf) <= services.now() < ends:
        page, is_last = _page(services, job, control)
        adjusted = _adjust_page(services, job, page, remaining)
        moved = services.ledger.note_control(job, _after(services, control, page, adjusted, is_last=is_last))
        if moved is None:
            services.ledger.release_job(job, services.now())
            raise LeaseLostError(job.job_id)
        job = moved
    return job


def next_sweep(job: Job) -> float | None:
    """When the sweep of a job continues; None if there is none, or its upload is still being read."""
    if job.control is None or not job.control.sweeps or job.state is not JobState.IN_PROGRESS:
        return None
    return job.control.sweep_due


def _page(services: Services, job: Job, control: JobControl) -> tuple[list[Batch], bool]:
    """The next batches, and whether they are the last that can be read."""
    page: list[Batch] = []
    try:
        page.extend(
            services.ledger.batches(job.job_id, after=control.sweep_after, limit=PAGE_BATCHES, page_size=PAGE_BATCHES)
        )
    except UnreadableItemError:
        logger.exception("sweep ends at an unreadable batch", job_id=job.job_id)
        return page, True
    return page, len(page) < PAGE_BATCHES


def _after(services: Services, control: JobControl, page: list[Batch], adjusted: int, *, is_last: bool) -> JobControl:
    """The control after a page: the next page, the next pass, or none."""
    now = services.now()
    if not is_last:
        pace = 0.0 if control.held_since or control.cancelled else adjusted * _turn_seconds(services)
        return replace(control, sweep_after=page[-1].number, sweep_due=now + pace)
    return replace(control, sweeps=control.sweeps - 1, sweep_after="", sweep_due=now + SLOW_HOLD_SECONDS)


def _adjust_page(services: Services, job: Job, page: list[Batch], remaining: Callable[[], float]) -> int:
    """Adjust each batch in isolation; return how many were adjusted."""
    if not job.cancelled and not job.is_held:
        held = [batch for batch in page if batch.held and batch.state is BatchState.READY and not batch.ending]
        now, apart = services.now(), _turn_seconds(services)
        steps = [(batch, now + place * apart) for place, batch in enumerate(held)]
        in_parallel(lambda one: _isolated(services, one[0], lambda: services.ledger.release(*one)), steps)
        return len(steps)
    step = _cancel if job.cancelled else _hold

    def adjust(batch: Batch) -> bool:
        return _isolated(services, batch, lambda: step(services, job, batch, remaining))

    return sum(in_parallel(adjust, page))


def _isolated(services: Services, batch: Batch, step: Callable[[], object]) -> bool:
    return bool(isolated(services, DueEntry(batch.job_id, batch.number, None), step))


def _turn_seconds(services: Services) -> float:
    """Seconds between the turns of two batches: submits may use half of the rate budget."""
    return 2 * services.budget.interval / 1_000


def _hold(services: Services, job: Job, batch: Batch, _remaining: Callable[[], float]) -> bool:
    waits = batch.state is BatchState.READY and not batch.ending and not batch.halving and not batch.waits_anew
    if not waits or batch.held:
        return False
    return services.ledger.hold(batch, services.now(), job.deadline_at) is not None


def _cancel(services: Services, job: Job, batch: Batch, remaining: Callable[[], float]) -> bool:
    """End a batch if it may end now; one that is being submitted or split becomes due automatically."""
    now = services.now()
    if batch.state is BatchState.READY and not batch.ending and not batch.pieces:
        if batch.pollable and job.cancelled != CANCEL_NOW:
            return services.ledger.keep_polling(batch, CANCELLED, now) is not None
        return end(services, job, batch, CANCELLED)
    is_over = batch.ending is not None and batch.due_at is not None and batch.due_at <= now
    if is_over or (batch.state is BatchState.QUEUED and job.cancelled == CANCEL_NOW):
        return poll_batch(services, job, batch, Permit(), remaining).done
    return False

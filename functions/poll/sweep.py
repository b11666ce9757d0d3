"""Sweep: what a job's state means for its batches, carried out a page at a time within visits.

| the job | its batches |
| --- | --- |
| is cancelled at once, or its account is gone | all end |
| has an error, is past its deadline, is cancelled | those never accepted end, without a call |
| is paused | those that wait to be submitted are put off by a day: they hide no other job's |
| was resumed | they get slots again, at the submit rate; the next page follows the last of these |
| has batches that split created only to end them | these end |

The first row that applies is the job's goal, and the job item holds the progress towards it.
Whoever changes the job begins no sweep: a visit that finds another goal in the item than the job
has begins a new one, so none is forgotten. Each batch is changed by conditional writes of its own:
a function that dies leaves the rest of the page to the next visit. A second pass finds batches that
a slow function, which read the job before, changed meanwhile. Batches that a pass misses are not
lost: each is checked when its own slot comes.
"""

from __future__ import annotations

from dataclasses import replace

from dropbatch.core.names import JobState
from functions.poll.collect import collect
from functions.poll.contain import each_contained
from functions.poll.poll import poll_batch
from shared.job_status import build_status, noted_wait, write_status
from shared.ledger import DueEntry, still_leased
from shared.models import CANCELLED, Batch, BatchState, Job, JobControl, Sweep, SweepGoal
from shared.observability import logger
from shared.pacing.breaker import Permit
from shared.pacing.cost import waits_for_submit
from shared.services import Invocation, Services

PAGE_BATCHES = 100  # Most batches of a page, which takes seconds
SLOW_HOLD_SECONDS = 300.0  # To the second pass: longer than one that read the job before
PASSES = {
    SweepGoal.END_ALL: 2,
    SweepGoal.END: 2,
    SweepGoal.HOLD: 1,
    SweepGoal.RELEASE: 2,
    SweepGoal.FINISH: 1,
}


def sweep(invocation: Invocation, job: Job) -> Job:
    """Adjust the batches of a leased job, as far as time allows; return the job afterwards."""
    services = invocation.services
    now = services.now()
    ends = min(now + 115.0, invocation.deadline - 25.0)  # The rest of the visit takes time.
    while (
        (at := next_sweep(job, now)) is not None
        and at <= now < ends
        and (progress := current_sweep(job, now))
    ):
        if progress is not job.sweep and job.error:
            # The sweep may take minutes; the user reads at once why the job ends.
            write_status(services, job, build_status(job, noted_wait(job, now)))
        page, last = _page(services, job, progress)
        adjusted = _adjust_page(invocation, job, progress.goal, page)
        following = _after(services, progress, last, adjusted)
        job = still_leased(services.ledger.update_leased_job(job, {"sweep": following}), job.job_id)
        now = services.now()
    return job


def next_sweep(job: Job, now: float) -> float | None:
    """When the sweep of a job continues; None if there is none, or its upload is being read."""
    progress = current_sweep(job, now)
    if progress is None or not progress.passes or job.state is not JobState.IN_PROGRESS:
        return None
    return progress.due


def current_sweep(job: Job, now: float) -> Sweep | None:
    """The sweep that a job's state asks for: its progress, or the beginning of a new one."""
    control = job.control or JobControl()
    goal, since = SweepGoal.FINISH, 0.0
    if job.is_answerless:
        goal = SweepGoal.END_ALL
    elif job.ending(now):
        goal = SweepGoal.END
    elif control.held_since:
        goal, since = SweepGoal.HOLD, control.held_since
    elif control.resumed_at:
        goal, since = SweepGoal.RELEASE, control.resumed_at
    elif not job.reading.has_endings:
        return None
    if job.sweep and (job.sweep.goal, job.sweep.since) == (goal, since):
        return job.sweep
    return Sweep(goal, since, PASSES[goal])


def _page(services: Services, job: Job, progress: Sweep) -> tuple[list[Batch], str]:
    """The next readable batches, and the number after which the next page begins, or empty."""
    lost: list[str] = []
    after, most = progress.after, PAGE_BATCHES
    page = list(services.ledger.batches(job.job_id, after=after, limit=most, unreadable=lost))
    if lost:
        logger.error("sweep passes over unreadable batches", job_id=job.job_id, numbers=lost[:10])
    numbers = [batch.number for batch in page] + lost
    return page, "" if len(numbers) < PAGE_BATCHES else max(numbers)


def _after(services: Services, progress: Sweep, last: str, adjusted: int) -> Sweep:
    """The progress after a page: the next one, after the number `last`, the next pass, or none."""
    now = services.now()
    if last:
        apart = services.budget.slot_seconds if progress.goal is SweepGoal.RELEASE else 0.0
        return replace(progress, after=last, due=now + adjusted * apart)
    return replace(progress, passes=progress.passes - 1, after="", due=now + SLOW_HOLD_SECONDS)


def _adjust_page(invocation: Invocation, job: Job, goal: SweepGoal, page: list[Batch]) -> int:
    """Adjust each batch in isolation; return how many were adjusted."""
    services = invocation.services
    now, apart = services.now(), services.budget.slot_seconds
    ready = [one for one in page if one.state is BatchState.READY and not one.ending]
    held = [one.number for one in ready if one.held]
    slots = {number: now + place * apart for place, number in enumerate(held)}

    def adjust(batch: Batch) -> object:
        if batch.state is BatchState.READY and batch.ending:
            return _is_free(batch, now) and collect(services, job, batch, None)
        if goal in {SweepGoal.END, SweepGoal.END_ALL}:
            return _end(invocation, job, goal, batch)
        if goal is SweepGoal.HOLD:
            may_hold = waits_for_submit(batch) and not batch.held
            return may_hold and services.ledger.hold(batch, now, job.deadline_at)
        if goal is SweepGoal.RELEASE and batch.number in slots:
            return services.ledger.release(batch, slots[batch.number])
        return None

    items = [(DueEntry(batch.job_id, batch.number, None), batch) for batch in page]
    return sum(map(bool, each_contained(services, items, adjust)))


def _is_free(batch: Batch, now: float) -> bool:
    """Whether no other function has claimed a batch."""
    return batch.claims == 0 or (batch.due_at is not None and batch.due_at <= now)


def _end(invocation: Invocation, job: Job, goal: SweepGoal, batch: Batch) -> bool:
    """End a batch if it may end now; one that is submitted or divided is due by itself."""
    services = invocation.services
    now = services.now()
    if batch.state is BatchState.QUEUED:
        return goal is SweepGoal.END_ALL and poll_batch(invocation, job, batch, Permit())
    if batch.state is not BatchState.READY or batch.pieces:
        return False
    if batch.isolating:  # The API's reason to refuse it says more than the job's.
        return _is_free(batch, now) and poll_batch(invocation, job, batch, Permit())
    ending = job.ending(now) or CANCELLED
    # Only that one write ends it: it fails if the batch is submitted meanwhile.
    return collect(services, job, replace(batch, ending=ending), None)

"""The tick: takes what is due, a bounded number at a time, keeps a short cadence while something is due, and stops.

Nothing here is held in memory between two rounds; the `due` index says what to do. Work beyond this invocation's reach
goes to the poll queue, to more invocations of the same function. Submits and splits go to their own queues.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from functions.poll.ask import Asked, ask, needs_call
from functions.poll.finish import visit
from functions.poll.pauses import watch_pause
from shared.budget import Permit, Refusal
from shared.errors import LawBrokenError, StorageError
from shared.ledger import Due
from shared.observability import count, logger, of_batch
from shared.queues import AskMessage, BatchMessage, JobMessage
from shared.words import BatchState, JobState, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.services import Services
    from shared.words import Batch, Job

T = TypeVar("T")

TICK_SECONDS = 52.0
"""How long one tick keeps its cadence; the next comes a minute after its beginning."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
"""Seconds between two rounds of one tick."""
THREADS = 8
IN_HAND = 16
"""Batches one round asks after itself; more are handed to other invocations."""
JOBS = 25
"""Jobs one round visits."""
HANDED = 8
"""Batches in one message of the poll queue."""
MOST_COUNTED = 20_000
"""Open batches that a tick counts, at most, for the operator's eyes and to stop submits."""
DISPATCHED_SECONDS = 90.0
"""How long a message has to come true before a tick looks again."""


def tick(services: Services, remaining: Callable[[], float]) -> None:
    """Work on what is due until nothing is, or the tick's time is over.

    Raises:
        StorageError: the table refused or broke off.
    """
    began = services.now()
    ends = began + min(TICK_SECONDS, remaining() - 40)
    outstanding = services.ledger.count_open(Work.POLL, MOST_COUNTED)
    services.budget.note_outstanding(outstanding)
    count("BatchesOutstanding", outstanding)
    waiting = services.ledger.count_open(Work.SUBMIT, MOST_COUNTED)
    count("BatchesWaiting", waiting)
    watch_pause(services, began, submits_wait=waiting > 0, polls_wait=outstanding > 0)
    polls_left = services.budget.calls_in(60)
    while True:
        worked, polls, following = _round(services, polls_left, remaining)
        polls_left -= polls
        pause = SHORTEST_PAUSE if worked else max(following - services.now(), SHORTEST_PAUSE)
        if services.now() + pause >= ends:
            count("Ticks")  # Last, so that ticks that die are missed.
            return
        services.sleep(min(pause, LONGEST_PAUSE))


def _round(services: Services, polls_left: int, remaining: Callable[[], float]) -> tuple[bool, int, float]:
    """One look at each kind of due work: what finds no token now is not even looked at.

    Returns:
        Whether there was any, how many batches were asked after or handed over, and when the next work will be due.
    """
    now = services.now()
    for_submits, for_polls = services.budget.free(now)
    submits, next_submit = services.ledger.due(Work.SUBMIT, now, for_submits)
    polls, next_poll = services.ledger.due(Work.POLL, now, min(for_polls, polls_left))
    jobs, next_job = services.ledger.due(Work.JOB, now, JOBS)
    sent = _send_submits(services, submits) + _hand_over(services, polls[IN_HAND:])
    brought, done = bring_on(services, ((due.job_id, due.number) for due in polls[:IN_HAND]), remaining)
    visited = visit_all(services, done | _jobs_to_visit(services, jobs), remaining)
    following = [at for at in (next_submit, next_poll, next_job) if at is not None]
    return sent + brought + visited > 0, len(polls), min(following, default=math.inf)


def _jobs_to_visit(services: Services, dues: list[Due]) -> set[str]:
    """Due jobs; those whose upload is still being read go on in the submit function instead."""
    now = services.now()
    wanted = set()
    for due in dues:
        job = _readable(due, lambda due: services.ledger.job(due.job_id))
        if job and job.state is JobState.SPLITTING:
            if (job.due_at or now) <= now and services.ledger.postpone_job(job, now + DISPATCHED_SECONDS):
                services.queues.send(JobMessage(job.job_id))
        elif job:
            wanted.add(job.job_id)
    return wanted


def _readable(due: Due, read: Callable[[Due], T | None]) -> T | None:
    """Read what is due; an item that cannot be read must not hold the others up."""
    try:
        return read(due)
    except LawBrokenError:
        logger.exception("item not readable", job_id=due.job_id, number=due.number)
        count("LawsBroken")
        return None


def bring_on(
    services: Services, batches: Iterable[tuple[str, str]], remaining: Callable[[], float]
) -> tuple[int, set[str]]:
    """Ask after batches, or write down those that only wait for it, many at once.

    Returns:
        How many batches were worked on, and the jobs that got a part by it.
    """
    wanted = []
    jobs: dict[str, Job | None] = {}
    now = services.now()
    for job_id, number in batches:
        due = Due(job_id, number, now)
        if job_id not in jobs:
            jobs[job_id] = _readable(due, lambda due: services.ledger.job(due.job_id))
        batch, job = _readable(due, lambda due: services.ledger.batch(due.job_id, due.number)), jobs[job_id]
        if batch and job and batch.state in {BatchState.QUEUED, BatchState.READY} and batch.work is Work.POLL:
            wanted.append((job, batch))
    calls = sum(needs_call(batch) for _, batch in wanted)
    granted, permit = services.budget.permit_polls(calls, now) if calls else (0, Permit())
    chosen: list[tuple[Job, Batch, Permit]] = []
    for job, batch in wanted:
        if not needs_call(batch):
            chosen.append((job, batch, Permit()))
        elif isinstance(permit, Refusal):
            waited = permit.until - now if permit.paused else 0.0
            services.ledger.postpone(batch, permit.until, paused=batch.paused + waited)
        elif granted > 0:
            granted -= 1
            chosen.append((job, batch, permit))
    with ThreadPoolExecutor(THREADS) as threads:
        asked = list(threads.map(lambda one: _ask(services, one[0], one[1], one[2], remaining), chosen))
    return len(chosen), {one.job_id for one in asked if one and one.done}


def _ask(services: Services, job: Job, batch: Batch, permit: Permit, remaining: Callable[[], float]) -> Asked | None:
    """One batch, apart from the others: what goes wrong with it must not hold them up."""
    try:
        return ask(services, job, batch, permit, remaining)
    except Exception:  # noqa: BLE001 - whatever it is, it is logged, counted and comes due again
        logger.exception("batch not brought on", **of_batch(batch))
        count("Errors")
        return None


def visit_all(services: Services, job_ids: Iterable[str], remaining: Callable[[], float]) -> int:
    """Bring jobs on, one after another and each apart from the others; how many went well."""
    good = 0
    for job_id in job_ids:
        try:
            visit(services, job_id, remaining)
            good += 1
        except (StorageError, LawBrokenError):
            logger.exception("job not brought on", job_id=job_id)
            count("Errors")
    return good


def _dispatched(services: Services, dues: list[Due]) -> list[Due]:
    """Those batches that are really due, put off by one write each, so that the next round does not send them again."""
    now = services.now()
    sent = []
    for due in dues:
        batch = _readable(due, lambda due: services.ledger.batch(due.job_id, due.number))
        if batch and (batch.due_at or now + 1) <= now and services.ledger.postpone(batch, now + DISPATCHED_SECONDS):
            sent.append(due)
    return sent


def _send_submits(services: Services, dues: list[Due]) -> int:
    """Send due batches to the submit function; how many."""
    messages = [BatchMessage(due.job_id, due.number) for due in _dispatched(services, dues)]
    services.queues.send_all(messages)
    return len(messages)


def _hand_over(services: Services, dues: list[Due]) -> int:
    """Hand due batches to more invocations of this function; how many."""
    pairs = [(due.job_id, due.number) for due in _dispatched(services, dues)]
    services.queues.send_all(
        [AskMessage(tuple(pairs[start : start + HANDED])) for start in range(0, len(pairs), HANDED)]
    )
    return len(pairs)

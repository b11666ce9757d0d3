"""The tick: takes what is due, a bounded number at a time, keeps a short cadence while something is due, and stops.

Nothing here is held in memory between two rounds; the `due` index says what to do. Work beyond this invocation's reach
goes to the poll queue, to more invocations of the same function. Submits and splits go to their own queues.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from functions.poll.ask import COLLECT_SECONDS, SHORTEST_ASK, ask, needs_call
from functions.poll.dispatch import DISPATCHED_SECONDS, LOOKED_AT_IN_A_PAUSE, MOST_LOOKED_AT, dispatch, send_submits
from functions.poll.due import Found, apart, at_once, find
from functions.poll.finish import visit
from functions.poll.pauses import watch_pause
from shared.budget import Permit, Refusal
from shared.ledger import Due
from shared.observability import count, logger
from shared.queues import AskMessage, JobMessage, VisitMessage
from shared.words import BatchState, Job, JobState, Work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.services import Services

TICK_SECONDS = 52.0
"""How long one tick keeps its cadence; the next comes a minute after its beginning."""
LONGEST_TICK = 58.0
"""Seconds within which a tick has answered, its polls and what they bring included."""
SHORTEST_PAUSE, LONGEST_PAUSE = 1.0, 10.0
"""Seconds between two rounds of one tick."""
IN_HAND = 16
"""Batches one round polls itself, of small jobs only; more are handed to other invocations."""
KEPT_SECONDS = 8.0
"""Seconds of a tick kept after its own polls to store and join their small answers."""
LARGE_RECORDS, LARGE_UPLOAD = 2_000, 8 << 20
"""From so many records or bytes on, a job's answers are collected and joined outside of ticks."""
JOBS = 25
"""Jobs one round visits."""
HANDED = 8
"""Batches in one message of the poll queue."""
MOST_WAITING = 20
"""Messages that may wait in the poll queue for more to be sent."""
MOST_COUNTED = 20_000
"""Open batches that a tick counts, at most, for the operator's eyes and to stop submits."""
MOST_JOBS_COUNTED = 2_000
"""Jobs whose models are looked up when many batches are outstanding."""
AGAIN_SECONDS = 1.0
"""How long to wait before a job is visited again that somebody else had in hand."""


@dataclass
class _Left:
    """What a tick may still send to queues: no more than can call the API before the next tick."""

    submits: int
    polls: int


def tick(services: Services, remaining: Callable[[], float]) -> None:
    """Work on what is due until nothing is, or the tick's time is over.

    Raises:
        StorageError: the table's index or its control items could not be read.
    """
    began = services.now()
    ends = began + min(TICK_SECONDS, remaining() - 40)
    outstanding = _note_outstanding(services)
    waiting = sum(services.ledger.count_open(work, MOST_COUNTED) for work in (Work.FIRST, Work.SUBMIT))
    count("BatchesWaiting", waiting)
    watch_pause(services, began, submits_wait=waiting > 0, polls_wait=outstanding > 0)
    calls = services.budget.calls_in(60)
    left = _Left(calls // 2, calls)
    while True:
        worked, following = _round(services, left, remaining, began + LONGEST_TICK)
        pause = SHORTEST_PAUSE if worked else max(following - services.now(), SHORTEST_PAUSE)
        if services.now() + pause >= ends:
            count("Ticks")  # Last, so that ticks that die are missed.
            return
        services.sleep(min(pause, LONGEST_PAUSE))


def _note_outstanding(services: Services) -> int:
    """Count outstanding batches, by model only when there are as many as one model may have; how many."""
    outstanding = services.ledger.count_open(Work.POLL, MOST_COUNTED)
    count("BatchesOutstanding", outstanding)
    full: list[str] = []
    if outstanding >= services.budget.most_outstanding:
        by_job = services.ledger.count_by_job(Work.POLL, MOST_COUNTED)
        largest = dict(by_job.most_common(MOST_JOBS_COUNTED))
        by_model: Counter[str] = Counter()
        for job_id, model in services.ledger.models_of(list(largest)).items():
            by_model[model] += largest[job_id]
        full = services.budget.full_models(by_model, by_job.total())
        logger.warning("models have as many batches outstanding as they may", models=full, outstanding=outstanding)
    services.budget.note_outstanding(outstanding, full)
    return outstanding


def _round(services: Services, left: _Left, remaining: Callable[[], float], over: float) -> tuple[bool, float]:
    """One look at each kind of due work: what finds no token now is not even looked at.

    Args:
        services: the process's services.
        left: what the tick may still send.
        remaining: seconds this invocation has left.
        over: when the tick has to be over, Unix seconds.

    Returns:
        Whether there was any, and when the next work will be due.
    """
    now = services.now()
    free = services.budget.free(now)
    following: list[float] = []

    def due(work: Work, limit: int, *, heeds: bool = True) -> list[Due]:
        found, next_at = services.ledger.due(work, now, max(limit, 0))
        if next_at is not None and heeds:
            following.append(next_at)
        return found

    most = LOOKED_AT_IN_A_PAUSE if free.paused else MOST_LOOKED_AT
    firsts = due(Work.FIRST, most if free.first or free.paused else 0, heeds=not free.paused)
    submits = due(Work.SUBMIT, most if free.submits or free.paused else 0, heeds=not free.paused)
    polls = due(Work.POLL, min(free.polls, left.polls))
    jobs = due(Work.JOB, JOBS)
    pause = free.look_at if free.paused else None
    sent, calls = send_submits(services, firsts, min(free.first, left.submits), pause)
    others = min(free.submits, left.submits - sent) - (min(free.first, left.submits) - calls)
    if others > 0 or free.paused:
        sent += send_submits(services, submits, max(others, 0), pause)[0]
    left.submits -= sent
    polled = _polls(services, polls, left, remaining, over)
    visited = _visit_due(services, jobs, remaining)
    return sent + polled + visited > 0, min(following, default=math.inf)


# ── polls ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _polls(services: Services, dues: list[Due], left: _Left, remaining: Callable[[], float], over: float) -> int:
    """Poll what one round can, and hand over the rest; how many batches were worked on or handed over."""
    found = [one for one in find(services, dues) if one.batch.work is Work.POLL]
    begun = [one for one in found if one.batch.state is BatchState.SUBMITTING]
    polls = [one for one in found if one.batch.state is not BatchState.SUBMITTING]
    in_hand: list[Found] = []
    time = over - KEPT_SECONDS - services.now()
    if min(time, remaining() - COLLECT_SECONDS) > SHORTEST_ASK:
        in_hand = [one for one in polls if not is_large(one.job)][:IN_HAND]
    held = {one.due for one in in_hand}
    recovered = dispatch(services, begun)  # The submit function settles what a dead one left behind.
    handed = _hand_over(services, [one for one in polls if one.due not in held])

    def limited() -> float:
        return min(remaining(), over - KEPT_SECONDS + COLLECT_SECONDS - services.now())

    polled = _poll(services, in_hand, limited, remaining)
    left.polls -= handed + polled
    return recovered + handed + polled


def bring_on(services: Services, batches: Iterable[tuple[str, str]], remaining: Callable[[], float]) -> int:
    """Poll batches named by a message, or write down those that only wait for it, many at once; how many."""
    found = find(services, (Due(job_id, number, None) for job_id, number in batches))
    return _poll(services, [one for one in found if one.batch.work is Work.POLL], remaining, remaining)


def _poll(services: Services, found: list[Found], polling: Callable[[], float], remaining: Callable[[], float]) -> int:
    """Poll batches and visit their jobs; how many.

    Args:
        services: the process's services.
        found: batches.
        polling: seconds left for polls.
        remaining: seconds this invocation has left.
    """
    found = [one for one in found if one.batch.state in {BatchState.QUEUED, BatchState.READY}]
    now = services.now()
    calls = sum(needs_call(one.job, one.batch, now) for one in found)
    granted, permit = services.budget.permit_polls(calls, now) if calls else (0, Permit())
    chosen: list[tuple[Found, Permit]] = []
    for one in found:
        if not needs_call(one.job, one.batch, now):
            chosen.append((one, Permit()))
        elif isinstance(permit, Refusal):
            _postpone(services, one, permit, now)
        elif granted > 0:
            granted -= 1
            chosen.append((one, permit))

    def step(one: Found, permit: Permit) -> str | None:
        """The job's id if it got a part and is to be visited again."""
        asked = ask(services, one.job, one.batch, permit, polling)
        # At once, not when all polls of this round are over: some take a minute.
        return one.job.job_id if asked.done and not visit(services, one.job.job_id, remaining) else None

    again = at_once(lambda pair: apart(services, pair[0].due, lambda: step(*pair)), chosen)
    if wanted := {job_id for job_id in again if job_id}:
        services.sleep(AGAIN_SECONDS)
        visit_all(services, sorted(wanted), remaining)
    return len(chosen)


def _postpone(services: Services, found: Found, refusal: Refusal, now: float) -> None:
    """Put off a poll that finds no token, or that a pause keeps from being made."""
    waited = refusal.until - now if refusal.paused else 0.0
    batch = found.batch
    apart(
        services,
        found.due,
        lambda: services.ledger.postpone(batch, refusal.until, paused=batch.paused + waited),
    )


def _hand_over(services: Services, found: list[Found]) -> int:
    """Hand batches to more invocations of this function, unless too many wait there already; how many."""
    if not found:
        return 0
    room = max(MOST_WAITING - services.queues.waiting(services.queues.poll_url), 0)
    chosen = found[: room * HANDED]

    def postponed(one: Found) -> bool:
        return services.ledger.postpone(one.batch, services.now() + DISPATCHED_SECONDS) is not None

    done = at_once(lambda one: apart(services, one.due, lambda: postponed(one)), chosen)
    pairs = [(one.batch.job_id, one.batch.number) for one, is_done in zip(chosen, done, strict=True) if is_done]
    services.queues.send_all(
        [AskMessage(tuple(pairs[start : start + HANDED])) for start in range(0, len(pairs), HANDED)]
    )
    return len(pairs)


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_large(job: Job) -> bool:
    """Whether a step of a job may take so long that a tick must not wait for it."""
    return job.upload.size > LARGE_UPLOAD or job.total is None or job.total > LARGE_RECORDS


def _visit_due(services: Services, dues: list[Due], remaining: Callable[[], float]) -> int:
    """Visit small jobs that are due, and send large ones, and those whose upload is still being read, to queues."""

    def step(due: Due) -> bool:
        job = services.ledger.job(due.job_id)
        if job is None:
            return False
        if job.state is not JobState.SPLITTING and not is_large(job):
            visit(services, job.job_id, remaining)
            return True
        now = services.now()
        if (job.due_at or now) > now or services.ledger.postpone_job(job, now + DISPATCHED_SECONDS) is None:
            return False
        splitting = job.state is JobState.SPLITTING
        services.queues.send(JobMessage(job.job_id) if splitting else VisitMessage(job.job_id))
        return True

    return sum(bool(done) for done in at_once(lambda due: apart(services, due, lambda: step(due)), dues))


def visit_all(services: Services, job_ids: Iterable[str], remaining: Callable[[], float]) -> None:
    """Visit jobs, each apart from the others; a job that fails comes up by its `due_at`."""
    dues = [Due(job_id, "", None) for job_id in job_ids]
    at_once(lambda due: apart(services, due, lambda: visit(services, due.job_id, remaining)), dues)

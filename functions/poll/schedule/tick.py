"""The tick: processes due items in cycles, a bounded number of each kind, until there are none or its time is over.

Nothing is kept in memory between two cycles: the `due` index holds what to do. Work that one invocation cannot do is
sent to queues, one for each kind of message, each with a bound of its own. Jobs that a visit moves on come first in
each cycle. Visits that only show how far a job is come last, a bounded number in a tick: the more jobs are open, the
rarer they are. At its end the tick deletes what jobs that are over have staged.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from functions.poll.schedule.control import watch_stack_control
from functions.poll.schedule.delete_staged import delete_staged
from functions.poll.schedule.dispatch_submits import MAX_EXAMINED, MAX_EXAMINED_IN_A_PAUSE, SubmitCalls, send_submits
from functions.poll.schedule.due_jobs import advance_due_jobs, show_idle_jobs
from functions.poll.schedule.due_polls import PollAllowance, poll_due_batches
from functions.poll.schedule.pauses import watch_pause
from shared.models import DueKind
from shared.observability import count, logger

if TYPE_CHECKING:
    from collections.abc import Collection

    from shared.aws.queues import WakeMessage
    from shared.bootstrap import Services
    from shared.invocation import Invocation
    from shared.ledger import DueEntry

TICK_SECONDS = 52.0
"""Seconds that one tick runs cycles; the next tick starts a minute after this one started."""
MAX_TICK_SECONDS = 58.0
"""Seconds within which a tick ends, its own polls and their collection included."""
MIN_SLEEP_SECONDS, MAX_SLEEP_SECONDS = 1.0, 10.0
"""Seconds between two cycles of one tick."""
MAX_JOBS = 25
"""Jobs of each kind that one cycle visits."""
MAX_IDLE_VISITS = 300
"""Jobs that one tick visits only to show how far they are: the cost of many open jobs is bounded."""
MAX_COUNTED = 20_000
"""Most open batches that a tick counts, for its metrics and to stop submits."""
MAX_JOBS_COUNTED = 2_000
"""Jobs whose models are looked up when many batches are outstanding."""


@dataclass
class _Allowance:
    """What a tick may still send to queues: no more than can call the API before the next tick."""

    firsts: int
    """First batches of jobs; they are sent again when a poll took their token."""
    submits: int
    polls: PollAllowance
    idle_visits: int

    @staticmethod
    def of(calls: int, idle_visits: int) -> _Allowance:
        """The allowance of a tick in which so many calls can be made."""
        return _Allowance(calls, calls // 2, PollAllowance(calls), idle_visits)

    def spend_submits(self, sent: int) -> None:
        """Spend submits of either kind."""
        self.firsts -= sent
        self.submits -= sent


def tick(invocation: Invocation) -> None:
    """Process due items until there are none, or the tick's time is over.

    Raises:
        StorageError: the table's index or its control items could not be read.
    """
    services = invocation.services
    began = services.now()
    ends = min(began + TICK_SECONDS, invocation.deadline - 40)
    watch_stack_control(services)
    counts = {work: services.ledger.count_open(work, MAX_COUNTED) for work in (DueKind.FIRST, DueKind.SUBMIT)}
    waiting = sum(counts.values())
    count("BatchesWaiting", waiting)
    outstanding = services.ledger.count_open(DueKind.POLL, MAX_COUNTED)
    looks = waiting + outstanding > 0  # An idle tick ends at once, and writes nothing more to say so.
    _note_outstanding(services, outstanding, began, ends if looks else began)
    watch_pause(services, began, submits_wait=waiting > 0, polls_wait=outstanding > 0)
    left = _Allowance.of(services.budget.calls_in(60), MAX_IDLE_VISITS)
    none_of = {work for work, number in {**counts, DueKind.POLL: outstanding}.items() if not number}
    _run_cycles(invocation, left, began if looks else None, (ends, began + MAX_TICK_SECONDS), none_of)
    delete_staged(services, ends)
    count("Ticks")  # Last, so that a tick that dies is not counted.


def wake(invocation: Invocation, message: WakeMessage) -> None:
    """Process due items until the next tick, or until none will be due before it.

    Raises:
        StorageError: the table's index or its control items could not be read.
    """
    services = invocation.services
    now = services.now()
    ends = services.wakes.begin(message.at, now)
    if ends is None:
        return
    left = _Allowance.of(services.budget.calls_in(ends - now), 0)
    own = replace(invocation, services=replace(services, queues=replace(services.queues, hops=message.hops)))
    over = ends + MAX_TICK_SECONDS - TICK_SECONDS
    _run_cycles(own, left, message.at, (ends, over), set())


def _run_cycles(
    invocation: Invocation,
    left: _Allowance,
    watched_from: float | None,
    limits: tuple[float, float],
    none_of: Collection[DueKind],
) -> None:
    """Run cycles until there will be nothing to do before the end.

    Args:
        invocation: the running one.
        left: what may still be sent.
        watched_from: since when others need not wake this function, as the control item says; None if it does not.
        limits: when no further cycle begins, and when the last one has to be over, Unix seconds.
        none_of: kinds of which there is nothing, due or not, as was just counted.
    """
    services = invocation.services
    ends, over = limits
    while True:
        worked, following = _cycle(invocation, left, over, none_of)
        none_of = set()
        wait = MIN_SLEEP_SECONDS if worked else max(following - services.now(), MIN_SLEEP_SECONDS)
        if services.now() + wait < ends:
            services.sleep(min(wait, MAX_SLEEP_SECONDS))
        elif watched_from is None or services.now() + MIN_SLEEP_SECONDS >= ends:
            return
        else:
            services.wakes.end(watched_from, services.now())
            watched_from = None  # Once more: somebody may have left something due, and not have woken this function.


def _note_outstanding(services: Services, outstanding: int, ticked_at: float, until: float) -> None:
    """Note this tick and outstanding batches; count by model only if there are as many as one model may have."""
    count("BatchesOutstanding", outstanding)
    full: list[str] = []
    if outstanding >= services.budget.most_outstanding:
        by_job = services.ledger.count_by_job(DueKind.POLL, MAX_COUNTED)
        largest = dict(by_job.most_common(MAX_JOBS_COUNTED))
        by_model: Counter[str] = Counter()
        for job_id, model in services.ledger.models_of(list(largest)).items():
            by_model[model] += largest[job_id]
        full = services.budget.full_models(by_model, by_job.total())
        logger.warning("models have as many batches outstanding as they may", models=full, outstanding=outstanding)
    services.budget.note_outstanding(outstanding, full, ticked_at, until)


def _cycle(invocation: Invocation, left: _Allowance, over: float, none_of: Collection[DueKind]) -> tuple[bool, float]:
    """Process each kind of due work once; batches for which there is no token are not read.

    Args:
        invocation: the running one.
        left: what the tick may still send.
        over: when the tick has to be over, Unix seconds.
        none_of: kinds of which there is nothing, due or not, as was just counted.

    Returns:
        Whether there was any work, and when the next work will be due.
    """
    services = invocation.services
    now = services.now()
    free = services.budget.free(now)
    following: list[float] = []

    def due(work: DueKind, limit: int, *, heeds: bool = True) -> list[DueEntry]:
        if work in none_of:
            return []
        found, next_at = services.ledger.due(work, now, limit)
        if next_at is not None and heeds:
            following.append(next_at)
        return found

    moved = advance_due_jobs(invocation, due(DueKind.WORK, MAX_JOBS))
    most = MAX_EXAMINED_IN_A_PAUSE if free.paused else MAX_EXAMINED
    firsts = due(DueKind.FIRST, most if free.first or free.paused else 0, heeds=not free.paused)
    submits = due(DueKind.SUBMIT, most if free.submits or free.paused else 0, heeds=not free.paused)
    polls = due(DueKind.POLL, min(free.polls, left.polls.calls) if now >= left.polls.look_at else 0)
    idle = due(DueKind.JOB, min(MAX_JOBS, left.idle_visits), heeds=left.idle_visits > 0)
    pause = free.look_at if free.paused else None
    first_calls = SubmitCalls(services, min(free.first, left.firsts), pause)
    sent = send_submits(firsts, first_calls)
    left.spend_submits(sent)
    tokens = free.submits - first_calls.taken.total()
    others = send_submits(submits, SubmitCalls(services, min(tokens, left.submits), pause))
    left.spend_submits(others)
    polled = poll_due_batches(invocation, polls, left.polls, over)
    visited = show_idle_jobs(invocation, idle)
    left.idle_visits -= visited
    return moved + sent + others + polled + visited > 0, min(following, default=math.inf)

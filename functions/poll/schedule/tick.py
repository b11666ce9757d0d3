"""The tick: processes due items in rounds, a bounded number of each kind, until there are none or its time is over.

Nothing is kept in memory between two rounds: the `due` index holds what to do. Work that one invocation cannot do is
sent to queues, one for each kind of message, each with a bound of its own. Jobs that a visit moves on come first in
each round. Visits that only show how far a job is come last, a bounded number in a tick: the more jobs are open, the
rarer they are. At its end the tick deletes what jobs that are over have staged.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dropbatch.rules.names import JobState
from functions.poll.batch.poll_batch import COLLECT_SECONDS, POLL_BEGUN_SECONDS, needs_call, poll_batch
from functions.poll.schedule.advance_job import advance_job
from functions.poll.schedule.control import watch_stack_control
from functions.poll.schedule.delete_staged import delete_staged
from functions.poll.schedule.dispatch_submits import (
    DISPATCHED_SECONDS,
    MAX_EXAMINED,
    MAX_EXAMINED_IN_A_PAUSE,
    SubmitCalls,
    dispatch,
    send_submits,
)
from functions.poll.schedule.due_items import DueItem, in_parallel, isolated, load
from functions.poll.schedule.pauses import watch_pause
from functions.poll.schedule.sweep import next_sweep
from shared.aws.queues import AdvanceMessage, PollMessage, SplitMessage, WakeMessage
from shared.ledger import DueEntry
from shared.models import BatchState, DueKind, Job
from shared.observability import count, logger
from shared.pacing.controls import Denied, Permit
from shared.retry import soon_after
from shared.workers_ai.other_account import other_account

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from shared.bootstrap import Services
    from shared.invocation import Invocation

TICK_SECONDS = 52.0
"""Seconds that one tick runs rounds; the next tick starts a minute after this one started."""
MAX_TICK_SECONDS = 58.0
"""Seconds within which a tick ends, its own polls and their collection included."""
MIN_SLEEP_SECONDS, MAX_SLEEP_SECONDS = 1.0, 10.0
"""Seconds between two rounds of one tick."""
MAX_OWN_POLLS = 16
"""Batches that one round polls itself, of small jobs only; more are sent to other invocations."""
OWN_POLLS_SECONDS = 25.0
"""Seconds that they have, so that other work begins within half a minute even if the API does not answer."""
ANSWERS_RESERVE_SECONDS = 8.0
"""Seconds of a tick kept after its own polls to store and join their small answers."""
LARGE_RECORDS, LARGE_UPLOAD_BYTES = 2_000, 8 << 20
"""Records or bytes above which a job's answers are collected and joined outside of ticks."""
MAX_JOBS = 25
"""Jobs of each kind that one round visits."""
MAX_IDLE_VISITS = 300
"""Jobs that one tick visits only to show how far they are: the cost of many open jobs is bounded."""
IDLE_VISIT_SECONDS = 40.0
"""Seconds that such a visit of a large job has: too few to join results, for which another is due immediately."""
MAX_TURNS_WAITING, MAX_VISITS_WAITING = 20, 20
"""Messages that wait in the split queue and in the visit queue, up to which more are sent."""
NO_ROOM_SECONDS = 20.0
"""Seconds until the next look at a job for which there was no room, so that it hides no other."""
BATCHES_PER_MESSAGE = 8
"""Batches in one message of the poll queue."""
MAX_POLLS_WAITING = 20
"""Messages that wait in the poll queue, up to which more are sent."""
FULL_SECONDS = 10.0
"""Seconds until the batches to poll are read again when that many messages wait: each read returns all of them."""
MAX_COUNTED = 20_000
"""Most open batches that a tick counts, for its metrics and to stop submits."""
MAX_JOBS_COUNTED = 2_000
"""Jobs whose models are looked up when many batches are outstanding."""
REPEAT_SECONDS = 1.0
"""Seconds to wait before visiting again a job that another invocation held."""


@dataclass
class _Allowance:
    """What a tick may still send to queues: no more than can call the API before the next tick."""

    firsts: int
    """First batches of jobs; they are sent again when a poll took their token."""
    submits: int
    polls: int
    idle_visits: int
    look_at: float = 0.0
    """Batches to poll are not read before this time, Unix seconds, because the poll queue was full."""

    @staticmethod
    def of(calls: int, idle_visits: int) -> _Allowance:
        """The allowance of a tick in which so many calls can be made."""
        return _Allowance(calls, calls // 2, calls, idle_visits)

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
    _rounds(invocation, left, began if looks else None, (ends, began + MAX_TICK_SECONDS), none_of)
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
    _rounds(own, left, message.at, (ends, over), set())


def _rounds(
    invocation: Invocation,
    left: _Allowance,
    watched_from: float | None,
    limits: tuple[float, float],
    none_of: Collection[DueKind],
) -> None:
    """Run rounds until there will be nothing to do before the end.

    Args:
        invocation: the running one.
        left: what may still be sent.
        watched_from: since when others need not wake this function, as the control item says; None if it does not.
        limits: when no further round begins, and when the last one has to be over, Unix seconds.
        none_of: kinds of which there is nothing, due or not, as was just counted.
    """
    services = invocation.services
    ends, over = limits
    while True:
        worked, following = _round(invocation, left, over, none_of)
        none_of = set()
        pause = MIN_SLEEP_SECONDS if worked else max(following - services.now(), MIN_SLEEP_SECONDS)
        if services.now() + pause < ends:
            services.sleep(min(pause, MAX_SLEEP_SECONDS))
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


def _round(invocation: Invocation, left: _Allowance, over: float, none_of: Collection[DueKind]) -> tuple[bool, float]:
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

    moved = _advance_due_jobs(invocation, due(DueKind.WORK, MAX_JOBS))
    most = MAX_EXAMINED_IN_A_PAUSE if free.paused else MAX_EXAMINED
    firsts = due(DueKind.FIRST, most if free.first or free.paused else 0, heeds=not free.paused)
    submits = due(DueKind.SUBMIT, most if free.submits or free.paused else 0, heeds=not free.paused)
    polls = due(DueKind.POLL, min(free.polls, left.polls) if now >= left.look_at else 0)
    idle = due(DueKind.JOB, min(MAX_JOBS, left.idle_visits), heeds=left.idle_visits > 0)
    pause = free.look_at if free.paused else None
    first_calls = SubmitCalls(services, min(free.first, left.firsts), pause)
    sent = send_submits(firsts, first_calls)
    left.spend_submits(sent)
    tokens = free.submits - first_calls.taken.total()
    others = send_submits(submits, SubmitCalls(services, min(tokens, left.submits), pause))
    left.spend_submits(others)
    polled = _polls(invocation, polls, left, over)
    visited = _advance_due_jobs(invocation, idle, idle=True)
    left.idle_visits -= visited
    return moved + sent + others + polled + visited > 0, min(following, default=math.inf)


# ── polls ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _polls(invocation: Invocation, dues: list[DueEntry], left: _Allowance, over: float) -> int:
    """Poll as many as one round can, and send the rest to the queue; return how many were polled or sent."""
    services = invocation.services
    found = [one for one in load(services, dues) if one.batch.work is DueKind.POLL]
    begun = [one for one in found if one.batch.state is BatchState.SUBMITTING]
    polls = [one for one in found if one.batch.state is not BatchState.SUBMITTING]
    in_hand: list[DueItem] = []
    time = over - ANSWERS_RESERVE_SECONDS - services.now()
    if min(time, invocation.seconds_left - COLLECT_SECONDS) > POLL_BEGUN_SECONDS:
        in_hand = [one for one in polls if not is_large(one.job, services.now())][:MAX_OWN_POLLS]
    held = {one.due for one in in_hand}
    recovered = dispatch(services, begun)  # The submit function recovers the submits of an invocation that died.
    others = [one for one in polls if one.due not in held]
    room = max(MAX_POLLS_WAITING - services.queues.waiting(services.queues.poll_url), 0) if others else 0
    handed = _send_polls(services, others[: room * BATCHES_PER_MESSAGE])
    if len(others) > room * BATCHES_PER_MESSAGE:
        left.look_at = services.now() + FULL_SECONDS
    until = min(over - ANSWERS_RESERVE_SECONDS, services.now() + OWN_POLLS_SECONDS)
    polled = _poll(invocation, in_hand, until + COLLECT_SECONDS)
    left.polls -= handed + polled
    return recovered + handed + polled


def advance_batches(invocation: Invocation, batches: Iterable[tuple[str, str]]) -> int:
    """Poll the batches that a message names, or collect those that need no poll, in parallel; return how many."""
    found = load(invocation.services, (DueEntry(job_id, number, None) for job_id, number in batches))
    return _poll(invocation, [one for one in found if one.batch.work is DueKind.POLL])


def _poll(invocation: Invocation, found: list[DueItem], until: float = math.inf) -> int:
    """Poll batches, not beyond a time, Unix seconds, and visit their jobs; return how many batches."""
    services, polling = invocation.services, invocation.until(until)
    found = [one for one in found if one.batch.state in {BatchState.QUEUED, BatchState.READY}]
    now = services.now()
    calls = Counter(other_account(services, one.job) for one in found if needs_call(one.job, one.batch, now))
    permits = {account: services.budget.permit_polls(wanted, now, account) for account, wanted in calls.items()}
    chosen: list[tuple[DueItem, Permit]] = []
    for one in found:
        if not needs_call(one.job, one.batch, now):
            chosen.append((one, Permit()))
            continue
        account = other_account(services, one.job)
        granted, permit = permits[account]
        if isinstance(permit, Denied):
            _postpone(services, one, permit, now)
        elif granted > 0:
            permits[account] = granted - 1, permit
            chosen.append((one, permit))

    def step(one: DueItem, permit: Permit) -> str | None:
        """The job's id if it got a part and is to be visited again."""
        asked = poll_batch(polling, one.job, one.batch, permit)
        # Now, not when all polls of this round are over: some take a minute.
        return one.job.job_id if asked.done and not advance_job(invocation, one.job.job_id) else None

    again = in_parallel(lambda pair: isolated(services, pair[0].due, lambda: step(*pair)), chosen)
    if wanted := {job_id for job_id in again if job_id}:
        services.sleep(REPEAT_SECONDS)
        advance_jobs(invocation, sorted(wanted))
    return len(chosen)


def _postpone(services: Services, found: DueItem, refusal: Denied, now: float) -> None:
    """Postpone a poll for which there is no token, or that a pause forbids."""
    batch = found.batch
    waited = refusal.until - min(batch.due_at or now, now) if refusal.paused else 0.0
    isolated(
        services,
        found.due,
        lambda: services.ledger.postpone(batch, refusal.until, paused=batch.paused + waited),
    )


def _send_polls(services: Services, chosen: list[DueItem]) -> int:
    """Send batches to more invocations of this function; return how many."""

    def postponed(one: DueItem) -> bool:
        return services.ledger.postpone(one.batch, services.now() + DISPATCHED_SECONDS) is not None

    done = in_parallel(lambda one: isolated(services, one.due, lambda: postponed(one)), chosen)
    pairs = [(one.batch.job_id, one.batch.number) for one, is_done in zip(chosen, done, strict=True) if is_done]
    services.queues.send_all(
        [
            PollMessage(tuple(pairs[start : start + BATCHES_PER_MESSAGE]))
            for start in range(0, len(pairs), BATCHES_PER_MESSAGE)
        ]
    )
    return len(pairs)


# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_large(job: Job, now: float) -> bool:
    """Whether a step of a job may take so long that a tick must not wait for it."""
    if job.total is None or next_sweep(job, now) is not None:
        return True
    return job.upload.size > LARGE_UPLOAD_BYTES or job.total > LARGE_RECORDS


def _advance_due_jobs(invocation: Invocation, dues: list[DueEntry], *, idle: bool = False) -> int:
    """Visit due jobs, and send to queues those whose upload is still being read, and large ones; return how many.

    Args:
        invocation: the running one.
        dues: entries of the index.
        idle: whether the visits only show how far the jobs are; then large jobs are visited too, but only for a moment.
    """
    services = invocation.services
    read = in_parallel(lambda due: isolated(services, due, lambda: services.ledger.job(due.job_id)), dues)
    found = [(due, job) for due, job in zip(dues, read, strict=True) if job is not None]
    turns = [one for one in found if one[1].state is JobState.SPLITTING]
    rest = [one for one in found if one[1].state is not JobState.SPLITTING]
    large = [] if idle else [one for one in rest if is_large(one[1], services.now())]

    def visit(due: DueEntry, job: Job) -> None:
        now = services.now()
        ends = now + IDLE_VISIT_SECONDS if idle and is_large(job, now) else math.inf
        advance_job(invocation.until(ends), due.job_id)

    queues = services.queues
    sent = _send_jobs(services, turns, SplitMessage, queues.split_url, MAX_TURNS_WAITING)
    sent += _send_jobs(services, large, AdvanceMessage, queues.visit_url, MAX_VISITS_WAITING)
    own = [one for one in rest if one not in large]
    in_parallel(lambda one: isolated(services, one[0], lambda: visit(*one)), own)
    return sent + len(own)


def _send_jobs(
    services: Services,
    found: list[tuple[DueEntry, Job]],
    message: Callable[[str], SplitMessage | AdvanceMessage],
    url: str,
    most: int,
) -> int:
    """Send a message for each job that is due, as long as there is room in the queue; return how many were sent."""
    now = services.now()
    due = [one for one in found if one[1].due_at is not None and one[1].due_at <= now]  # The index may be out of date.
    room = max(most - services.queues.waiting(url), 0) if due else 0
    waits = [DISPATCHED_SECONDS if place < room else soon_after(NO_ROOM_SECONDS, 10) for place in range(len(due))]

    def postponed(job: Job, wait: float) -> bool:
        return services.ledger.postpone_job(job, now + wait) is not None

    steps = list(zip(due, waits, strict=True))
    done = in_parallel(lambda one: isolated(services, one[0][0], lambda: postponed(one[0][1], one[1])), steps)
    chosen = [job.job_id for (_, job), is_done in zip(due[:room], done, strict=False) if is_done]
    services.queues.send_all([message(job_id) for job_id in chosen])
    return len(chosen)


def advance_jobs(invocation: Invocation, job_ids: Iterable[str]) -> None:
    """Visit jobs, each isolated from the others; a job that fails is due again at its `due_at`."""
    dues = [DueEntry(job_id, "", None) for job_id in job_ids]
    in_parallel(
        lambda due: isolated(invocation.services, due, lambda: advance_job(invocation, due.job_id)),
        dues,
    )

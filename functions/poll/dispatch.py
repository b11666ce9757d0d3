"""Dispatch: what one invocation cannot do is sent to queues, no more than can be done soon.

Batches to submit go to the submit function, as many as can call the API before the next tick. One
that cannot be submitted now is postponed, so that it hides no other. During a pause of the account,
only a few batches are read in each cycle, and those that need no call are sent. The time for which
a batch was due but not read, or was postponed, does not count towards its expiry.

An invocation visits small jobs itself, and sends the large ones and the uploads to read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dropbatch.core.names import JobState
from functions.poll.contain import DueItem, each_contained, load, postponed
from functions.poll.end import clean
from functions.poll.sweep import next_sweep
from functions.poll.visit import visit_job
from shared.aws.queues import MAX_SUBMITS_WAITING, SplitMessage, SubmitMessage, VisitMessage
from shared.ledger import DueEntry
from shared.models import Batch, BatchState, Job, Wait
from shared.pacing import cost
from shared.pacing.breaker import LIFT_LOOK_SECONDS, MODEL_BUSY
from shared.pacing.cadence import HELD_POLL_SECONDS
from shared.pacing.waits import is_of_account, shown_if_denied, wait_for_account
from shared.retry import soon_after
from shared.services import Invocation, Services

MAX_EXAMINED = 50  # Most due batches that one cycle reads
MAX_EXAMINED_IN_A_PAUSE = 2
DISPATCHED_SECONDS = 90.0  # That a message has until its batch is due again
MAX_SHOWN = 10  # Batches whose jobs show that the queue may not be asked how many messages wait
LARGE_RECORDS, LARGE_UPLOAD_BYTES = 2_000, 8 << 20  # Above these, ticks wait for no step of a job
CLEAN_SECONDS = 2.0  # In which one cycle deletes a job's staged objects
MAX_JOBS_WAITING = 20  # Messages for turns, or for visits, up to which more are sent


@dataclass
class SubmitCalls:
    """Calls that the submits of one cycle may make: tokens, and each model's room."""

    services: Services  # the process's services
    left: int  # calls that get a token; during a pause that is its probe, if one is due
    look_at: float | None  # when the pause, if there is one, may be probed or ends
    rooms: dict[str, tuple[int | None, Wait]] = field(default_factory=dict)  # each model's room
    taken: Counter[str] = field(default_factory=Counter)  # calls taken, likewise

    @property
    def are_used_up(self) -> bool:
        """Whether no more batches are read; during a pause they are, because some need no call."""
        return self.left <= 0 and self.look_at is None

    def blocked_until(self, found: DueItem, now: float) -> float | None:
        """When to read a batch again; None if it may be submitted now."""
        if self.look_at is not None and self.left <= 0:
            soon = now + LIFT_LOOK_SECONDS
            # The probe that is due has no token yet.
            return min(self.look_at, soon) if self.look_at > now else soon
        model = found.job.plan.model
        if model not in self.rooms:
            self.rooms[model] = self.services.budget.model_room(model, now)
        room, wait = self.rooms[model]
        if room is None or self.taken[model] < room:
            return None
        if wait.code == MODEL_BUSY:
            longer = min((now - found.batch.created_at) / 4, 1_800.0)
            return max(wait.until, now + longer)
        return wait.until

    def take(self, job: Job) -> None:
        """Take the call of one batch of a job."""
        self.left -= 1
        self.taken[job.plan.model] += 1


def send_submits(dues: list[DueEntry], calls: SubmitCalls) -> int:
    """Send due batches that may call or need no call, the most urgent first; return how many."""
    if not dues or calls.are_used_up:
        return 0
    services, sent, room = calls.services, 0, 0
    with shown_if_denied(services, _jobs_of(services, dues[:MAX_SHOWN])):
        room = MAX_SUBMITS_WAITING - services.queues.waiting(SubmitMessage)
    while dues and sent < room and not calls.are_used_up:
        size = max(min(calls.left, room - sent), 1)
        chosen, dues = dues[:size], dues[size:]
        go, to_postpone = _sort(load(services, chosen), calls, services.now())
        items = [(one[0].due, one) for one in to_postpone]
        each_contained(services, items, lambda one: _postpone(services, *one))
        if calls.look_at is not None:
            for one, _ in to_postpone:
                services.left.look(calls.look_at, one.batch.job_id, one.batch.number)
        sent += dispatch(services, go)
    return sent


def _jobs_of(services: Services, dues: list[DueEntry]) -> Iterator[Job]:
    """The jobs of due batches, read once they are asked for, so that none holds up others."""
    for one in load(services, dues):
        yield one.job


def _sort(
    found: Iterable[DueItem], calls: SubmitCalls, now: float
) -> tuple[list[DueItem], list[tuple[DueItem, float]]]:
    """The batches to send, and those to postpone, each with the time until when."""
    go: list[DueItem] = []
    to_postpone: list[tuple[DueItem, float]] = []
    for one in found:
        if needs_no_call(one, now):
            go.append(one)
        elif one.job.is_held:
            to_postpone.append((one, now + HELD_POLL_SECONDS))
        elif not is_of_account(calls.services, one.job):
            to_postpone.append((one, wait_for_account(one.job, now).until))
        elif not cost.allows_batch(one.job, one.batch):
            to_postpone.append((one, cost.look_at(one.batch, now)))
        elif (until := calls.blocked_until(one, now)) is not None:
            to_postpone.append((one, until))
        elif calls.left > 0:
            calls.take(one.job)
            go.append(one)
    return go, to_postpone


def needs_no_call(found: DueItem, now: float) -> bool:
    """Whether the submit function processes a batch without calling the API."""
    batch = found.batch
    may_end = found.job.ending(now) is not None or batch.isolating is not None
    return may_end or batch.state is not BatchState.READY


def _postpone(services: Services, found: DueItem, until: float) -> None:
    batch, now = found.batch, services.now()
    wait = max(until - now, 1.0)
    wait = soon_after(wait, wait / 10)
    if found.job.is_held:
        services.ledger.hold(batch, now, found.job.deadline_at)
        return
    services.ledger.wait(batch, now + wait, _overdue(found, now) + wait)


def dispatch(services: Services, found: list[DueItem]) -> int:
    """Send batches to the submit function, each postponed first; return how many."""
    now = services.now()
    due_at = now + DISPATCHED_SECONDS

    def postpone(one: DueItem) -> Batch | None:
        overdue = _overdue(one, now) if one.batch.state is BatchState.READY else 0.0
        paused = one.batch.paused_after(overdue, due_at)
        return services.ledger.postpone(one.batch, due_at, paused=paused)

    sent = postponed(services, [(one.due, one) for one in found], postpone)
    messages = [SubmitMessage(one.batch.job_id, one.batch.number, due_at) for one in sent]
    with shown_if_denied(services, [one.job for one in sent]):
        services.queues.send_all(messages)
    return len(sent)


def _overdue(found: DueItem, now: float) -> float:
    return max(now - (found.batch.due_at or now), 0.0)


def is_large(job: Job, now: float) -> bool:
    """Whether a step of a job may take so long that a tick must not wait for it."""
    if job.total is None or next_sweep(job, now) is not None:
        return True
    return job.upload.size > LARGE_UPLOAD_BYTES or job.total > LARGE_RECORDS


def visit_due_jobs(invocation: Invocation, dues: list[DueEntry]) -> int:
    """Visit due jobs, or send them to queues: those being read, and large ones; return how many."""
    services = invocation.services
    sent, found = _send_uploads(services, dues)
    large = [one for one in found if is_large(one[1], services.now())]
    sent += _send_jobs(services, large, VisitMessage)
    own = [one for one in found if one not in large]
    each_contained(services, own, lambda job: visit_job(invocation, job.job_id))
    return sent + len(own)


def do_routine(invocation: Invocation, dues: list[DueEntry]) -> int:
    """Show how far open jobs are, and clean up after others, for a moment each; return how many."""
    services = invocation.services

    def clean_if_over(due: DueEntry) -> bool:
        is_over = services.ledger.is_over(due)
        if is_over:
            clean(services, due, services.now() + CLEAN_SECONDS)
        return is_over

    def visit(job: Job) -> None:
        now = services.now()
        ends = now + 40.0 if is_large(job, now) else math.inf  # Too few to append results.
        visit_job(invocation.until(ends), job.job_id)

    done = each_contained(services, [(due, due) for due in dues], clean_if_over)
    open_ones = [due for due, is_over in zip(dues, done, strict=True) if is_over is False]
    sent, found = _send_uploads(services, open_ones)
    each_contained(services, found, visit)
    return len(dues) - len(open_ones) + sent + len(found)


def _send_uploads(
    services: Services, dues: list[DueEntry]
) -> tuple[int, list[tuple[DueEntry, Job]]]:
    """Send the uploads that are still being read; return how many, and the other jobs."""
    read = each_contained(services, [(due, due.job_id) for due in dues], services.ledger.job)
    found = [(due, job) for due, job in zip(dues, read, strict=True) if job is not None]
    uploads = [one for one in found if one[1].state is JobState.SPLITTING]
    sent = _send_jobs(services, uploads, SplitMessage)
    return sent, [one for one in found if one[1].state is not JobState.SPLITTING]


def _send_jobs(
    services: Services,
    found: list[tuple[DueEntry, Job]],
    message: type[SplitMessage | VisitMessage],
) -> int:
    """Send messages for due jobs, as far as there is room in the queue; return how many."""
    now = services.now()
    # The index may be out of date.
    due = [one for one in found if one[1].due_at is not None and one[1].due_at <= now]
    room = 0
    with shown_if_denied(services, (job for _, job in due)):
        room = max(MAX_JOBS_WAITING - services.queues.waiting(message), 0) if due else 0

    def postpone(job: Job, wait: float) -> Job | None:
        return services.ledger.postpone_job(job, now + wait)

    chosen = postponed(services, due[:room], lambda job: postpone(job, DISPATCHED_SECONDS))
    postponed(services, due[room:], lambda job: postpone(job, soon_after(20.0, 10)))
    with shown_if_denied(services, chosen):
        services.queues.send_all([message(job.job_id) for job in chosen])
    return len(chosen)

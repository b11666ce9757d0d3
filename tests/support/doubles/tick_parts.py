"""In-memory fakes for a tick."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dropbatch.core.names import JobState
from functions.poll.poll import PollOutcome
from functions.poll.schedule import due_jobs, due_polls, tick
from shared.invocation import Invocation
from shared.ledger import DueEntry, Ledger
from shared.models import Batch, DueKind, Job, Wait
from shared.pacing.breaker import Controls, Permit, Rate
from shared.pacing.budget import Free
from shared.pacing.wakes import LeftDue
from tests.support.doubles.ledger_items import JOB, T

if TYPE_CHECKING:
    from collections.abc import Sequence

    from functions.poll.schedule.dispatch_submits import SubmitCalls

ONE_CYCLE = 41.0
"""Seconds that an invocation has left whose tick has one cycle, in which it may still poll."""
SMALL = replace(JOB, state=JobState.IN_PROGRESS, total=3)
LONGEST = 200
"""Seconds after which a tick that does not end fails its test."""


@dataclass
class Clock:
    """It moves only when something sleeps. Times are in seconds since the tick began."""

    at: float = 0.0
    slept: list[float] = field(default_factory=list)

    def now(self) -> float:
        """Unix seconds."""
        return T + self.at

    def sleep(self, seconds: float) -> None:
        """Move on."""
        self.slept.append(seconds)
        self.at += seconds
        assert self.at < LONGEST, "the tick does not end"


class MemoryLedger:
    """Jobs and batches by their keys; what is due is read from the items."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.jobs: dict[str, Job | None] = {}
        self.batches: dict[tuple[str, str], Batch] = {}
        self.asked: list[tuple[float, DueKind, int]] = []
        self.idle: set[str] = set()
        """Ids of jobs whose visits only show how far they are."""
        self.postponed: list[tuple[float, str]] = []
        """Jobs for which a message is sent, and when."""
        self.set_aside_ids: list[str] = []
        self.unread: set[str] = set()
        """Ids of jobs whose models are not read."""
        self.is_changed_by_others = False
        """Whether each conditional write comes too late."""

    def add(self, *items: Job | Batch) -> None:
        """Put jobs and batches."""
        for item in items:
            if isinstance(item, Job):
                self.jobs[item.job_id] = item
            else:
                self.batches[item.job_id, item.number] = item

    def limits(self, work: DueKind) -> list[int]:
        """How many items of a kind each cycle requested."""
        return [limit for _, kind, limit in self.asked if kind is work]

    def due(self, work: DueKind, now: float, limit: int) -> tuple[list[DueEntry], float | None]:
        """As the real one."""
        self.asked.append((self.clock.at, work, limit))
        found = [
            DueEntry(one.job_id, one.number, one.due_at)
            for one in self.batches.values()
            if one.work is work
        ]
        if work in {DueKind.JOB, DueKind.STATUS}:
            jobs = [
                (name, job)
                for name, job in self.jobs.items()
                if (name in self.idle) is (work is DueKind.STATUS)
            ]
            found = [DueEntry(name, "", job.due_at if job else T) for name, job in jobs]
        dues = [
            (one.due_at, one.job_id, one.number, one) for one in found if one.due_at is not None
        ]
        times = sorted(dues, key=lambda one: one[:3])
        due = sum(at <= now for at, *_ in times[:limit])
        return [one[-1] for one in times[:due]], times[due][0] if due < len(times) else None

    def job(self, job_id: str) -> Job | None:
        """One job."""
        return self.jobs.get(job_id)

    def batch(self, job_id: str, number: str) -> Batch | None:
        """One batch."""
        return self.batches.get((job_id, number))

    def postpone(self, batch: Batch, due_at: float, **updates: Any) -> Batch | None:
        """Move a batch's time."""
        if self.is_changed_by_others:
            return None
        self.add(replace(batch, due_at=due_at, **updates))
        return self.batch(batch.job_id, batch.number)

    wait = Ledger.wait

    def postpone_job(self, job: Job, due_at: float) -> Job | None:
        """Move a job's time."""
        if self.is_changed_by_others:
            return None
        self.postponed.append((self.clock.at, job.job_id))
        self.add(replace(job, due_at=due_at))
        return self.job(job.job_id)

    def over(self, item: Job | Batch) -> None:
        """Make an item no longer due."""
        self.add(replace(item, due_at=None))

    def claims_of(self, _due: DueEntry) -> int:
        """No item was ever claimed."""
        return 0

    def set_aside(self, due: DueEntry, _claims: int, _due_at: float) -> bool:
        """Record an item that could not be processed."""
        self.set_aside_ids.append(due.job_id)
        self.jobs.pop(due.job_id, None)
        return True

    def count_open(self, work: DueKind, _most: int) -> int:
        """Batches of a kind of work."""
        return sum(one.work is work for one in self.batches.values())

    def count_by_job(self, work: DueKind, _most: int) -> Counter[str]:
        """Batches of a kind of work by their job."""
        return Counter(one.job_id for one in self.batches.values() if one.work is work)

    def models_of(self, job_ids: Sequence[str]) -> dict[str, str | None]:
        """Models of jobs, None for those that are not read."""
        found = {job_id: job.plan.model for job_id in job_ids if (job := self.job(job_id))}
        return {job_id: None if job_id in self.unread else model for job_id, model in found.items()}


@dataclass
class Allowance:
    """A budget that allows what a test sets."""

    available: Free = field(default_factory=lambda: Free(first=99, submits=99, polls=99))
    calls: int = 200
    granted: int = 99
    permit: Permit | Wait = field(default_factory=Permit)
    most_outstanding: float = 999
    polls_wait: bool = False
    was_full: frozenset[str] = frozenset()
    noted: tuple[int, list[str]] = (-1, [])
    looks_until: float = -1

    def free(self, _now: float) -> Free:
        """How many calls would get a token."""
        return self.available

    def polls_wait_for_first(self, _now: float) -> bool:
        """Whether polls do not use the tokens of first batches."""
        return self.polls_wait

    def calls_in(self, _seconds: float) -> int:
        """The maximum number of calls until the next tick."""
        return self.calls

    def permit_polls(self, wanted: int, _now: float) -> tuple[int, Permit | Wait]:
        """How many polls are permitted, and the permit."""
        return min(wanted, self.granted), self.permit

    def controls(self) -> Controls:
        """What earlier ticks have noted."""
        return Controls(None, None, Rate(), self.was_full)

    def full_models(self, by_model: Counter[str], total: int) -> list[str]:
        """Names of models, each with its count."""
        return [f"{model}: {count} of {total}" for model, count in by_model.items()]

    def note_outstanding(
        self, count: int, full: list[str], _ticked_at: float, until: float
    ) -> None:
        """Keep what a tick counted."""
        self.noted, self.looks_until = (count, full), until


@dataclass
class SentMessages:
    """Queues in which some messages wait, and what is sent to them."""

    split_url: str = "split"
    submit_url: str = "submit"
    poll_url: str = "poll"
    visit_url: str = "visit"
    can_send: bool = True
    can_wake: bool = True
    waiting_messages: Counter[str] = field(default_factory=Counter)
    """By queue."""
    sent: list[object] = field(default_factory=list)

    def waiting(self, url: str) -> int:
        """How many wait."""
        return self.waiting_messages[url]

    def send(self, message: object) -> None:
        """Send one."""
        self.sent.append(message)

    def send_all(self, messages: list[object]) -> None:
        """Send several."""
        self.sent += messages


class TickParts:
    """A tick in memory.

    What other modules do in it is recorded, and replaced by the least that ends the work.
    """

    def __init__(self, monkeypatch: Any) -> None:
        self.clock = Clock()
        self.ledger, self.budget, self.queues = (
            MemoryLedger(self.clock),
            Allowance(),
            SentMessages(),
        )
        self.looks_ended: list[float] = []
        """When a tick noted that it looks no longer."""
        wakes = SimpleNamespace(end=lambda _from, now: self.looks_ended.append(now))
        parts = {
            "ledger": self.ledger,
            "budget": self.budget,
            "queues": self.queues,
            "wakes": wakes,
            "events": None,
        }
        settings = SimpleNamespace(cloudflare_account_id=JOB.plan.account)
        self.services: Any = SimpleNamespace(
            **parts, settings=settings, now=self.clock.now, sleep=self.clock.sleep
        )
        self.behind: dict[float, float] = {}
        """Seconds for which batches that were accepted at a time are held back."""
        self.services.times = SimpleNamespace(
            seconds_behind=lambda _model, at, _now: self.behind.get(at, 0.0)
        )
        self.services.left, self.services.wake = LeftDue(), self._wake
        self.services.of_invocation = lambda _hops=0: self.services
        self.woken: list[tuple[float, float | None]] = []
        """For each planned wake-up.

        When, and since when the invocation has looked whose place it takes.
        """
        self.is_watched = False
        """Whether somebody looks anyway, so that no wake-up is planned."""
        self.visits: list[tuple[float, str]] = []
        self.seconds_per_visit = 0.0
        self.seconds_between_visits = 1.0
        """After a visit that does not end its job's work."""
        self.visit_seconds: list[float] = []
        """The seconds that each visit had."""
        self.order: list[str] = []
        """Ids of visited jobs and numbers of polled batches, in the order in which they were."""
        self.leased_visits = 0
        """How many visits find the job leased by another invocation."""
        self.visits_end_work = True
        self.polled: dict[str, float] = {}
        """Numbers of polled batches, and the seconds that each poll had."""
        self.polls_end_batches = False
        self.submits: list[tuple[list[DueEntry], int, float | None]] = []
        self.submit_outcomes: list[tuple[int, int]] = []
        """For each call that sends submits: how many it sends, and how many calls it uses."""
        self.recovered: list[str] = []
        self.counted: list[str] = []
        self.watched: dict[str, bool] = {}
        for module, names in (
            (tick, ("send_submits", "watch_pause", "count")),
            (due_polls, ("visit_job", "poll_batch", "dispatch")),
            (due_jobs, ("visit_job",)),
        ):
            for name in names:
                monkeypatch.setattr(module, name, getattr(self, f"_{name}"))
        monkeypatch.setattr(tick, "watch_stack_control", lambda services: None)

    def run(self, remaining: float = 150.0) -> None:
        """Run one tick of an invocation that has this many seconds."""
        tick.tick(Invocation(self.services, T + remaining))

    def _wake(self, at: float, *, instead_of: float | None) -> int | None:
        self.woken.append((at - T, instead_of and instead_of - T))
        return None if self.is_watched else math.ceil(at)

    def _visit_job(self, invocation: Invocation, job_id: str) -> bool:
        self.visits.append((self.clock.at, job_id))
        self.clock.at += self.seconds_per_visit
        self.visit_seconds.append(invocation.seconds_left)
        self.order.append(job_id)
        if self.leased_visits:
            self.leased_visits -= 1
            return False
        if self.visits_end_work and (job := self.ledger.job(job_id)):
            self.ledger.over(job)
        elif job := self.ledger.job(job_id):
            self._postpone(job, self.clock.now() + self.seconds_between_visits)
        return True

    def _postpone(self, job: Job, at: float) -> None:
        """Make a job due later, which the invocation notes."""
        self.ledger.add(replace(job, due_at=at))
        item = {"pk": {"S": f"JOB#{job.job_id}"}, "sk": {"S": "META"}, "work": {"S": DueKind.JOB}}
        self.services.left.note({**item, "due_at": {"N": str(at)}}, {"due_at"})

    def _poll_batch(
        self, invocation: Invocation, job: Job, batch: Batch, _permit: Permit
    ) -> PollOutcome:
        self.polled[batch.number] = invocation.seconds_left
        self.order.append(batch.number)
        self.ledger.over(batch)
        return PollOutcome(job.job_id, done=self.polls_end_batches)

    def _send_submits(self, dues: list[DueEntry], calls: SubmitCalls) -> int:
        if calls.are_used_up:
            return 0
        self.submits.append((dues, max(calls.left, 0), calls.look_at))
        sent, used = self.submit_outcomes.pop(0) if self.submit_outcomes else (0, 0)
        calls.taken["model"] += used
        return sent

    def _dispatch(self, _services: Any, found: list[Any]) -> int:
        self.recovered += [one.batch.number for one in found]
        for one in found:
            self.ledger.over(one.batch)
        return len(found)

    def _watch_pause(self, _services: Any, _now: float, **waits: bool) -> None:
        self.watched = waits

    def _count(self, name: str, _value: float = 1.0) -> None:
        self.counted.append(name)

"""A year of one stack.

Small drops, idle months, pauses of weeks, other tokens, accounts and limits; nothing may stay.

What happens is a table of days; each row also says which alarm it must raise, and from when until
when. The last three months are idle, so that time to live and the bucket's lifecycle rules have
deleted what they will.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from local.workers_ai import Behaviour, Fault
from simulation.services.awkward import Awkward
from tests.simulation.operate.alarms import Alarms, Cause
from tests.simulation.operate.report import (
    DAY,
    Figure,
    Report,
    Samples,
    begin_retention,
    call_figures,
    publish,
    told,
)
from tests.simulation.worlds.judges import Ending, Laws, Promises
from tests.simulation.worlds.users import MODELS, Dropped, drop
from tests.simulation.worlds.world import FINAL, START, TICK_SECONDS, World, simulated

if TYPE_CHECKING:
    from collections.abc import Callable

HOUR = 3_600.0
AWKWARD = Awkward(
    index_lag_seconds=3.0, delivered_twice=0.05, answered_late=0.005, notified_twice=0.05
)
"""What AWS does on a usual day."""
DROPS_A_DAY = 0.5
OTHER_ACCOUNT = "fedcba9876543210fedcba9876543210"
LIFE_DAYS = 100.0
"""Days after the last job's end by which everything that deletes itself is deleted.

Time to live, and a day's lag.
"""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happens `at` so many days.

    If it must raise an alarm, its name, and the days that it may last.
    """

    at: float
    act: Callable[[Year], object]
    alarm: str = ""
    ends: float = 0.0


class Year:
    """What happens, and what was dropped."""

    def __init__(self, world: World, laws: Laws) -> None:
        """Begin without jobs."""
        self.world = world
        self.ending = Ending(laws)
        self.dropped: list[Dropped] = []
        self.open: list[Dropped] = []

    def drop(self, size: int, *, may_fail: bool = False) -> Dropped:
        """A user drops a file."""
        number = len(self.dropped)
        one = drop(self.world, f"{number}.jsonl", size, MODELS[number % 2], may_fail=may_fail)
        self.dropped.append(one)
        self.open.append(one)
        return one

    def judge_ended(self) -> None:
        """Judge the results of the jobs that are over, while their items exist."""
        for one in list(self.open):
            item = self.world.job(one.upload)
            if item is not None and item["state"]["S"] in FINAL:
                self.ending.judge_results(one, item)
                self.open.remove(one)


def nothing(_year: Year) -> None:
    """Time passes."""


def recover(year: Year) -> None:
    """The API does what it should again."""
    year.world.api.clear_faults()


def revoke_token(year: Year) -> None:
    """The API no longer knows the token; a user drops a file."""
    year.world.api.switch(tokens=("second-token",))
    year.drop(5)


def replace_token(year: Year) -> None:
    """The secret holds the new token."""
    year.world.token = "second-token"


def command(word: str, year: Year) -> None:
    """A user commands the stack."""
    year.world.command("stack", word)


def pause_job(year: Year) -> None:
    """A user drops a file and pauses its job."""
    one = year.drop(500, may_fail=True)
    year.world.run(20)
    year.world.command(one.upload.job_id, "pause")


def change_account(year: Year) -> None:
    """Two jobs are under way when the stack gets another account; one more begins there."""
    year.drop(40, may_fail=True)
    year.drop(3, may_fail=True)
    year.world.run(20)
    year.world.redeploy(CLOUDFLARE_ACCOUNT_ID=OTHER_ACCOUNT)
    year.drop(5)


def change_limits(year: Year) -> None:
    """The stack gets other limits while a job is under way."""
    year.drop(60)
    year.world.run(10)
    year.world.redeploy(API_CALLS_PER_MINUTE=20, MAX_REQUESTS_PER_BATCH=10)
    year.drop(60)


def inject(fault: Fault, year: Year, size: int = 2) -> None:
    """The API begins to do something; a user drops a file."""
    year.world.inject(fault)
    year.drop(size, may_fail=True)


EVENTS = (
    Event(20.0, partial(inject, Fault(kind="accept_then_reset")), "AmbiguousSubmitsAlarm", 20.1),
    # The quota is raised on day 51.1; batches try again by themselves within half an hour.
    Event(30.0, partial(inject, Fault(kind="3036", on="submit", times=0)), "PausedAlarm", 51.15),
    Event(51.1, recover),
    Event(70.0, revoke_token, "PausedAlarm", 70.27),
    Event(70.25, replace_token),
    Event(85.0, partial(inject, Fault(kind="html", times=0), size=3_000), "PausedAlarm", 85.14),
    Event(85.0, nothing, "AmbiguousSubmitsAlarm", 85.14),
    Event(85.125, recover),
    Event(200.0, change_account),
    Event(210.0, change_limits),
    Event(220.0, partial(inject, Fault(kind="stuck", seconds=10 * HOUR)), "", 0.0),
    Event(220.25, nothing, "OldestPendingAlarm", 220.46),
    Event(225.0, pause_job),
    Event(230.0, partial(command, "pause")),
    Event(244.0, partial(command, "run")),
)
IDLE_DAYS = (100.0, 190.0)
LAST_DROP_DAY = 255.0


@dataclass(frozen=True, slots=True)
class Played:
    """What happened in a world."""

    year: Year
    laws: Laws
    samples: Samples
    alarms: Alarms
    promises: Promises


def play(
    days: float,
    events: tuple[Event, ...] = EVENTS,
    seed: int = 1,
    tick_seconds: float = TICK_SECONDS,
) -> Played:
    """Play the events of so many days; alarms are judged if there is a tick each minute."""
    behaviour = Behaviour(
        embedder="hash", latency=120.0, latency_kind="lognormal", latency_spread=0.8
    )
    random = Random(seed)
    with simulated(seed, AWKWARD, behaviour) as world:
        world.tick_seconds = tick_seconds
        laws = Laws(world)
        promises, samples, alarms = Promises(laws), Samples(world, DAY), Alarms(world)
        begin_retention(world)
        year = Year(world, laws)
        happen: list[tuple[float, Callable[[Year], object]]] = [
            (one.at, one.act) for one in events if one.at < days
        ]
        last = min(LAST_DROP_DAY, days - LIFE_DAYS)
        for day in range(int(last)):
            if random.random() < DROPS_A_DAY and not IDLE_DAYS[0] <= day < IDLE_DAYS[1]:
                size = random.choice((1, 2, 5, 17, 60))
                happen.append((day + random.random(), partial(Year.drop, size=size, may_fail=True)))
        for at, act in sorted(happen, key=lambda pair: pair[0]):
            _run_until(year, at)
            act(year)
        _run_until(year, days)
        for one in year.open:
            laws.broken("everything ends", one.upload.key)
        year.ending.judge_bill()
        if days > LAST_DROP_DAY + LIFE_DAYS:
            _judge_rest(year, laws, samples)
        causes = [
            Cause(one.alarm, START + one.at * DAY, START + one.ends * DAY)
            for one in events
            if one.alarm and one.at < days
        ]
        if tick_seconds == TICK_SECONDS:
            alarms.judge(laws, causes)
        return Played(year, laws, samples, alarms, promises)


def _run_until(year: Year, day: float) -> None:
    """Let time pass until so many days after the beginning; judge what is over each day."""
    world = year.world
    while (left := START + day * DAY - world.kernel.now) > 0:
        world.run(min(left, DAY))
        year.judge_ended()


def _judge_rest(year: Year, laws: Laws, samples: Samples) -> None:
    """Judge that nothing is left of jobs that ended long ago, and that nothing waits."""
    world = year.world
    left = {kind: number for kind, number in samples.items.items() if kind != "control" and number}
    if left:
        laws.broken("items of finished jobs are deleted", f"{left}")
    if staged := world.s3.stored()["staging"]:
        laws.broken("staged objects of finished jobs are deleted", f"{staged} versions")
    for queue in world.sqs.queues.values():
        if queue.messages or queue.dead:
            laws.broken(
                "no message stays in a queue",
                f"{queue.name}: {len(queue.messages)}, {len(queue.dead)} dead",
            )


def report(days: float, found: Played, cpu_seconds: float) -> Report:
    """What is measured in a year, beside what is promised."""
    year, laws, samples = found.year, found.laws, found.samples
    promises = found.promises
    world = year.world
    idle = [row for row in samples.rows if IDLE_DAYS[0] + 2 < row["hours"] / 24 < IDLE_DAYS[1]]
    last = samples.rows[-1]
    keys = {f"JOB#{one.upload.job_id}" for one in year.dropped}
    late = sorted(
        promises.over[key] - promises.last_done[key]
        for key in keys & promises.over.keys() & promises.last_done.keys()
    )
    minutes = world.tick_seconds / 60
    figures = [
        Figure("jobs", f"{len(year.dropped)}, all over"),
        Figure(
            "reads of the table in an idle tick",
            f"{sum(row['reads'] for row in idle) / len(idle) * minutes:.1f}",
        ),
        Figure(
            "writes to the table in an idle tick",
            f"{sum(row['writes'] for row in idle) / len(idle) * minutes:.1f}",
        ),
        Figure("calls to the API in idle months", f"{sum(row['api'] for row in idle):.0f}", "0"),
        Figure(
            "items of jobs and batches at the end",
            f"{sum(samples.items.values()) - samples.items['control']}",
            "deleted 90 days after their job",
            "docs/limits.md, Results and times",
        ),
        Figure("control items at the end", f"{samples.items['control']}"),
        Figure("most items at a time", f"{max(row['items'] for row in samples.rows):,.0f}"),
        Figure(
            "staged objects at the end",
            f"{last.get('staging/', 0):.0f} of at most "
            f"{max(row.get('staging/', 0) for row in samples.rows):.0f}",
            "deleted a day after the end",
            "docs/limits.md, Results and times",
        ),
        Figure(
            "manifest after the last answer, half of the jobs, the slowest",
            f"{late[len(late) // 2]:.1f} s, {late[-1]:.1f} s",
            "15 s without faults",
            "tests/simulation/worlds/judges.py",
        ),
        *call_figures(world),
        Figure(
            "the simulation",
            f"{world.calls.total:,} calls, {days:g} days, in {cpu_seconds / 60:.1f} min of "
            "one processor",
        ),
    ]
    if minutes == 1:
        figures.insert(-1, _alarms(found))
    about = [
        (
            "Drops of 1 to 60 records on every second day; an unknown outcome; three weeks "
            "without quota; a revoked token;"
        ),
        (
            "an outage of three hours; three idle months; another account and other limits "
            "while jobs are under way; a"
        ),
        (
            "batch that is pending for ten hours; a job that stays paused; two weeks in which "
            "the stack is paused; then"
        ),
        (
            f"three idle months. A tick every {world.tick_seconds:.0f} s; alarms are judged if "
            "that is a minute."
        ),
    ]
    return Report("A year of one stack", about, figures, told(laws.violations, world))


def _alarms(found: Played) -> Figure:
    now = found.year.world.kernel.now
    raised = {name: one.raised for name, one in found.alarms.alarms.items() if one.raised}
    return Figure(
        "alarms: times raised, hours in all",
        "; ".join(
            f"{name} {len(spans)}, {sum((end or now) - begin for begin, end in spans) / HOUR:.1f}"
            for name, spans in raised.items()
        ),
        "each while its cause lasts, and no other",
        "docs/operations.md, Alarms",
    )


def main(tick_seconds: float, days: float = 365.0) -> bool:
    """Play, write and return whether any law was broken."""
    began = time.process_time()
    found = play(days, tick_seconds=tick_seconds)
    return publish("year", report(days, found, time.process_time() - began))

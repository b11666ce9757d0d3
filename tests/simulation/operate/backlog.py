"""A backlog: thousands of jobs and up to a million batches dropped together.

Small drops meanwhile, then the end.

Batches are of one record, so that a batch's life costs the simulation little; what is measured is
calls, waits and depths, which do not depend on bytes. The users wait some hours, then cancel what
is left.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import mean, median
from typing import TYPE_CHECKING

from local.workers_ai import Behaviour
from shared.pacing.budget import CLOUDFLARE_CALLS, OUTSTANDING_MINUTES
from shared.settings import MAX_CALLS
from tests.simulation.operate.alarms import Alarms
from tests.simulation.operate.report import (
    Figure,
    Report,
    Samples,
    call_figures,
    publish,
    told,
)
from tests.simulation.worlds.judges import MANIFEST_SECONDS, Ending, Laws, Promises, Violation
from tests.simulation.worlds.users import MODELS, Dropped, drop
from tests.simulation.worlds.world import simulated
from tests.support.aws.resources import WAYS

if TYPE_CHECKING:
    from tests.simulation.worlds.world import World

NEWCOMER_SECONDS = 600.0
"""A user drops a small file so often."""
FIRST_BATCH_SECONDS = 120.0
CUT_A_MINUTE = 12_000
"""Batches that are cut while five uploads are read at a time.

With many calls a minute, uploads wait for that.
"""
BEGINNING_SECONDS = 240.0
"""Seconds in which uploads are read, the first batches are submitted.

And the bucket of tokens is emptied.
"""
SWEPT_A_SECOND = 45.0
"""Batches of a cancelled job that end each second, at least."""
SWEPT_TOGETHER_A_SECOND = 100.0
"""The same of thousands of jobs that are cancelled together."""
USED_SHARE = 0.95
"""Share of the calls that keep within Cloudflare's limit that are used while batches wait.

At least.
"""
ACCEPTED_SECONDS = 900.0
"""Seconds in which the API finishes what it has accepted when the users cancel.

And a poll learns of it.
"""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a backlog is.

    Attributes:
        batches: of each job.
        hours: until the users cancel what is left.
        calls_per_minute: the stack's limit; above 240 it calls through a Worker.
        times: how many times as many invocations run at a time as the template allows.
    """

    jobs: int
    batches: int
    hours: float
    calls_per_minute: int = MAX_CALLS
    times: int = 1

    @property
    def limit(self) -> int:
        """Calls in five minutes that the bucket holds and that flow into it.

        Of a token, those that it allows.
        """
        return int(5.5 * self.calls_per_minute) if self.is_through_worker else CLOUDFLARE_CALLS

    @property
    def first_batches_minutes(self) -> float:
        """Minutes until the last of the jobs' first batches is submitted.

        As docs/limits.md promises.
        """
        calls = 2 if self.jobs <= self.calls_per_minute / 2 * OUTSTANDING_MINUTES else 3
        return max(
            2 + calls * self.jobs / self.calls_per_minute, self.jobs * self.batches / CUT_A_MINUTE
        )

    @property
    def is_through_worker(self) -> bool:
        """Whether it makes more calls than Cloudflare allows a token."""
        return self.calls_per_minute > MAX_CALLS


@dataclass(slots=True)
class Backlog:
    """What happened."""

    world: World
    samples: Samples
    promises: Promises
    bulk: list[Dropped]
    newcomers: list[Dropped]
    violations: list[Violation]
    alarms: Alarms
    cancelled_at: float
    over_at: float


def play(size: Size, seed: int = 1) -> Backlog:
    """Play a backlog to its end."""
    behaviour = Behaviour(
        embedder="hash",
        latency=60.0,
        latency_kind="lognormal",
        latency_spread=0.5,
    )
    given: dict[str, object] = {
        "MAX_REQUESTS_PER_BATCH": 1,
        "API_CALLS_PER_MINUTE": size.calls_per_minute,
    }
    if size.is_through_worker:
        given |= {
            **WAYS["worker"],
            "WORKER_SECRET_ARN": "token",
            "CLOUDFLARE_API_TOKEN_SECRET_ARN": "",
        }
    with simulated(seed, None, behaviour, **given) as world:
        for source in world.sources.values():
            source.most *= size.times
        for function in world.functions.values():
            function.most *= size.times
        laws = Laws(world)
        promises, samples, alarms = (
            Promises(laws),
            Samples(world, max(size.hours * 3_600 / 200, 60.0)),
            Alarms(world),
        )
        world.run(90)
        bulk = [
            drop(world, f"bulk/{number}.jsonl", size.batches, may_fail=True)
            for number in range(size.jobs)
        ]
        newcomers: list[Dropped] = []
        ends = world.kernel.now + size.hours * 3_600
        while world.kernel.now < ends:
            world.run(min(NEWCOMER_SECONDS, ends - world.kernel.now))
            newcomers.append(drop(world, f"small/{len(newcomers)}.jsonl", 1, MODELS[1]))
        cancelled_at = world.kernel.now
        for one in bulk:
            world.command(one.upload.job_id, "cancel")
        world.settle(50 * 86_400)
        over_at = world.kernel.now
        world.run(7_200)
        ending = Ending(laws)
        ending.judge([*bulk, *newcomers])
        ending.judge_calls()
        swept = max(
            size.batches / SWEPT_A_SECOND, size.jobs * size.batches / SWEPT_TOGETHER_A_SECOND
        )
        if over_at - cancelled_at > ACCEPTED_SECONDS + swept:
            laws.broken(
                "cancelled jobs end in time", f"the last one after {over_at - cancelled_at:.0f} s"
            )
        begun = max(promises.first_batch.get(f"JOB#{one.upload.job_id}", 0.0) for one in bulk)
        if begun - bulk[0].upload.at > 60 * size.first_batches_minutes:
            laws.broken(
                "first batches of many jobs are submitted in time",
                f"the last after {begun - bulk[0].upload.at:.0f} s",
            )
        promises.judge(newcomers, size.calls_per_minute, others_until=begun)
        found = Backlog(
            world,
            samples,
            promises,
            bulk,
            newcomers,
            laws.violations,
            alarms,
            cancelled_at,
            over_at,
        )
        if (used := _used_calls(found)) and mean(used) < USED_SHARE * _allowed_calls(size):
            laws.broken("calls are used while batches wait", f"{mean(used):.0f} a minute")
        return found


def _used_calls(found: Backlog) -> list[float]:
    """Calls to the API in each minute in which batches wait and the bucket of tokens is empty."""
    seconds = found.cancelled_at - found.world.began
    rows = (row for row in found.samples.rows if row["waiting"] > 0)
    return [row["api"] for row in rows if BEGINNING_SECONDS < row["hours"] * 3_600 < seconds]


def _allowed_calls(size: Size) -> float:
    """Calls a minute that keep within the limit."""
    if size.is_through_worker:
        return size.calls_per_minute
    return min(size.calls_per_minute, (CLOUDFLARE_CALLS - size.calls_per_minute // 2) / 5)


def _waits(found: Backlog, dropped: list[Dropped]) -> list[float]:
    """Seconds from drops to first batches, sorted; jobs that ended before one are left out."""
    first = found.promises.first_batch
    keys = [(f"JOB#{one.upload.job_id}", one.upload.at) for one in dropped]
    return sorted(first[key] - at for key, at in keys if key in first)


def _manifests(found: Backlog, dropped: list[Dropped]) -> list[float]:
    done, over = found.promises.last_done, found.promises.over
    keys = [f"JOB#{one.upload.job_id}" for one in dropped]
    return sorted(over[key] - done[key] for key in keys if key in done and key in over)


def report(size: Size, found: Backlog, cpu_seconds: float) -> Report:
    """What is measured in a backlog, beside what is promised."""
    world, rows = found.world, found.samples.rows
    total = size.jobs * size.batches
    accepted = len(world.api.accepted)
    firsts = _waits(found, found.bulk)
    begun = found.bulk[0].upload.at + firsts[-1]
    late = _waits(found, [one for one in found.newcomers if one.upload.at > begun]) or [0.0]
    meanwhile = _waits(found, [one for one in found.newcomers if one.upload.at <= begun]) or [0.0]
    manifests = _manifests(found, found.newcomers)
    busy = [
        row
        for row in rows
        if row["waiting"] > 0 and row["hours"] * 3_600 < found.cancelled_at - world.began
    ]
    full = _used_calls(found)
    after = [row for row in rows if row["hours"] * 3_600 > found.cancelled_at - world.began + 60]
    collecting = [row["api"] for row in after if row["messages"] > size.calls_per_minute]
    allowed = _allowed_calls(size)
    never = total + len(found.newcomers) - accepted
    seconds = found.over_at - found.cancelled_at
    calls = {
        name: world.calls.by_operation.get(name, 0) for name in sorted(world.calls.by_operation)
    }
    aws = sum(number for name, number in calls.items() if name != "api.call")
    hours = (world.kernel.now - world.began) / 3_600
    simulation = (
        f"{world.calls.total:,} calls, {hours:.1f} h, in {cpu_seconds / 60:.1f} min of one "
        "processor, "
        f"{rows[-1]['memory']:,.0f} MB"
    )
    figures = [
        Figure(
            "first batch of a small drop, the slowest",
            f"{late[-1]:.0f} s",
            f"{FIRST_BATCH_SECONDS:.0f} s",
            "docs/limits.md, Calls",
        ),
        Figure("the same, half of them", f"{median(late):.0f} s"),
        Figure(
            "the same of those dropped while first batches of the large jobs wait",
            f"{meanwhile[-1] / 60:.1f} min",
        ),
        Figure(
            f"first batches of {len(firsts):,} of {size.jobs:,} jobs dropped together (the "
            "others ended), the slowest",
            f"{firsts[-1] / 60:.1f} min",
            f"{size.first_batches_minutes:.1f} min",
            "docs/limits.md, Calls",
        ),
        Figure(
            "manifest of a small drop after its last answer, the slowest",
            f"{manifests[-1]:.1f} s",
            f"{MANIFEST_SECONDS:.0f} s",
            "tests/simulation/worlds/judges.py",
        ),
        *call_figures(world, size.limit),
        Figure(
            f"calls used while batches wait, of the {allowed:.0f} a minute that keep "
            "within the limit",
            f"{sum(full) / max(len(full), 1) / allowed:.1%}",
            f"{USED_SHARE:.0%}",
        ),
        Figure("calls to the API for each accepted batch", f"{calls['api.call'] / accepted:.2f}"),
        Figure(
            "calls to AWS for each batch, accepted or not",
            f"{aws / (total + len(found.newcomers)):.1f}",
        ),
        Figure(
            "calls to DynamoDB in a minute with a backlog: reads",
            f"{median(row['reads'] for row in busy):,.0f}",
        ),
        Figure("the same: writes", f"{median(row['writes'] for row in busy):,.0f}"),
        Figure(
            "largest number of messages in a queue",
            ", ".join(f"{name} {number:,}" for name, number in found.samples.deepest.items()),
        ),
        Figure(
            f"from the users' {size.jobs:,} commands to the last manifest, when what was "
            "accepted is answered too; "
            f"{never:,} batches were never submitted",
            f"{seconds / 60:.1f} min",
        ),
        Figure(
            "calls to the API in a minute after that, while messages of more than a "
            "minute's calls wait",
            f"{median(collecting):,.0f}" if collecting else "none wait",
        ),
        Figure(
            "alarms",
            ", ".join(name for name, one in found.alarms.alarms.items() if one.raised) or "none",
        ),
        Figure("the simulation", simulation),
    ]
    about = [
        (
            f"{size.jobs:,} jobs of {size.batches:,} batches each ({total:,} batches) are "
            "dropped together"
        ),
        (
            f"at {size.calls_per_minute:,} calls a minute, and every "
            f"{NEWCOMER_SECONDS / 60:.0f} minutes a small file."
        ),
        (
            f"After {size.hours:g} hours, when {accepted:,} batches were accepted, the users "
            "cancel the large jobs."
        ),
        (
            "Simplified: a batch has one record, so uploads are small and a reply is a few "
            "hundred bytes; the API"
        ),
        "takes a minute for a batch (median).",
    ]
    title = f"A backlog of {total:,} batches"
    if size.is_through_worker:
        title = f"The same with {size.calls_per_minute:,} calls a minute: {total:,} batches"
        about.append(WALL)
    return Report(title, about, figures, told(found.violations, world))


WALL = """
Through a Worker, whose AI binding has no limit that is known (`Transport=worker`, `ApiCallsPerMinute=2400`), with the
ten invocations each for submits and polls that the template allows then.
""".strip()


def main(size: Size) -> bool:
    """Play, write and return whether any law was broken."""
    began = time.process_time()
    found = play(size)
    name = "tenfold" if size.is_through_worker else "backlog"
    return publish(name, report(size, found, time.process_time() - began))

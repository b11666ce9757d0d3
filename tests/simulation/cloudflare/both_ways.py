"""`python -m tests.simulation.cloudflare.both_ways`: jobs with completion events and without.

Writes bench/events.md.

Both functions run as they are in a simulated world, in one run, with the same files dropped at the
same times.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from local.template import powertools_variables

os.environ |= powertools_variables()

from bench.timing import grid, written_by
from local.workers_ai import Behaviour
from tests.simulation.cloudflare.events import Events
from tests.simulation.cloudflare.laws import EventLaws
from tests.simulation.worlds.judges import Laws
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import simulated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WRITTEN = Path(__file__).parents[3] / "bench/events.md"
JOBS, BATCHES, EVERY_SECONDS, SLOW_EVERY_SECONDS = 6, 20, 1_213.0, 7_213.0
"""Seconds between two drops are no whole minutes."""
SETTLE_SECONDS = 86_400.0
SEEDS = (1, 2, 3)
UNIFORM, AROUND = {"latency_kind": "uniform"}, {"latency_kind": "lognormal", "latency_spread": 0.5}
FEW_SECONDS = {"latency": 47.5, "latency_spread": 0.895, **UNIFORM}
TIMES: Mapping[str, Mapping[str, object]] = {
    "at once": {"latency": 0.0},
    "5 to 90 s, evenly": FEW_SECONDS,
    "around 2 minutes (sigma 0.5)": {"latency": 120.0, **AROUND},
    "1 to 10 minutes, evenly": {"latency": 330.0, "latency_spread": 0.818, **UNIFORM},
    "an hour, always": {"latency": 3_600.0},
}
STALLED = "around a minute, the last two jobs half an hour"
WAYS: Mapping[str, Events] = {
    "polls alone": Events(is_on=False),
    "events": Events(),
    "events, each lost": Events(lost=1.0),
}
WALL_CALLS, WALL_BATCHES, WALL_SECONDS, WALL_WINDOWS = 240, 2_400, 300.0, 3


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to: calls of the model and of Queues for each batch."""

    calls: float
    queue_calls: float
    waits: list[float]

    def cell(self) -> str:
        """Its cell of the table."""
        late = sorted(self.waits)[len(self.waits) * 95 // 100]
        return f"{self.calls:.2f} / {self.queue_calls:.1f} / {mean(self.waits):.1f} / {late:.0f}"


def figures(
    times: Mapping[str, object],
    events: Events,
    jobs: int = JOBS,
    batches: int = BATCHES,
    seed: int = 1,
    *,
    every: float = EVERY_SECONDS,
    later: Mapping[str, object] | None = None,
) -> Figures:
    """Drop the jobs one after the other, and let each end; the first one's batches are not counted.

    Args:
        times: how long batches take.
        events: how events are.
        jobs: how many.
        batches: of each job.
        seed: of the world.
        every: seconds between two drops.
        later: how long those of the last two jobs take; None: as long.
    """
    behaviour = events.behaviour(Behaviour(embedder="hash").changed(times))
    settings = {"MAX_REQUESTS_PER_BATCH": 2, **events.settings()}
    with simulated(seed, None, behaviour, **settings) as world:
        laws = EventLaws(Laws(world), events)
        for number in range(jobs):
            if later and number == jobs - 2:
                world.api.switch(**later)
            drop(world, f"{number}.jsonl", 2 * batches)
            world.run(every)
        if not world.settle(SETTLE_SECONDS):
            raise RuntimeError("a job did not end")
        polls = [one["polls"] for one in world.billed[batches:]]
        return Figures(
            1 + mean(polls), len(world.queue_times) / (jobs * batches), laws.waits[batches:]
        )


def of_all(runs: Sequence[Figures]) -> Figures:
    """The figures of several runs as one."""
    waits = [wait for one in runs for wait in one.waits]
    return Figures(mean(one.calls for one in runs), mean(one.queue_calls for one in runs), waits)


def at_the_wall(
    events: Events, batches: int = WALL_BATCHES, windows: int = WALL_WINDOWS
) -> list[str]:
    """Collected batches of one job in each five minutes, and how long they waited."""
    behaviour = events.behaviour(Behaviour(embedder="hash").changed(FEW_SECONDS))
    settings = {
        "MAX_REQUESTS_PER_BATCH": 1,
        "API_CALLS_PER_MINUTE": WALL_CALLS,
        **events.settings(),
    }
    with simulated(1, None, behaviour, **settings) as world:
        laws = EventLaws(Laws(world), events)
        drop(world, "first.jsonl", BATCHES)
        world.settle(SETTLE_SECONDS)
        world.run(EVERY_SECONDS)
        collected = [before := len(laws.waits)]
        drop(world, "many.jsonl", batches)
        for _ in range(windows):
            world.run(WALL_SECONDS)
            collected.append(len(laws.waits))
        each = [str(later - earlier) for earlier, later in pairwise(collected)]
        return [", ".join(each), f"{mean(laws.waits[before:]):.1f}"]


TEXT = f"""\
# With Cloudflare's completion events, and without

{{written}} Both functions in a simulated world: {JOBS} jobs of {BATCHES} batches, one every
{EVERY_SECONDS / 60:.0f} minutes (those of an hour: every two hours), 200 calls a minute;
{len(SEEDS)} worlds for each cell, the first job not counted. Each cell: calls of the model a batch,
the submit included; calls of the Queues API a batch, its pulls; seconds from ready to collected,
the mean and the 95th percentile.

{{each}}

## More batches than calls

One job of {WALL_BATCHES:,} batches that take 5 to 90 s, with {WALL_CALLS} calls a minute: batches
that were collected in each of the first {WALL_WINDOWS} times five minutes, and seconds from ready
to collected.

{{wall}}
"""


def main() -> None:
    """Run, print and write."""
    lines: list[list[str]] = []
    rows: dict[str, dict[str, object]] = {name: {"times": times} for name, times in TIMES.items()}
    rows["an hour, always"]["every"] = SLOW_EVERY_SECONDS
    rows[STALLED] = {"times": {"latency": 60.0, **AROUND}, "later": {"latency": 1_800.0}}
    for name, row in rows.items():
        cells = [
            of_all([figures(events=events, seed=seed, **row) for seed in SEEDS]).cell()  # type: ignore[arg-type]
            for events in WAYS.values()
        ]
        lines.append([name, *cells])
        sys.stdout.write(" | ".join(lines[-1]) + "\n")
    wall: list[list[str]] = []
    for name, events in WAYS.items():
        wall.append([name, *at_the_wall(events)])
        sys.stdout.write(" | ".join(wall[-1]) + "\n")
    text = TEXT.format(
        written=written_by("python -m tests.simulation.cloudflare.both_ways"),
        each=grid(["time to finish", *WAYS], lines),
        wall=grid(["", "collected in five minutes each", "seconds"], wall),
    )
    WRITTEN.write_text(text)


if __name__ == "__main__":
    main()

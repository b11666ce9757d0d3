"""`python -m bench.small_jobs`: what jobs of a few batches are billed while they wait.

Writes `bench/small_jobs.md`.

The functions run in a simulated world (`tests.simulation`): messages arrive when they are asked
for, and a call takes as long as it would. Computing takes no time there. Two ways take turns in one
run: to wait in the invocation for what is due next, and to plan a wake-up and end.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from bench.billed import Found, billed
from bench.cost import PRICES, grid
from bench.meter import FUNCTIONS
from bench.share import memory_of
from functions.poll.schedule import tick
from local.workers_ai import Behaviour
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import simulated

WRITTEN = Path(__file__).with_suffix(".md")
WAYS = {"waits": math.inf, "wakes": tick.MAX_IDLE_SECONDS}
"""Seconds that an invocation waits for what is due before it plans a wake-up, by what it does."""
RECORDS = 10
"""In a batch."""
SEEDS = range(1, 9)
MOST_SECONDS = 36_000.0
JOBS = (
    ("1 batch after 20 s", 20.0, [1], 0.0),
    ("1 batch after 60 s", 60.0, [1], 0.0),
    ("1 batch after 120 s", 120.0, [1], 0.0),
    ("1 batch after 300 s", 300.0, [1], 0.0),
    ("40 batches after 60 s", 60.0, [40], 0.0),
    ("40 batches after 120 s", 120.0, [40], 0.0),
    ("20 jobs of a batch, one every 17 s, after 60 s", 60.0, [1] * 20, 17.0),
)
"""For each row: the API's median, the jobs' batches, and seconds between two drops."""


@dataclass
class Runs(Found):
    """What the runs of one way used, and how late batches were.

    Attributes:
        late: for each batch, seconds from the API's answer to its collection.
        runs: worlds that were run.
    """

    late: list[float] = field(default_factory=list)
    runs: int = 0

    def dollars(self) -> float:
        """Of one run."""
        gb_seconds = sum(self.seconds[name] * memory_of(name) / 1024 for name in FUNCTIONS)
        used = {**self.used, "Lambda GB-s": gb_seconds}
        return sum(PRICES.get(name, 0.0) * count for name, count in used.items()) / self.runs

    def cells(self) -> list[str]:
        """Billed seconds, calls of AWS and of the API, overdue, late, dollars: of one run."""
        calls = sum(
            self.used[name] for name in ("DynamoDB calls", "S3 writes", "S3 reads", "SQS requests")
        )
        ordered = sorted(self.overdue)
        return [
            f"{self.seconds.total() / self.runs:.1f} s",
            f"{self.used['Lambda runs'] / self.runs:.1f}",
            f"{calls / self.runs:,.0f}",
            f"{self.used['API calls'] / self.runs:.1f}",
            f"{statistics.fmean(ordered):.1f} s, {ordered[int(0.99 * (len(ordered) - 1))]:.1f} s",
            f"{statistics.median(self.late):.0f} s",
            f"${self.dollars():.6f}",
        ]


def measure(
    latency: float, batches: list[int], apart: float, seed: int, found: Runs, **settings: object
) -> None:
    """Run jobs of so many batches on a stack that was idle; add to what was found.

    Args:
        latency: the API's median, seconds (lognormal, sigma 0.5).
        batches: of each job.
        apart: seconds between two drops.
        seed: of the world.
        found: of its way.
        settings: the functions' variables that differ.
    """
    behaviour = Behaviour(
        embedder="hash", latency=latency, latency_kind="lognormal", latency_spread=0.5
    )
    settings = {"MAX_REQUESTS_PER_BATCH": RECORDS, "API_CALLS_PER_MINUTE": 200, **settings}
    with simulated(seed, None, behaviour, **settings) as world:
        world.run(65, lambda: world.functions["PollFunction"].invocations == 1)
        world.run(5)  # The next tick is as far away as it can be.
        with billed(world, found):
            for number, size in enumerate(batches):
                drop(world, f"{number}.jsonl", size * RECORDS)
                world.run(apart)
            assert world.settle(MOST_SECONDS)
        found.late += [
            found.done[one["request_id"]] - one["completes_at"] for one in world.api.accepted
        ]
        found.runs += 1


def row(name: str, latency: float, batches: list[int], apart: float) -> list[list[str]]:
    """Two rows: each way with the same seeds, taking turns."""
    found = {way: Runs() for way in WAYS}
    for seed in SEEDS:
        for way, seconds in WAYS.items():
            with patch.object(tick, "MAX_IDLE_SECONDS", seconds):
                measure(latency, batches, apart, seed, found[way])
    rows = [[name, way, *one.cells()] for way, one in found.items()]
    for one in rows:
        print(" | ".join(one), flush=True)
    return rows


_TEXT = """\
# What a small job is billed while it waits

Written by `python -m bench.small_jobs`; do not edit. The functions run in a simulated world, the same everywhere:
messages arrive when they are asked for, a call takes as long as it would, computing takes no time. Each row is the mean
of {seeds} worlds on a stack that was idle, on a model that is new. Batches have {records} records. *Waits*: an
invocation stays until what is due next, as all did before. *Wakes*: one that has nothing to do for more than {idle:.0f}
seconds plans a wake-up, and ends. Billed are all runs from the drop to the end of the last job, idle ticks too.
*Overdue*: from when a batch is due to its poll, the mean and the 99th percentile. *Collected*: from the API's answer,
the median. Dollars are at the prices of [cost.md](cost.md), storage excepted.

{table}
"""


def main() -> None:
    """Measure, print and write."""
    argparse.ArgumentParser(
        prog="python -m bench.small_jobs", description=__doc__.splitlines()[0]
    ).parse_args()
    head = [
        "jobs",
        "",
        "billed",
        "runs",
        "calls of AWS",
        "calls of the API",
        "overdue",
        "collected",
        "dollars",
    ]
    table = grid(head, [line for one in JOBS for line in row(*one)])
    WRITTEN.write_text(
        _TEXT.format(seeds=len(SEEDS), records=RECORDS, idle=tick.MAX_IDLE_SECONDS, table=table)
    )


if __name__ == "__main__":
    main()

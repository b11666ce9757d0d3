"""`python -m bench.small_jobs`: what jobs of a few batches are billed while they wait; writes `bench/small_jobs.md`.

The functions run in a simulated world (`tests.simulation`): messages arrive when they are asked for, and a call takes
as long as it would. Computing takes no time there. Two ways take turns in one run: to wait in the invocation for what
is due next, and to plan a wake-up and end.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from bench.cost import PRICES, grid
from bench.meter import S3_FREE, S3_READS, Meter, Run
from bench.share import memory_of
from functions.poll.schedule import tick
from local.workers_ai import Behaviour
from simulation.invocations import Function
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import simulated
from tests.support.aws.wire_items import number, submissions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.worlds.world import World

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
class Found:
    """What the runs of one way used, and how late batches were polled.

    Attributes:
        seconds: billed, by function.
        used: what has a price in `bench.cost`, and `API calls`.
        overdue: for each poll, seconds since it was due.
        late: for each batch, seconds from the API's answer to its collection.
        runs: worlds that were run.
    """

    seconds: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    overdue: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    runs: int = 0

    def dollars(self) -> float:
        """Of one run: Lambda, DynamoDB, SQS and S3."""
        gb_seconds = sum(self.seconds[name] * memory_of(name) / 1024 for name in ("submit", "poll"))
        sums = (self.used | Counter({"Lambda GB-s": gb_seconds})).items()
        return sum(PRICES.get(name, 0.0) * count for name, count in sums) / self.runs

    def cells(self) -> list[str]:
        """Billed seconds, calls of AWS and of the API, overdue, late, dollars: of one run."""
        calls = sum(self.used[name] for name in ("DynamoDB calls", "S3 writes", "S3 reads", "SQS requests"))
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


def measure(latency: float, batches: list[int], apart: float, seed: int, found: Found, **settings: object) -> None:
    """Run jobs of so many batches on a stack that was idle; add to what was found.

    Args:
        latency: the API's median, seconds (lognormal, sigma 0.5).
        batches: of each job.
        apart: seconds between two drops.
        seed: of the world.
        found: of its way.
        settings: the functions' variables that differ.
    """
    behaviour = Behaviour(embedder="hash", latency=latency, latency_kind="lognormal", latency_spread=0.5)
    settings = {"MAX_REQUESTS_PER_BATCH": RECORDS, "API_CALLS_PER_MINUTE": 200, **settings}
    with simulated(seed, None, behaviour, **settings) as world:
        world.run(65, lambda: world.functions["PollFunction"].invocations == 1)
        world.run(5)  # The next tick is as far away as it can be.
        before = Counter(world.calls.by_operation)
        with _metered(world, found) as done:
            for number, size in enumerate(batches):
                drop(world, f"{number}.jsonl", size * RECORDS)
                world.run(apart)
            assert world.settle(MOST_SECONDS)
        calls = Counter(world.calls.by_operation) - before
        for operation, count in calls.items():
            service, _, name = operation.partition(".")
            found.used[_counted_as(service, name.replace("_", ""))] += count
        found.late += [done[one["request_id"]] - one["completes_at"] for one in world.api.accepted]
        found.runs += 1


def _counted_as(service: str, operation: str) -> str:
    """The name under which a call is counted."""
    if service != "s3":
        return {"dynamodb": "DynamoDB calls", "sqs": "SQS requests", "api": "API calls"}.get(service, service)
    free, reads = ({name.lower() for name in names} for names in (S3_FREE, S3_READS))
    return "S3 deletions" if operation in free else "S3 reads" if operation in reads else "S3 writes"


@contextmanager
def _metered(world: World, found: Found) -> Iterator[dict[str, float]]:
    """Count billed seconds, runs and units; yield when each `request_id` was collected, Unix seconds."""
    meter, done = Meter(), dict[str, float]()
    meter.run, meter.used = Run(""), found.used
    real = Function.invoke

    def invoke(function: Function, event: dict[str, Any], ended: Callable[[set[str] | None], None]) -> bool:
        began = world.kernel.now

        def over(failed: set[str] | None) -> None:
            found.seconds[function.name.removesuffix("Function").lower()] += world.kernel.now - began  # type: ignore[assignment]
            ended(failed)

        found.used["Lambda runs"] += 1
        found.used["SQS requests"] += 2 * ("Records" in event)  # Received and deleted by Lambda's poller.
        return real(function, event, over)

    def watch(key: Key, old: Wire | None, new: Wire | None) -> None:
        if not key[1].startswith("BATCH#") or old is None or new is None:
            return
        if number(new, "polls") > number(old, "polls"):
            found.overdue.append(max(world.kernel.now - number(old, "due_at"), 0.0))
        if new["state"]["S"] == "done" != old["state"]["S"]:
            done[submissions(new)[-1]["request_id"]["S"]] = world.kernel.now

    world.dynamodb.watchers.append(watch)
    with ExitStack() as stack:
        stack.enter_context(patch.object(Function, "invoke", invoke))
        for name in ("get_item", "batch_get_item", "query", "update_item", "put_item", "delete_item"):
            stack.enter_context(patch.object(world.dynamodb, name, _counting(world, meter, name)))
        yield done


def _counting(world: World, meter: Meter, name: str) -> Callable[..., Any]:
    """One of DynamoDB's operations, which also counts the units that functions use."""
    call, operation = getattr(world.dynamodb, name), name.title().replace("_", "")

    def counted(**given: Any) -> Any:  # noqa: ANN401 - as boto3
        answer = call(**given)
        if world.kernel.life() is not None:
            meter.units(operation, given, answer)
        return answer

    return counted


def row(name: str, latency: float, batches: list[int], apart: float) -> list[list[str]]:
    """Two rows: each way with the same seeds, taking turns."""
    found = {way: Found() for way in WAYS}
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
the median. Dollars are of Lambda, DynamoDB, S3 and SQS, at the prices of [cost.md](cost.md).

{table}
"""


def main() -> None:
    """Measure, print and write."""
    argparse.ArgumentParser(prog="python -m bench.small_jobs", description=__doc__.splitlines()[0]).parse_args()
    head = ["jobs", "", "billed", "runs", "calls of AWS", "calls of the API", "overdue", "collected", "dollars"]
    table = grid(head, [line for one in JOBS for line in row(*one)])
    WRITTEN.write_text(_TEXT.format(seeds=len(SEEDS), records=RECORDS, idle=tick.MAX_IDLE_SECONDS, table=table))


if __name__ == "__main__":
    main()

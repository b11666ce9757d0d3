"""`python -m bench.wall`: how many batches are over when the rate budget is what limits them.

Writes `bench/wall.md`.

The functions run in a simulated world (`tests.simulation`) with 240 calls a minute. Two shares of
the submits take turns in one run: half of the calls, as before, and what is left by a poll for each
batch outstanding.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from bench.cost import grid
from functions.poll.schedule import tick
from local.workers_ai import Behaviour
from shared.pacing.budget import Budget
from tests.simulation.cloudflare.events import Events
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import simulated
from tests.support.aws.wire_items import submissions

if TYPE_CHECKING:
    from simulation.services.dynamodb import Key, Wire

WRITTEN = Path(__file__).with_suffix(".md")
CALLS, SECONDS, SEEN, SEEDS = 240, 300.0, 40, (1, 2, 3)
LATENCIES = (2.0, 60.0, 120.0, 300.0)
JOBS = ((1, 1_000), (50, 20))
"""Jobs that are dropped together, and batches of each."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What one world came to.

    Attributes:
        over: batches that were over in time.
        calls: calls of the API in this time.
        delays: for each of these batches, seconds from the API's answer to its collection.
    """

    over: int
    calls: int
    delays: list[float]


def measure(latency: float, jobs: int, batches: int, seed: int, *, with_events: bool) -> Figures:
    """Drop jobs on a model that is known, and look after `SECONDS`."""
    events = Events(is_on=with_events)
    behaviour = events.behaviour(
        Behaviour(embedder="hash", latency=latency, latency_kind="lognormal", latency_spread=0.5)
    )
    settings = {"MAX_REQUESTS_PER_BATCH": 1, "API_CALLS_PER_MINUTE": CALLS, **events.settings()}
    with simulated(seed, None, behaviour, **settings) as world:
        world.run(65, lambda: world.functions["PollFunction"].invocations == 1)
        drop(world, "seen.jsonl", SEEN)
        assert world.settle(36_000)
        world.run(120)
        before, called, done = len(world.api.accepted), len(world.call_times), dict[str, float]()

        def watch(key: Key, old: Wire | None, new: Wire | None) -> None:
            if (
                key[1].startswith("BATCH#")
                and old
                and new
                and new["state"]["S"] == "done" != old["state"]["S"]
            ):
                done[submissions(new)[-1]["request_id"]["S"]] = world.kernel.now

        world.dynamodb.watchers.append(watch)
        for number in range(jobs):
            drop(world, f"{number}.jsonl", batches)
        world.run(SECONDS)
        accepted = [one for one in world.api.accepted[before:] if one["request_id"] in done]
        late = [done[one["request_id"]] - one["completes_at"] for one in accepted]
        return Figures(len(done), len(world.call_times) - called, late)


def cell(found: list[Figures]) -> str:
    """Batches over, calls, and seconds from ready to collected.

    (mean and 95th percentile) of several worlds.
    """
    late = sorted(wait for one in found for wait in one.delays)
    over, calls = (
        statistics.fmean(values)
        for values in zip(*((one.over, one.calls) for one in found), strict=True)
    )
    return (
        f"{over:.0f} / {calls:,.0f} / {statistics.fmean(late):.1f} / "
        f"{late[int(0.95 * (len(late) - 1))]:.0f}"
    )


def row(latency: float, jobs: int, batches: int, *, with_events: bool) -> list[str]:
    """One row: both shares with the same seeds, taking turns."""
    halves: list[Figures] = []
    shared: list[Figures] = []
    made, share = Budget.__init__, tick._Allowance.of  # noqa: SLF001 - what is measured

    def half(budget: Budget, *given: object) -> None:
        made(budget, *given)  # type: ignore[arg-type]
        budget.slot_seconds = 2 * budget.interval / 1_000

    for seed in SEEDS:
        with (
            patch.object(Budget, "__init__", half),
            patch.object(
                tick._Allowance,  # noqa: SLF001
                "of",
                lambda calls, visits, _outstanding=0: share(calls, visits, calls),
            ),
        ):
            halves.append(measure(latency, jobs, batches, seed, with_events=with_events))
        shared.append(measure(latency, jobs, batches, seed, with_events=with_events))
    name = f"around {latency:.0f} s, {jobs} x {batches:,}" + (", events" if with_events else "")
    line = [name, cell(halves), cell(shared)]
    print(" | ".join(line), flush=True)
    return line


_TEXT = """\
# Where the rate budget is the limit

Written by `python -m bench.wall`; do not edit. The functions run in a simulated world with {calls} calls a minute. Jobs
of so many batches are dropped together on a model that is known (lognormal, sigma 0.5). *Before*: submits had half of
the calls. *Now*: what is left by a poll for each batch outstanding, and at least half; polls still go first. Each cell,
of {seeds} worlds: batches that were over after {minutes:.0f} minutes, calls in this time, and seconds from ready to
collected, the mean and the 95th percentile. *Events*: with Cloudflare's completion events.

{table}
"""


def main() -> None:
    """Measure, print and write."""
    argparse.ArgumentParser(
        prog="python -m bench.wall", description=__doc__.splitlines()[0]
    ).parse_args()
    given = [
        (latency, *jobs, told) for latency in LATENCIES for jobs in JOBS for told in (False, True)
    ]
    rows = [row(latency, jobs, batches, with_events=told) for latency, jobs, batches, told in given]
    table = grid(["time to finish, jobs", "before", "now"], rows)
    WRITTEN.write_text(
        _TEXT.format(calls=CALLS, seeds=len(SEEDS), minutes=SECONDS / 60, table=table)
    )


if __name__ == "__main__":
    main()

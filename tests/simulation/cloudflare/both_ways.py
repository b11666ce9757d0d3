"""`python -m tests.simulation.cloudflare.both_ways`: jobs with completion events and without; writes bench/events.md.

Both functions run as they are in a simulated world, in one run, with the same files dropped at the same times.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from local.template import powertools_variables

os.environ |= powertools_variables()

from local.workers_ai import Behaviour
from tests.simulation.cloudflare.events import Events
from tests.simulation.cloudflare.laws import EventLaws
from tests.simulation.worlds.judges import Laws
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import simulated

if TYPE_CHECKING:
    from collections.abc import Mapping

WRITTEN = Path(__file__).parents[3] / "bench/events.md"
JOBS, BATCHES, EVERY_SECONDS = 3, 20, 1_200.0
SETTLE_SECONDS = 86_400.0
SEEDS = (1, 2, 3)
UNIFORM, AROUND = {"latency_kind": "uniform"}, {"latency_kind": "lognormal", "latency_spread": 0.5}
TIMES: Mapping[str, Mapping[str, object]] = {
    "at once": {"latency": 0.0},
    "5 to 90 s, evenly": {"latency": 47.5, "latency_spread": 0.895, **UNIFORM},
    "around 2 minutes (sigma 0.5)": {"latency": 120.0, **AROUND},
    "1 to 10 minutes, evenly": {"latency": 330.0, "latency_spread": 0.818, **UNIFORM},
    "an hour, always": {"latency": 3_600.0},
}
WAYS: Mapping[str, Events] = {
    "polls alone": Events(is_on=False),
    "events": Events(),
    "events, each lost": Events(lost=1.0),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to, for each batch: calls of the model, calls of Queues; seconds from ready to collected."""

    calls: float
    queue_calls: float
    waits: list[float]

    def cell(self) -> str:
        """Its cell of the table."""
        late = sorted(self.waits)[len(self.waits) * 95 // 100]
        return f"{self.calls:.1f} / {self.queue_calls:.1f} / {mean(self.waits):.1f} / {late:.0f}"


def figures(
    times: Mapping[str, object], events: Events, jobs: int = JOBS, batches: int = BATCHES, seed: int = 1
) -> Figures:
    """Drop the jobs one after the other, and let each end."""
    behaviour = events.behaviour(Behaviour(embedder="hash").changed(times))
    settings = {"MAX_REQUESTS_PER_BATCH": 2, **events.settings()}
    with simulated(seed, None, behaviour, **settings) as world:
        laws = EventLaws(Laws(world), events)
        for number in range(jobs):
            drop(world, f"{number}.jsonl", 2 * batches)
            world.run(EVERY_SECONDS)
        if not world.settle(SETTLE_SECONDS):
            raise RuntimeError("a job did not end")
        many = jobs * batches
        return Figures(len(world.call_times) / many, len(world.queue_times) / many, laws.waits)


def of_all(runs: list[Figures]) -> Figures:
    """The figures of several runs as one."""
    waits = [wait for one in runs for wait in one.waits]
    return Figures(mean(one.calls for one in runs), mean(one.queue_calls for one in runs), waits)


TEXT = f"""\
# With Cloudflare's completion events, and without

Written by `python -m tests.simulation.cloudflare.both_ways`; do not edit. Both functions as they are, in a simulated
world: {JOBS} jobs of {BATCHES} batches, one every {EVERY_SECONDS / 60:.0f} minutes, the first on a new model, 200
calls a minute; {len(SEEDS)} worlds for each cell. An event takes about a second to its queue. Each cell has calls of
the model for each batch, its submit included; calls of the Queues API for each batch; and seconds from ready to
collected, the mean and the 95th percentile. [docs/events.md](../docs/events.md) says what events are.

"""


def main() -> None:
    """Run, print and write."""
    lines = [["time to finish", *WAYS], ["---"] * (1 + len(WAYS))]
    for name, times in TIMES.items():
        cells = [of_all([figures(times, events, seed=seed) for seed in SEEDS]).cell() for events in WAYS.values()]
        lines.append([name, *cells])
        sys.stdout.write(" | ".join(lines[-1]) + "\n")
    WRITTEN.write_text(TEXT + "".join(f"| {' | '.join(line)} |\n" for line in lines))


if __name__ == "__main__":
    main()

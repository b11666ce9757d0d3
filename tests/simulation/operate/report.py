"""Operate: large and long worlds.

What is measured in them, and how it is written to `bench/simulation.md`.
"""

from __future__ import annotations

import json
import resource
import sys
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local.template import properties
from tests.simulation.worlds.judges import CALLS_IN_FIVE_MINUTES
from tests.support.fault_table import run_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.worlds.judges import Violation
    from tests.simulation.worlds.world import World

FOLDER = Path(__file__).parents[3] / "bench"
DAY = 86_400.0


@dataclass(slots=True)
class Figure:
    """What was measured, beside what is promised and where."""

    name: str
    measured: str
    promised: str = ""
    where: str = ""


@dataclass(slots=True)
class Report:
    """What a world came to, as it is kept in `bench/simulation.json`."""

    title: str
    about: list[str]
    figures: list[Figure]
    violations: list[str]


@dataclass(slots=True)
class Samples:
    """Measures a world at regular times.

    Attributes:
        rows: one a sample: hours since the beginning, and what was there, by name.
        states: of all batches.
    """

    world: World
    every: float
    rows: list[dict[str, float]] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    items: Counter[str] = field(default_factory=Counter)
    largest_item: int = 0
    deepest: Counter[str] = field(default_factory=Counter)
    _before: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        """Begin to measure."""
        self.world.dynamodb.watchers.append(self._note)
        self.world.kernel.at(self.world.kernel.now + self.every, self._sample)

    def _note(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        kind = key[1].partition("#")[0] if key[0].startswith("JOB#") else "control"
        self.items[kind] += (new is not None) - (old is not None)
        if kind == "control":
            return
        prefix = "job " if kind == "META" else ""
        if old is not None:
            self.states[prefix + old["state"]["S"]] -= 1
        if new is not None:
            self.states[prefix + new["state"]["S"]] += 1

    def _sample(self) -> None:
        world = self.world
        counted = Counter(world.calls.by_operation)
        since = counted - self._before
        self._before = counted
        minutes = self.every / 60
        depths = {name: len(queue.messages) for name, queue in world.sqs.queues.items()}
        for name, depth in depths.items():
            self.deepest[name] = max(self.deepest[name], depth)
        self.rows.append(
            {
                "hours": (world.kernel.now - world.began) / 3_600,
                "api": since["api.call"] / minutes,
                "reads": sum(
                    since[f"dynamodb.{name}"] for name in ("query", "get_item", "batch_get_item")
                )
                / minutes,
                "writes": sum(since[f"dynamodb.{name}"] for name in ("update_item", "put_item"))
                / minutes,
                "waiting": self.states["ready"],
                "outstanding": self.states["queued"] + self.states["submitting"],
                "done": self.states["done"],
                "open jobs": sum(
                    self.states[f"job {one}"] for one in ("splitting", "in_progress", "finalizing")
                ),
                "messages": sum(depths.values()),
                "items": self.items.total(),
                "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                **(
                    {f"{prefix}/": count for prefix, count in world.s3.stored().items()}
                    if self.every >= DAY
                    else {}
                ),
            }
        )
        world.kernel.at(world.kernel.now + self.every, self._sample)


def begin_retention(world: World) -> None:
    """Once a day, delete what time to live and the bucket's lifecycle rules delete."""
    rules = [
        one for one in properties("Bucket")["LifecycleConfiguration"]["Rules"] if "Prefix" in one
    ]

    def expire() -> None:
        world.dynamodb.expire()
        for rule in rules:
            days = rule.get("ExpirationInDays")
            noncurrent = rule["NoncurrentVersionExpiration"]["NoncurrentDays"]
            world.s3.expire(rule["Prefix"], days if isinstance(days, int) else None, noncurrent)
        world.kernel.at(world.kernel.now + DAY, expire)

    world.kernel.at(world.began + DAY, expire)


def most_calls(times: Sequence[float], seconds: float) -> int:
    """The most calls in any span of so many seconds."""
    most = first = 0
    for place, at in enumerate(times):
        while at - times[first] >= seconds:
            first += 1
        most = max(most, place - first + 1)
    return most


def call_figures(world: World, limit: int = CALLS_IN_FIVE_MINUTES) -> list[Figure]:
    """How many calls reached the API in any minutes."""
    times = sorted(world.call_times)
    means = (
        "the rate itself"
        if limit > CALLS_IN_FIVE_MINUTES
        else "beyond which Cloudflare rejects all"
    )
    return [
        Figure(
            "most calls to the API in five minutes",
            f"{most_calls(times, 300):,}",
            f"{limit:,}, {means}",
            "docs/limits.md, Calls",
        )
    ]


def told(violations: Sequence[Violation], world: World) -> list[str]:
    """Violations for people: how many of each law, with its first."""
    counted = Counter(one.law for one in violations)
    first = {one.law: one for one in reversed(violations)}
    return [
        (
            f"{law}: {number} times, first after {(first[law].at - world.began) / 3_600:.1f} "
            f"h: {first[law].detail[:200]}"
        )
        for law, number in counted.items()
    ]


def publish(name: str, report: Report) -> bool:
    """Keep a world's report, print it, and write `bench/simulation.md` from all that are kept.

    Returns:
        Whether any law or promise was broken.
    """
    kept_in = FOLDER / "simulation.json"
    kept: dict[str, Any] = json.loads(kept_in.read_text()) if kept_in.exists() else {}
    kept[name] = {**asdict(report), "commit": run_at()}
    kept_in.write_text(json.dumps(kept, indent=1) + "\n")
    lines = [
        "# The simulated world in operation",
        "",
        "Written by `make simulate` with `OPERATE`; do not edit. The functions run whole, on one",
        "simulated clock; the [laws](../docs/invariants.md) are checked after each write. Promises are",
        "those of [limits](../docs/limits.md) and of `tests/simulation/worlds/judges.py`.",
    ]
    for one in kept.values():
        lines += [
            "",
            f"## {one['title']}",
            "",
            *one["about"],
            f"Played at {one['commit']}.",
            "",
            "| figure | measured | promised |",
            "| --- | --- | --- |",
        ]
        lines += [
            f"| {row['name']} | {row['measured']} | {row['promised']} |" for row in one["figures"]
        ]
        lines.append("")
        lines += (
            ["Broken laws and promises:", "", *(f"- {text}" for text in one["violations"])]
            if one["violations"]
            else ["No law and no promise was broken."]
        )
    (FOLDER / "simulation.md").write_text("\n".join(lines) + "\n")
    sys.stdout.writelines(
        f"{one.name}: {one.measured} ({one.promised})\n" for one in report.figures
    )
    sys.stdout.writelines(f"{text}\n" for text in report.violations)
    return bool(report.violations)

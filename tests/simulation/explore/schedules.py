"""Explore: small worlds under every schedule with up to two switches and one death.

A world runs once as it is, with fixed durations and without chance. Then it runs again for each of its calls: there the
running invocation is held up, so that everything else goes on before it (a switch), or its process dies. Pairs of both
follow. A switch that changes nothing of what is written, and in which order, needs no second one: such runs are
duplicates, and pairs that begin with them are left out.
"""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING
from unittest.mock import patch

from local.workers_ai import Behaviour, Fault
from tests.simulation.services.awkward import Awkward
from tests.simulation.worlds.judges import Ending, Laws, Violation
from tests.simulation.worlds.users import MODELS, Dropped, drop
from tests.simulation.worlds.world import World, simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.simulation.services.dynamodb import Key, Wire

HOLD_UPS = (1.5, 100.0)
"""Seconds: longer than a message takes to be processed, and longer than the items' leases and waits of a minute."""
SETTLE_SECONDS = 50 * 86_400.0
AFTERWARDS_SECONDS = 1_200.0


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens at which call: seconds that it is held up, or the death of its process."""

    held_up: tuple[tuple[int, float], ...] = ()
    dies_at: int = 0

    def __str__(self) -> str:
        """For people."""
        parts = [f"call {number} is held up for {seconds:g} s" for number, seconds in self.held_up]
        return ", ".join([*parts, *([f"death at call {self.dies_at}"] if self.dies_at else [])]) or "undisturbed"


@dataclass(slots=True)
class Explored:
    """What exploring one world came to.

    Attributes:
        calls: of the undisturbed run, which is how many places there are.
        schedules: how many were run.
        distinct: how many of them wrote something else, or in another order.
    """

    name: str
    calls: int = 0
    schedules: int = 0
    distinct: int = 0
    broken: list[tuple[Schedule, Violation]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class SmallWorld:
    """A scenario: what its users do, and what the API does."""

    name: str
    act: Callable[[World], list[Dropped]]
    faults: tuple[Fault, ...] = ()
    settings: tuple[tuple[str, object], ...] = (("MAX_REQUESTS_PER_BATCH", 2),)


def _one_batch(world: World) -> list[Dropped]:
    return [drop(world, "a.jsonl", 2)]


def _notified_twice(world: World) -> list[Dropped]:
    dropped = drop(world, "a.jsonl", 2)
    world.notify_again(dropped.upload)
    return [dropped]


def _bad_record(world: World) -> list[Dropped]:
    return [drop(world, "a.jsonl", 2, may_fail=True)]


def _cancelled(world: World) -> list[Dropped]:
    dropped = drop(world, "a.jsonl", 4, may_fail=True)
    world.run(1.5)
    world.command(dropped.upload.job_id, "cancel")
    return [dropped]


def _two_jobs(world: World) -> list[Dropped]:
    return [drop(world, "a.jsonl", 1), drop(world, "b.jsonl", 1, MODELS[1])]


SMALL_WORLDS = (
    SmallWorld("one batch", _one_batch),
    SmallWorld("notified twice", _notified_twice),
    SmallWorld("refused record", _bad_record, (Fault(kind="5006", on="submit", contains="a.jsonl 1", times=0),)),
    SmallWorld("lost after acceptance", _bad_record, (Fault(kind="accept_then_reset"),)),
    SmallWorld("failed after acceptance", _bad_record, (Fault(kind="batch_fails", contains="a.jsonl 1", times=0),)),
    SmallWorld("cancelled", _cancelled),
    SmallWorld("two jobs", _two_jobs),
)


class _NoChance(random.Random):
    """Chance without chance: the least, the first, and nothing that is unlikely."""

    def random(self) -> float:
        return 0.999

    def uniform(self, a: float, b: float) -> float:
        return a

    def randrange(self, *bounds: int) -> int:  # type: ignore[override]
        return bounds[0] if len(bounds) > 1 else 0


def run(small: SmallWorld, schedule: Schedule) -> tuple[str, int, list[Violation]]:
    """Run a small world under one schedule; return what it wrote as a digest, its calls, and what it broke."""
    behaviour = Behaviour(embedder="hash", latency=3.0)
    with (
        patch.object(random, "random", lambda: 0.5),
        patch.object(random, "uniform", lambda low, high: (low + high) / 2),
        patch.object(random, "randrange", lambda *bounds: bounds[0] if len(bounds) > 1 else 0),
        simulated(1, Awkward(cold_start_seconds=0.0), behaviour, **dict(small.settings)) as world,
    ):
        world.kernel.random = world.calls.random = _NoChance()
        world.calls.held_up = dict(schedule.held_up)
        world.calls.dies_at = schedule.dies_at
        laws = Laws(world)
        digest = hashlib.sha256()

        def note(key: Key, _old: Wire | None, new: Wire | None) -> None:
            written = {
                name: wire for name, wire in (new or {}).items() if name in ("state", "attempt", "work", "claims")
            }
            digest.update(json.dumps([key, written], sort_keys=True).encode())

        world.dynamodb.watchers.append(note)
        if small.faults:
            world.inject(*small.faults)
        dropped = small.act(world)
        world.settle(SETTLE_SECONDS)
        places = world.calls.places
        world.wait_for_late_things(AFTERWARDS_SECONDS)
        Ending(laws).judge(dropped)
        return digest.hexdigest(), places, laws.violations


def single(calls: int) -> Iterator[Schedule]:
    """Every schedule with one switch, then every one with a death, of a world of so many calls."""
    places = range(1, calls + 1)
    yield from (Schedule((one,)) for one in product(places, HOLD_UPS))
    yield from (Schedule(dies_at=number) for number in places)


def explore(small: SmallWorld, depth: int) -> Explored:
    """Run every schedule of a small world.

    Args:
        small: the world.
        depth: 1: one switch, or one death; 2: also a switch and a death; 3: also two switches.
    """
    base, calls, violations = run(small, Schedule())
    explored = Explored(small.name, calls, 1, 1, [(Schedule(), one) for one in violations])
    seen = {base}

    def attempt(schedule: Schedule) -> bool:
        """Run a schedule; return whether it wrote what no other has written."""
        digest, _, broken = run(small, schedule)
        explored.schedules += 1
        explored.broken += [(schedule, one) for one in broken]
        is_new = digest not in seen
        seen.add(digest)
        explored.distinct += is_new
        return is_new

    telling = [held for one in single(calls) if attempt(one) for held in one.held_up]
    if depth > 1:
        for first, number in product(telling, range(1, calls + 1)):
            attempt(Schedule((first,), number))
    if depth > 2:
        for pair in _pairs(telling, calls):
            attempt(Schedule(pair))
    return explored


def _pairs(telling: list[tuple[int, float]], calls: int) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
    """A switch that changes something, and any after it."""
    for first in telling:
        for number in range(first[0] + 1, calls + 20):
            for seconds in HOLD_UPS:
                yield first, (number, seconds)

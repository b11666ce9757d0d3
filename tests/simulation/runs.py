"""Runs: one world of one seed, from its first upload to its judges, and its trace."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from local.workers_ai import Behaviour
from tests.simulation.awkward import Awkward
from tests.simulation.judges import Ending, Laws, Promises, Violation
from tests.simulation.users import drop_some
from tests.simulation.world import simulated

if TYPE_CHECKING:
    from tests.simulation.kernel import Life

SETTLE_SECONDS = 60 * 86_400.0
"""Every job ends within 50 days."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        trace: SHA-256 of everything that happened, in order.
        calls: simulated calls.
        seconds: simulated time.
    """

    seed: int
    violations: tuple[Violation, ...]
    trace: str
    calls: int
    seconds: float


def random_world(seed: int, events: list[str] | None = None) -> Outcome:
    """A small world with a bit of everything, decided by the seed; `events` gets one line an event."""
    random = Random(seed)
    is_calm = random.random() < 0.2
    awkward = Awkward() if is_calm else Awkward.drawn(random)
    behaviour = Behaviour(
        embedder="hash", latency=random.choice((0.0, 3.0, 40.0, 600.0)), latency_kind="lognormal", latency_spread=0.5
    )
    calls_per_minute = random.choice((2, 20, 200))
    settings = {
        "MAX_REQUESTS_PER_BATCH": random.choice((2, 3, 10, 500)),
        "API_CALLS_PER_MINUTE": calls_per_minute,
        "BATCH_DEADLINE_HOURS": 24 if is_calm else random.choice((1, 24)),
        "AMBIGUOUS_SUBMIT": random.choice(("resubmit", "resubmit", "fail")),
    }
    with simulated(seed, awkward, behaviour, **settings) as world:
        digest = hashlib.sha256()

        def note(life: Life, operation: str) -> None:
            line = f"{world.kernel.now:.6f} {life.name} {operation}"
            digest.update(line.encode())
            if events is not None:
                events.append(line)
            world.may_die(life)

        world.calls.before = note
        laws = Laws(world)
        promises = Promises(laws)
        dropped = drop_some(world, random, faults=not is_calm)
        world.settle(SETTLE_SECONDS)
        world.run(3_600)
        Ending(laws).judge(dropped)
        if is_calm:
            promises.judge(dropped, calls_per_minute)
        return Outcome(
            seed, tuple(laws.violations), digest.hexdigest(), world.calls.total, world.kernel.now - world.began
        )

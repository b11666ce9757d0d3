"""`make simulate`: run worlds, each decided by its own seed, and print what they broke.

SEED=17     that world alone: the smallest plan that breaks the same law, and EVENTS (60) before
SEEDS=100   so many worlds, beginning with FIRST (1)
MINUTES=10  as many as the time allows
EXPLORE=2   small worlds under each schedule with so many disturbances, at most SCHEDULES (2000)
            of each world; with FIRST every second one is drawn by it
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count

from local.template import powertools_variables

os.environ |= powertools_variables()

from simulation import first_difference
from tests.simulation.explore.schedules import explore
from tests.simulation.explore.small_worlds import SMALL_WORLDS
from tests.simulation.worlds.plans import smaller
from tests.simulation.worlds.runs import random_world, run, smallest


def replay(seed: int) -> bool:
    """Run one seed, and show its smallest plan and events if it breaks a law."""
    outcome = random_world(seed)
    if not outcome.violations:
        print(*outcome.plan.lines(), "No law was broken.", sep="\n")
        return False
    law = outcome.violations[0].law
    plan = smallest(outcome.plan, law)
    events: list[str] = []
    broken = next(one for one in run(plan, events).violations if one.law == law)
    print(*plan.lines(), sep="\n")
    end = next(place for place, event in enumerate(events, 1) if f" BROKEN {law}" in event)
    print(*events[max(end - int(os.environ.get("EVENTS", "60")), 0) : end], sep="\n")
    passing = list[str]()
    run([*smaller(plan)][-1], passing, outcome.seconds)
    print("First difference from the last smaller plan, which keeps it:")
    print(*first_difference(passing, events), sep="\n")
    print(f"{broken.law}: {broken.detail}")
    return True


def random_worlds(first: int, wanted: int | None, minutes: float) -> bool:
    """Run worlds until there are enough or the time is over; return whether any broke a law."""
    began, worlds, calls, simulated_seconds, broken = time.monotonic(), 0, 0, 0.0, 0
    for seed in count(first):
        if worlds == wanted or (wanted is None and time.monotonic() > began + 60 * minutes):
            break
        outcome = random_world(seed)
        worlds += 1
        calls += outcome.calls
        simulated_seconds += outcome.seconds
        for one in outcome.violations[:3]:
            told = f"seed {seed}: {one.law}: {one.detail[:300]} (make simulate SEED={seed})"
            print(told, flush=True)
        broken += bool(outcome.violations)
    took = time.monotonic() - began
    print(
        f"{worlds} worlds (seeds {first} to {first + worlds - 1}), {calls:,} calls, "
        f"{simulated_seconds / 86_400:.1f} simulated days in {took:.0f} s, "
        f"{calls / took:,.0f} calls a second, "
        f"{broken} broken"
    )
    return bool(broken)


def small_worlds(depth: int) -> bool:
    """Explore each small world; return whether any schedule broke a law."""
    is_broken = False
    first = os.environ.get("FIRST")
    for small in SMALL_WORLDS:
        began = time.monotonic()
        found = explore(
            small, depth, int(os.environ.get("SCHEDULES", "2000")), int(first) if first else None
        )
        print(
            f"{small.name}: {found.calls} calls, {found.schedules:,} schedules, "
            f"{found.distinct:,} of them distinct, "
            f"{time.monotonic() - began:.0f} s, {len(found.broken)} broken",
            flush=True,
        )
        for schedule, one in found.broken[:5]:
            print(f"  {schedule}: {one.law}: {one.detail[:300]}")
        is_broken = is_broken or bool(found.broken)
    return is_broken


def main() -> int:
    """Run what the environment asks for; return the exit status: 1 if a law was broken."""
    if seed := os.environ.get("SEED"):
        return replay(int(seed))
    if depth := os.environ.get("EXPLORE"):
        return small_worlds(int(depth))
    wanted = os.environ.get("SEEDS")
    return random_worlds(
        int(os.environ.get("FIRST", "1")),
        int(wanted) if wanted else None,
        float(os.environ.get("MINUTES", "1")),
    )


if __name__ == "__main__":
    sys.exit(main())

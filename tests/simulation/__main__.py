"""`make simulate`: run worlds, each of its own seed, and print what they broke.

SEED=17     that world alone, with its trace
SEEDS=100   so many worlds, beginning with FIRST (1)
MINUTES=10  as many as the time allows
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count

from local.template import powertools_variables

os.environ |= powertools_variables()


def main() -> int:
    """Run the worlds that the environment asks for; return the exit status."""
    from tests.simulation.runs import random_world  # noqa: PLC0415 - the variables above come first

    if seed := os.environ.get("SEED"):
        events: list[str] = []
        outcome = random_world(int(seed), events)
        print(*events[-int(os.environ.get("EVENTS", "200")) :], sep="\n")
        for one in outcome.violations:
            print(f"{one.at:.3f} {one.law}: {one.detail}")
        return bool(outcome.violations)
    first, wanted = int(os.environ.get("FIRST", "1")), os.environ.get("SEEDS")
    ends = time.monotonic() + 60 * float(os.environ.get("MINUTES", "1"))
    began, worlds, calls, simulated_seconds, broken = time.monotonic(), 0, 0, 0.0, 0
    for number in count(first):
        if (wanted and worlds == int(wanted)) or (not wanted and time.monotonic() > ends):
            break
        outcome = random_world(number)
        worlds += 1
        calls += outcome.calls
        simulated_seconds += outcome.seconds
        for one in outcome.violations[:3]:
            print(f"seed {outcome.seed}: {one.law}: {one.detail[:300]}")
        broken += bool(outcome.violations)
    took = time.monotonic() - began
    print(
        f"{worlds} worlds (seeds {first} to {first + worlds - 1}), {calls:,} calls, "
        f"{simulated_seconds / 86_400:.1f} simulated days in {took:.0f} s, {calls / took:,.0f} calls a second, "
        f"{broken} broken"
    )
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())

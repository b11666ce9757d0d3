"""How long the API takes for batches.

The worlds in which `bench.polling.simulated` compares ways to poll.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

HOUR = 3_600.0


@dataclass(frozen=True)
class World:
    """How long the API takes: when a batch accepted at a given time is finished."""

    name: str
    ready: Callable[[], Callable[[float, random.Random], float]]
    independent: bool = True
    """Whether times depend on nothing else; only then is there one true distribution."""


def _after(
    seconds: Callable[[random.Random], float],
) -> Callable[[], Callable[[float, random.Random], float]]:
    return lambda: lambda at, chance: at + seconds(chance)


def _around(median: float, sigma: float = 0.5) -> Callable[[random.Random], float]:
    return lambda chance: median * chance.lognormvariate(0, sigma)


def _in_order() -> Callable[[float, random.Random], float]:
    """A queue: 40 batches a minute, each after the one before, none sooner than 30 s."""
    last = [0.0]

    def ready(at: float, _: random.Random) -> float:
        last[0] = max(last[0] + 1.5, at + 30)
        return last[0]

    return ready


REALISTIC = World("5 to 90 s, evenly", _after(lambda chance: chance.uniform(5, 90)))
"""The world of the targets."""


def _at_a_time(many: int, median: float) -> Callable[[], Callable[[float, random.Random], float]]:
    """So many batches at a time, in the order in which they are accepted."""

    def make() -> Callable[[float, random.Random], float]:
        free = [0.0] * many

        def ready(at: float, chance: random.Random) -> float:
            over = max(heapq.heappop(free), at) + median * chance.lognormvariate(0, 0.3)
            heapq.heappush(free, over)
            return over

        return ready

    return make


EIGHT_AT_A_TIME = World("8 at a time", _at_a_time(8, 10.0), independent=False)
WORLDS = (
    REALISTIC,
    World("33 s, always", _after(lambda _: 33.0)),
    World("around 1 minute (sigma 0.5)", _after(_around(60))),
    World("around 2 minutes (sigma 0.25)", _after(_around(120, 0.25))),
    World("around 2 minutes (sigma 0.5)", _after(_around(120))),
    World("around 5 minutes (sigma 0.5)", _after(_around(300))),
    World("1 to 10 minutes, evenly", _after(lambda chance: chance.uniform(60, 600))),
    World(
        "1 minute, one in ten an hour",
        _after(lambda chance: _around(60 if chance.random() < 0.9 else HOUR, 0.2)(chance)),
    ),
    World("in order, 40 a minute", _in_order, independent=False),
    World(
        "5 minutes, from the third hour on 30 s",
        lambda: lambda at, chance: at + _around(300 if at < 2 * HOUR else 30, 0.2)(chance),
        independent=False,
    ),
    World(
        "30 s, from the third hour on 5 minutes",
        lambda: lambda at, chance: at + _around(30 if at < 2 * HOUR else 300, 0.2)(chance),
        independent=False,
    ),
)
STALL = World(
    "nothing for 10 hours, then all at once, then 33 s",
    lambda: lambda at, chance: at + 33 if at > 10 * HOUR else 10 * HOUR + chance.uniform(0, 60),
    independent=False,
)
QUICK_WORLDS = (
    World("0.5 s, always", _after(lambda _: 0.5)),
    World("1 to 3 s, evenly", _after(lambda chance: chance.uniform(1, 3))),
    World("5 to 12 s, evenly", _after(lambda chance: chance.uniform(5, 12))),
    REALISTIC,
)

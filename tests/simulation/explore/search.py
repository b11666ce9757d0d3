"""Search: random worlds and small worlds in turn, until one breaks a law."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, product, zip_longest
from typing import TYPE_CHECKING

from tests.simulation.explore import schedules
from tests.simulation.worlds import runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.simulation.worlds.judges import Violation


@dataclass(slots=True)
class Search:
    """How far a search has got.

    Attributes:
        worlds: how many have been run, with the present one.
        name: the present world's: its seed, or its name and schedule.
        law: what it broke, or what it failed with; empty if nothing was found.
    """

    worlds: int = 0
    name: str = ""
    law: str = ""

    def run(self, seconds: float, begin: Callable[[], object]) -> None:
        """Run worlds until one breaks a law or so many seconds of the processor have passed.

        Args:
            seconds: of the whole process.
            begin: called before each world.
        """
        for self.worlds, (self.name, world) in enumerate(_worlds(), 1):
            begin()
            try:
                self.law = next((one.law for one in world()), "")
            except Exception as error:  # noqa: BLE001 - a world that fails tells of its defect too
                self.law = repr(error)[:100]
            if self.law or time.process_time() > seconds:
                return

    def __str__(self) -> str:
        """For people."""
        return f"{self.name}: {self.law}, world {self.worlds}" if self.law else f"not in {self.worlds} worlds"


def _worlds() -> Iterator[tuple[str, Callable[[], Sequence[Violation]]]]:
    """Worlds and their names, without end."""
    scheduled = _small_worlds()
    for seed in count(1):
        yield f"seed {seed}", partial(_random, seed)
        if (found := next(scheduled, None)) is not None:
            yield f"{found[0].name}, {found[1]}", partial(_scheduled, *found)


def _random(seed: int) -> Sequence[Violation]:
    return runs.random_world(seed).violations


def _scheduled(small: schedules.SmallWorld, schedule: schedules.Schedule) -> Sequence[Violation]:
    return schedules.run(small, schedule)[2]


def _small_worlds() -> Iterator[tuple[schedules.SmallWorld, schedules.Schedule]]:
    """Each small world undisturbed, then each under every single switch or death: in turn, since one may tell soon."""
    nothing = schedules.Schedule()
    yield from product(schedules.SMALL_WORLDS, [nothing])
    each = [product([one], schedules.single(schedules.run(one, nothing)[1])) for one in schedules.SMALL_WORLDS]
    yield from filter(None, chain.from_iterable(zip_longest(*each)))

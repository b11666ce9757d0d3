"""Search: small worlds under their schedules, and random worlds, until one breaks a law.

First each small world runs as it is, the quickest first; then those schedules under which a
condition of a write did not hold that held before (`telling`), since only these can show that it is
missing; then a backlog, which tells whether calls are used and shared; then always the world that
has used the least time of the processor so far.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from tests.simulation.explore.schedules import Exploration, Schedule, SmallWorld, run
from tests.simulation.explore.small_worlds import SMALL_WORLDS
from tests.simulation.operate import backlog
from tests.simulation.operate.backlog import Size
from tests.simulation.worlds.runs import random_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.simulation.worlds.judges import Violation

DEPTH = 3
"""Most things that happen in one schedule of a small world."""
TELLING = 4
"""Schedules that are kept for each condition that did not hold."""
BACKLOG = Size(jobs=40, batches=30, hours=0.2)
"""Takes some 6 s of a processor."""
RANDOM_SHARE = 4.0
"""How many times the processor's time of a small world random worlds get."""


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
    known: Sequence[tuple[str, dict[str, Any]]] = ()
    """Schedules to run first, as `telling` found them.

    The name of its small world, and the schedule's attributes.
    """
    _seeds: count[int] = field(default_factory=lambda: count(1))

    def run(self, seconds: float, begin: Callable[[], object]) -> None:
        """Run worlds until one breaks a law or so many seconds of the processor have passed.

        Args:
            seconds: of the whole process.
            begin: called before each world.
        """
        chance = random.Random(1)
        quickest = sorted(SMALL_WORLDS, key=lambda one: one.most[2] if one.most else 0)
        first = [_Source(partial(self._known, one, Schedule())) for one in quickest]
        worlds = {one.name: one for one in SMALL_WORLDS}
        first += [
            _Source(partial(self._known, worlds[name], Schedule(**given)))
            for name, given in self.known
        ]
        first += [_Source(self._backlog)]
        sources = [_Source(self._small(Exploration(one, DEPTH, chance))) for one in SMALL_WORLDS]
        sources.append(_Source(self._random, RANDOM_SHARE))
        turns = chain(first, iter(lambda: min(sources, key=lambda one: one.spent), None))
        for source in turns:
            self.worlds += 1
            begin()
            began = time.process_time()
            try:
                violations = source.step()
            except Exception as error:  # noqa: BLE001 - a world that fails tells of its defect too
                self.law = repr(error)[:100]
            else:
                self.law = violations[0].law if violations else ""
                if violations is None:
                    sources.remove(source)
            now = time.process_time()
            source.spent += (now - began) / source.share
            if self.law or now > seconds:
                return

    def _small(self, exploration: Exploration) -> Callable[[], Sequence[Violation] | None]:
        def step() -> Sequence[Violation] | None:
            self.name = exploration.small.name
            if (ran := exploration.step()) is None:
                return None
            self.name = f"{exploration.small.name}, {ran[0]}"
            return ran[1]

        return step

    def _known(self, small: SmallWorld, schedule: Schedule) -> Sequence[Violation]:
        self.name = f"{small.name}, {schedule}"
        return run(small, schedule).violations

    def _backlog(self) -> Sequence[Violation]:
        self.name = f"backlog of {BACKLOG.jobs * BACKLOG.batches:,} batches"
        return backlog.play(BACKLOG).violations

    def _random(self) -> Sequence[Violation]:
        seed = next(self._seeds)
        self.name = f"seed {seed}"
        return random_world(seed).violations

    def __str__(self) -> str:
        """For people."""
        return (
            f"{self.name}: {self.law}, world {self.worlds}"
            if self.law
            else f"not in {self.worlds} worlds"
        )


@dataclass(slots=True)
class _Source:
    """Worlds of one kind.

    What runs the next one, and the processor's seconds that they have used, by their share.
    """

    step: Callable[[], Sequence[Violation] | None]
    share: float = 1.0
    spent: float = 0.0


def telling(seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Schedules under which a condition of a write did not hold that held before.

    At most `TELLING` for each.

    Args:
        seconds: of the processor, for which they are looked for.
    """
    chance, seen = random.Random(1), Counter[str]()
    explorations = [
        (Exploration(one, DEPTH, chance), _Source(lambda: None)) for one in SMALL_WORLDS
    ]
    ends = time.process_time() + seconds
    while explorations and time.process_time() < ends:
        exploration, source = pair = min(explorations, key=lambda one: one[1].spent)
        began = time.process_time()
        ran = exploration.step()
        source.spent += time.process_time() - began
        if ran is None:
            explorations.remove(pair)
            continue
        assert exploration.last is not None
        if any(seen[one] < TELLING for one in exploration.last.refusals):
            yield exploration.small.name, asdict(ran[0])
        seen.update(exploration.last.refusals)

"""Explore: small worlds under the schedules that can make a difference.

A world runs once as it is, with fixed durations and without chance. What makes a difference is the
order in which two invocations touch one item. So for each item that two invocations touch, one of
which writes it, the world runs again with the earlier one held up until the later one has touched
it (the races of dynamic partial order reduction); what then races is tried after that. Also each
write is tried as the last call of its process, as one whose answer is lost and which the SDK
repeats, and as one whose answer never comes although it was applied. A run that wrote what another
has written, in the same order, is a duplicate: nothing is tried after it.
"""

from __future__ import annotations

import hashlib
import random
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, count, zip_longest
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import msgspec

from dropbatch.core.names import CONTROL_PK
from functions.poll import doubts
from local.workers_ai import Behaviour, Fault
from simulation.services.awkward import Awkward
from tests.simulation.worlds.item_laws import ItemLaws
from tests.simulation.worlds.judges import Ending, Laws, Violation
from tests.simulation.worlds.world import simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.worlds.users import Dropped
    from tests.simulation.worlds.world import World

BELIEVED_SOON = {
    kind: rule._replace(seconds=min(rule.seconds, 60.0)) for kind, rule in doubts.RULES.items()
}
SOON_LOST = (doubts, "RULES", BELIEVED_SOON)
"""Every doubt is believed after a minute: 15 add nothing but polls to a world."""
MOST_SECONDS = 140.0
"""Longest that an invocation is held up: after 150 s Lambda ends it."""
AFTER_SECONDS = 0.003
"""How long after the other's touch the one that was held up goes on."""
MOST_RACES = 6
"""Invocations after a write for each of which it is held up."""
SOON = 25
"""Schedules tried at once after one under which a condition first did not hold."""
SETTLE_SECONDS = 50 * 86_400.0
AFTERWARDS_SECONDS = 1_200.0
CUTS = ("dies_at", "lost_at", "fails_at", "refused_at")
"""What can end a call otherwise than by its answer; at most once in a schedule."""
TOLD = ("state", "attempt", "work", "claims", "pieces")
"""Attributes by which two runs are compared."""
MOVED = (
    "state",
    "attempt",
    "pieces",
    "ending",
    "isolating",
    "control",
    "error",
    "isolation",
    "output",
)
"""Attributes of an item whose change is more than a claim or a time."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """What happens at which call: it is held up, its process dies, or its answer is lost.

    Attributes:
        lost_at: a write that is applied and, as its answer is lost, sent again.
        fails_at: a write that is applied and, as no answer comes, given up.
        refused_at: a write that is not applied.
    """

    held_up: tuple[tuple[int, float], ...] = ()
    dies_at: int = 0
    lost_at: int = 0
    fails_at: int = 0
    refused_at: int = 0

    def __str__(self) -> str:
        """For people."""
        named = zip(
            ("death", "answer lost", "no answer", "refusal"),
            (getattr(self, name) for name in CUTS),
            strict=True,
        )
        parts = [
            f"call {number} is held up for {seconds:.3g} s" for number, seconds in self.held_up
        ]
        return (
            ", ".join([*parts, *(f"{what} at call {at}" for what, at in named if at)])
            or "undisturbed"
        )

    @property
    def last(self) -> int:
        """The last call at which something happens: what is tried after this schedule is later."""
        return max((number for number, _ in self.held_up), default=0)

    @property
    def depth(self) -> int:
        """How many things happen."""
        return len(self.held_up) + self.is_cut

    @property
    def is_cut(self) -> bool:
        """Whether a process dies, or an answer is lost."""
        return any(getattr(self, name) for name in CUTS)


class Touch(NamedTuple):
    """An invocation reads or writes an item, at the world's call of this number and this time.

    Attributes:
        writes: whether it writes it, or tried to.
        moves: whether it changes more than times and claims.
    """

    place: int
    at: float
    life: str
    key: Key
    writes: bool
    moves: bool = False


@dataclass(slots=True)
class Ran:
    """What running a small world under a schedule came to.

    Attributes:
        digest: of everything that was written, in order.
        refusals: the conditions of writes that did not hold: of which write, and which parts of
            them.
    """

    digest: str
    calls: int
    touches: list[Touch]
    violations: list[Violation]
    refusals: frozenset[str]


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
    """A scenario: what its users do, and what the API does.

    Attributes:
        most: calls of the API in an undisturbed run, seconds until all is over, and calls of AWS.
        latency: seconds that the API takes for a batch.
        calls_fail: whether its users let calls of AWS fail, so that messages may fail and come
            again.
        share: how long waits are that vary: 0 for the shortest, 1 for the longest.
        patched: constants of the product with other values: the module, the name, the value.
    """

    name: str
    act: Callable[[World], list[Dropped]]
    faults: tuple[Fault, ...] = ()
    settings: tuple[tuple[str, object], ...] = (("MAX_REQUESTS_PER_BATCH", 2),)
    most: tuple[int, float, int] | None = None
    latency: float = 3.0
    calls_fail: bool = False
    share: float = 0.5
    patched: tuple[tuple[ModuleType, str, object], ...] = ()


class _NoChance(random.Random):
    """Chance without chance: about the least, the first, and nothing that is unlikely.

    No two durations are the same: of two invocations at the very same time, each would take the
    other's lease for its.
    """

    drawn = 0

    def random(self) -> float:
        return 0.999

    def uniform(self, a: float, b: float) -> float:
        self.drawn += 1
        return a + (b - a) * (self.drawn * 0.618 % 1) / 100

    def randrange(self, *bounds: int) -> int:  # type: ignore[override]
        return bounds[0] if len(bounds) > 1 else 0


class _Touches:
    """Notes which invocation touches which item."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.found: list[Touch] = []
        self._digest = hashlib.sha256()
        world.dynamodb.readers.append(self._read)
        world.dynamodb.watchers.append(self._write)

    def _read(self, key: Key, item: Wire | None) -> None:
        self._note(key, writes=item is None)  # A write whose condition did not hold.

    def _write(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        moves = key[0] != CONTROL_PK and any(
            (old or {}).get(name) != (new or {}).get(name) for name in MOVED
        )
        self._note(key, writes=True, moves=moves)
        written = {name: (new or {}).get(name) for name in TOLD}
        self._digest.update(msgspec.json.encode((key, written), order="deterministic"))

    def _note(self, key: Key, *, writes: bool, moves: bool = False) -> None:
        task = self.world.kernel.task
        if task is not None:
            self.found.append(
                Touch(task.place, self.world.kernel.now, task.life.name, key, writes, moves)
            )

    @property
    def digest(self) -> str:
        """Of all writes, in order."""
        return self._digest.hexdigest()


def run(small: SmallWorld, schedule: Schedule) -> Ran:
    """Run a small world under one schedule."""
    behaviour = Behaviour(embedder="hash", latency=small.latency)
    with (
        ExitStack() as stack,
        patch.object(random, "random", lambda: 0.5),
        patch.object(random, "uniform", lambda low, high: low + (high - low) * small.share),
        patch.object(random, "randrange", lambda *bounds: bounds[0] if len(bounds) > 1 else 0),
        simulated(1, Awkward(cold_start_seconds=0.0), behaviour, **dict(small.settings)) as world,
    ):
        for module, name, value in (SOON_LOST, *small.patched):
            stack.enter_context(patch.object(module, name, value))
        world.kernel.random = world.calls.random = _NoChance()
        calls = world.calls
        calls.held_up = dict(schedule.held_up)
        for name in CUTS:
            setattr(calls, name, getattr(schedule, name))
        touches = _Touches(world)
        laws = Laws(world)
        ItemLaws(laws)
        if small.faults:
            world.inject(*small.faults)
        dropped = small.act(world)
        world.settle(SETTLE_SECONDS)
        places, seconds = calls.places, world.kernel.now - world.began
        ending = Ending(laws)
        if not schedule.depth:
            _judge_promises(small, laws, seconds)
            ending.judge_calls()
        world.wait_for_late_things(AFTERWARDS_SECONDS)
        may_count = not (schedule.fails_at or schedule.refused_at)
        ending.judge(dropped, may_retry=small.calls_fail or schedule.depth > 0, may_count=may_count)
        return Ran(
            touches.digest,
            places,
            touches.found,
            laws.violations,
            frozenset(world.dynamodb.refusals),
        )


def _judge_promises(small: SmallWorld, laws: Laws, seconds: float) -> None:
    """Judge how many calls an undisturbed run makes, and how long it takes."""
    world = laws.world
    calls, most_seconds, aws = small.most or (world.calls.total, seconds, world.calls.total)
    if (made := len(world.call_times)) > calls:
        laws.broken(
            "no more calls are made than are needed", f"{made} calls of the API, at most {calls}"
        )
    if world.calls.total > aws:
        laws.broken(
            "no more calls are made than are needed",
            f"{world.calls.total} calls of AWS, at most {aws}",
        )
    if seconds > most_seconds:
        laws.broken(
            "everything is over in time", f"after {seconds:.0f} s, at most {most_seconds:.0f}"
        )


def following(ran: Ran, schedule: Schedule) -> Iterator[Schedule]:
    """The schedules to try after a run."""
    first, before = schedule.last, dict(schedule.held_up)
    held = {place: seconds for place, seconds in before.items() if place != first}
    races = (
        replace(
            schedule,
            held_up=(
                *(before if place > first else held).items(),
                (place, before.get(place, 0) + seconds),
            ),
        )
        for _, place, seconds in sorted(_races(ran.touches))
        if place >= first
    )
    cuts: list[list[Schedule]] = []
    if not schedule.is_cut:
        places = dict.fromkeys(
            touch.place for touch in ran.touches if touch.writes and touch.place > first
        )
        cuts = [[_cut(schedule, name, place) for place in places] for name in CUTS]
    ends = filter(None, chain.from_iterable(zip_longest(*cuts)))
    yield from filter(None, chain.from_iterable(zip_longest(races, races, ends)))


def _cut(schedule: Schedule, name: str, place: int) -> Schedule:
    """A schedule in which a write's process dies after it, or its answer is lost."""
    changes: dict[str, Any] = {name: place + (name == "dies_at")}
    return replace(schedule, **changes)


def _races(touches: list[Touch]) -> Iterator[tuple[int, int, float]]:
    """Each write that another invocation's touch of the same item follows.

    Its call, and the seconds until after that.

    Of another invocation: its first touch, after which the two write one after the other; its last
    one, and a second later, when it has written what it did not write as long as it was the second.
    Before each stands a rank: races with what moves an item on are the first, those of control
    items, which all invocations write, the last.
    """
    of_item: dict[Key, list[Touch]] = {}
    for touch in touches:
        of_item.setdefault(touch.key, []).append(touch)
    for key, found in of_item.items():
        most = MOST_RACES if key[0].startswith("JOB#") else 1
        for place, one in enumerate(found):
            if not one.writes:
                continue
            others: dict[str, list[float]] = {}
            moving: set[str] = set()
            for other in found[place + 1 :]:
                if other.at - one.at > MOST_SECONDS:
                    break
                if other.life != one.life and (other.moves or len(others) < most):
                    others.setdefault(other.life, []).append(other.at - one.at)
                    moving |= {other.life} if other.moves else set()
            for life, seconds in others.items():
                rank = 3 * (key[0] == CONTROL_PK) + (life not in moving)
                for after in dict.fromkeys((seconds[0], seconds[-1], seconds[-1] + 1)):
                    yield rank, one.place, round(after + AFTER_SECONDS, 3)


class Exploration:
    """A world's schedules: those with one thing that happens first, then two, and so on."""

    def __init__(self, small: SmallWorld, depth: int, chance: random.Random | None = None) -> None:
        """Nothing has run yet.

        Args:
            small: the world.
            depth: most things that happen in one schedule.
            chance: draws every second schedule from all that are to be tried; None: each at its
                turn.
        """
        self.small = small
        self.depth = depth
        self.explored = Explored(small.name)
        self._chance = chance
        self.last: Ran | None = None
        self._refusals: set[str] = set()
        self._seen: set[str] = set()
        self._waiting = [Schedule()]
        self._next = 0

    def step(self) -> tuple[Schedule, list[Violation]] | None:
        """Run the next schedule; None if there are none left."""
        if self._next == len(self._waiting):
            return None
        if self._chance and self.explored.schedules % 2:
            drawn = self._chance.randrange(self._next, len(self._waiting))
            self._waiting[self._next], self._waiting[drawn] = (
                self._waiting[drawn],
                self._waiting[self._next],
            )
        schedule = self._waiting[self._next]
        self._next += 1
        ran = self.last = run(self.small, schedule)
        self.explored.schedules += 1
        self.explored.calls = self.explored.calls or ran.calls
        self.explored.broken += [(schedule, one) for one in ran.violations]
        if ran.digest not in self._seen:
            self._seen.add(ran.digest)
            self.explored.distinct += 1
            if schedule.depth <= self.depth:
                later = [one for one in following(ran, schedule) if one.depth <= self.depth]
                soon = later[:SOON] if ran.refusals - self._refusals else []
                self._waiting[self._next : self._next] = soon
                self._waiting.extend(later[len(soon) :])
        self._refusals |= ran.refusals
        return schedule, ran.violations


def explore(
    small: SmallWorld,
    depth: int,
    most: int | None = None,
    seed: int | None = None,
    most_calls: float = inf,
) -> Explored:
    """Run the schedules of a small world with at most so many things that happen.

    Args:
        small: the world.
        depth: most things that happen in one schedule.
        most: schedules to run.
        seed: with one, every second schedule is drawn from all that are to be tried.
        most_calls: no further schedule is run once all together have made some so many calls of
            AWS.
    """
    exploration = Exploration(small, depth, None if seed is None else random.Random(seed))
    explored = exploration.explored
    for done in count():
        if done == most or done * explored.calls > most_calls or exploration.step() is None:
            break
    return explored

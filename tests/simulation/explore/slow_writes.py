"""Small worlds with a slow write: another invocation works on the same item before it takes effect.

A schedule can do the same, but a search needs long to find one in which a rare write meets a rare other one. In most of
these worlds a write is held up beyond the end of its claim or lease, and so the item has moved on when it comes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from local.workers_ai import Fault
from tests.simulation.explore.schedules import SmallWorld
from tests.simulation.services.errors import refused
from tests.simulation.worlds.users import Dropped, drop

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.worlds.world import World

OPERATIONS = ("update_item", "put_item", "delete_item")


class Slow:
    """Holds up one write.

    Attributes:
        begun: how many writes of its kind have begun.
    """

    def __init__(
        self,
        world: World,
        *words: str,
        seconds: float = 0.0,
        nth: int = 1,
        fails: bool = False,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Hold up the n-th write whose operation, sort key and update hold these words.

        Args:
            world: whose table it is.
            words: words that all must occur.
            seconds: how long.
            nth: which of such writes, from 1.
            fails: whether it is refused when it comes.
            then: what happens when it begins.
        """
        self.begun = 0
        for operation in OPERATIONS:
            setattr(world.dynamodb, operation, partial(self._write, operation, getattr(world.dynamodb, operation)))
        self._held = world, words, seconds, nth, fails, then

    def _write(self, operation: str, real: Callable[..., Any], **given: Any) -> Any:
        world, words, seconds, nth, fails, then = self._held
        key = given.get("Key") or given["Item"]
        text = f"{operation} {key['sk']['S']} {given.get('UpdateExpression', '')}"
        if world.kernel.life() is None or not all(word in text for word in words):
            return real(**given)
        self.begun += 1
        if self.begun == nth:
            then()
            world.kernel.wait(seconds)
            if fails:
                raise refused("InternalServerError", operation, 500)
        return real(**given)


def slow(name: str, size: int, *words: str, faults: tuple[Fault, ...] = (), most: int = 2, **held: Any) -> SmallWorld:
    """A world in which a file is dropped and one write is slow; `most` records fit in a batch."""
    act = partial(_one, size, words, held)
    return SmallWorld(name, act, faults, (("MAX_REQUESTS_PER_BATCH", most),), calls_fail="fails" in held)


def _one(size: int, words: tuple[str, ...], held: dict[str, Any], world: World) -> list[Dropped]:
    Slow(world, *words, **held)
    return [drop(world, "a.jsonl", size, may_fail=True)]


def submitted_again(seconds: float, world: World) -> list[Dropped]:
    """A lost batch is submitted again, slowly; a second message finds that submits have to wait, and it is polled."""
    dropped: list[Dropped] = []

    def refuse() -> None:
        world.inject(Fault(kind="971", on="submit", retry_after=10))
        dropped.append(drop(world, "b.jsonl", 2, may_fail=True))

    put = world.sqs.put

    def twice(name: str, body: str, delay: float = 0.0) -> None:
        put(name, body, delay)
        if name == "SubmitQueue":
            put(name, body, delay + 2.0)

    world.sqs.put = twice  # type: ignore[method-assign]
    Slow(world, "BATCH#00000000", "#fence = :to_fence", seconds=seconds, nth=2, then=refuse)
    Slow(world, "META", "#isolation", seconds=100.0)
    dropped.append(drop(world, "a.jsonl", 2, may_fail=True))
    world.run(200.0)
    return dropped


def refused_again(world: World) -> list[Dropped]:
    """A lost batch is submitted again, and refused."""
    busy = partial(world.inject, Fault(kind="971", on="submit", retry_after=20))
    Slow(world, "BATCH#00000000", "#fence = :to_fence", nth=2, then=busy)
    return [drop(world, "a.jsonl", 2, may_fail=True)]


LOST = Fault(kind="10404", on="poll", status=404, times=6)
BAD = Fault(kind="5006", on="submit", contains="a.jsonl 1", times=0)

SLOW_WORLDS = (
    slow("fault of a job that is over", 2, "META", "#error", faults=(Fault(kind="5007"),), seconds=60.0),
    slow("fault while the upload is read", 4, "META", "#total", faults=(Fault(kind="5007", times=0),), seconds=5.0),
    SmallWorld("two faults", partial(_one, 4, ("none",), {}), (Fault(kind="5007"), Fault(kind="5016"))),
    slow("split ends twice", 4, "META", "#total", seconds=100.0),
    slow("two batches are split", 20, "META", "#isolation", faults=(BAD,), most=10, seconds=1.5),
    slow("acceptance is not noted", 2, "META", "#seen_accepted", fails=True),
    SmallWorld("a slow submit, then a wait", partial(submitted_again, 20.0), (LOST,)),
    SmallWorld(
        "a slow submit, then a second round", partial(submitted_again, 42.0), (LOST, Fault(kind="item_fails", first=1))
    ),
    SmallWorld("a slow submit, then a failure", partial(submitted_again, 60.0), (LOST, Fault(kind="batch_fails"))),
    SmallWorld("lost and refused", refused_again, (LOST,)),
)

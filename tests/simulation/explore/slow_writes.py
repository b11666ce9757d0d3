"""Small worlds with a slow write: another invocation works on the same item before it takes effect.

A schedule can do the same, but a search needs long to find one in which a rare write meets a rare
other one. In most of these worlds a write is held up beyond the end of its claim or lease, and so
the item has moved on when it comes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from local.workers_ai import Fault
from simulation.services.errors import refused
from tests.simulation.explore.schedules import SmallWorld
from tests.simulation.worlds.users import Dropped, drop

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.worlds.world import World

OPERATIONS = ("update_item", "put_item", "delete_item")


class Slow:
    """Holds up one write.

    Attributes:
        begun: how many writes of its kind have begun.
        words: which these are.
        nth: which of them it holds up.
    """

    def __init__(
        self,
        world: World,
        *words: str,
        seconds: float = 0.0,
        nth: int = 1,
        fails: bool = False,
        unanswered: bool = False,
        then: Callable[[], object] = lambda: None,
    ) -> None:
        """Hold up the n-th write whose operation, sort key and update hold these words.

        Args:
            world: whose table it is.
            words: words that all must occur.
            seconds: how long.
            nth: which of such writes, from 1; 0: all.
            fails: whether it is refused when it comes.
            unanswered: whether it is applied, but no answer comes.
            then: what happens when it begins.
        """
        self.begun = 0
        self.words = words
        for operation in OPERATIONS:
            setattr(
                world.dynamodb,
                operation,
                partial(self._write, operation, getattr(world.dynamodb, operation)),
            )
        self.nth = nth
        self._held = world, seconds, (fails, unanswered), then

    def _write(self, operation: str, real: Callable[..., Any], **given: Any) -> Any:
        world, seconds, (fails, unanswered), then = self._held
        key = given.get("Key") or given["Item"]
        text = f"{operation} {key['sk']['S']} {given.get('UpdateExpression', '')}"
        if world.kernel.life() is None or not all(word in text for word in self.words):
            return real(**given)
        self.begun += 1
        if self.nth in {0, self.begun}:
            then()
            world.kernel.wait(seconds)
            if unanswered:
                real(**given)
            if fails or unanswered:
                raise refused("InternalServerError", operation, 500)
        return real(**given)


def slow(
    name: str, size: int, *words: str, faults: tuple[Fault, ...] = (), most: int = 2, **held: Any
) -> SmallWorld:
    """A world in which a file is dropped and one write is slow; `most` records fit in a batch."""
    act = partial(_one, size, words, held)
    return SmallWorld(
        name,
        act,
        faults,
        (("MAX_REQUESTS_PER_BATCH", most),),
        calls_fail=not held.keys().isdisjoint({"fails", "unanswered"}),
    )


def _within(one: SmallWorld, seconds: float) -> SmallWorld:
    """A world that is over within so many seconds, if no schedule disturbs it."""
    return replace(one, most=(99, seconds, 9_999))


def _one(size: int, words: tuple[str, ...], held: dict[str, Any], world: World) -> list[Dropped]:
    if words:
        Slow(world, *words, **held)
    return [drop(world, "a.jsonl", size, may_fail=True)]


def _submit_twice(world: World, apart: float) -> None:
    """Each message of the submit queue comes twice."""
    put = world.sqs.put

    def twice(name: str, body: str, delay: float = 0.0) -> None:
        put(name, body, delay)
        if name == "SubmitQueue":
            put(name, body, delay + apart)

    world.sqs.put = twice  # type: ignore[method-assign]


def _unreadable(world: World, word: str, seconds: float) -> None:
    """From its first read on, objects whose key holds this word cannot be read for so long."""
    real, until = world.s3.get_object, [0.0]

    def failing(**given: Any) -> Any:
        if word in given["Key"]:
            until[0] = until[0] or world.kernel.now + seconds
            if world.kernel.now < until[0]:
                raise refused("InternalError", "GetObject", 500)
        return real(**given)

    world.s3.get_object = failing  # type: ignore[method-assign]


def submitted_again(seconds: float, world: World) -> list[Dropped]:
    """A lost batch is submitted again, slowly."""
    dropped: list[Dropped] = []

    def refuse() -> None:
        world.inject(Fault(kind="971", on="submit", retry_after=10))
        dropped.append(drop(world, "b.jsonl", 2, may_fail=True))

    _submit_twice(world, 2.0)
    Slow(world, "BATCH#00000000", "#fence = :to_fence", seconds=seconds, nth=2, then=refuse)
    dropped.append(drop(world, "a.jsonl", 2, may_fail=True))
    world.run(200.0)
    return dropped


def refused_again(world: World) -> list[Dropped]:
    """A lost batch is submitted again, and refused."""
    busy = partial(world.inject, Fault(kind="971", on="submit", retry_after=20))
    Slow(world, "BATCH#00000000", "#fence = :to_fence", nth=2, then=busy)
    return [drop(world, "a.jsonl", 2, may_fail=True)]


def cancelled(world: World) -> list[Dropped]:
    """A batch is about to be split when its job is cancelled; another invocation ends it first."""
    Slow(world, "BATCH#00000000", "#pieces = :to_pieces", seconds=125.0)
    dropped = drop(world, "a.jsonl", 10, may_fail=True)
    world.run(3.0)
    world.command(dropped.upload.job_id, "cancel")
    return [dropped]


def commanded_at_the_end(world: World) -> list[Dropped]:
    """A command comes while a visit ends its job, and takes long to be noted."""
    dropped = drop(world, "a.jsonl", 2, may_fail=True)
    Slow(
        world,
        "META",
        "#state = :to_state",
        seconds=5.0,
        nth=2,
        then=lambda: world.command(dropped.upload.job_id, "pause"),
    )
    Slow(world, "META", "#control", seconds=10.0)
    world.run(600.0, world.all_over)
    # Under this schedule it was not at its end; a paused job waits for a month.
    if not world.all_over():
        world.command(dropped.upload.job_id, "run")
    return [dropped]


def answers_refused(world: World) -> list[Dropped]:
    """Polls fail for half an hour."""
    Slow(world, "META", "#wait", seconds=130.0, then=world.api.clear_faults)
    return [drop(world, "a.jsonl", 2, may_fail=True)]


def unreadable(world: World, seconds: float, apart: float = 0.0) -> list[Dropped]:
    """A body cannot be read for some time; the failure is noted slowly if messages come twice."""
    _unreadable(world, "/00000000", seconds)
    if apart:
        _submit_twice(world, apart)
        Slow(world, "BATCH#00000000", "SET due_at = :due_at", seconds=5.0)
    return [drop(world, "a.jsonl", 2, may_fail=True)]


def refused_while_lifted(world: World) -> list[Dropped]:
    """A probe ends a pause slowly."""
    refuse = partial(world.inject, Fault(kind="10000", on="poll", status=401))
    Slow(world, "delete_item PAUSE", seconds=10.0, then=refuse)
    return [drop(world, "a.jsonl", 2, may_fail=True)]


def take_slowly(world: World) -> list[Dropped]:
    """A token is taken slowly."""
    Slow(world, "update_item RATE SET filled_at", seconds=1.0)
    return [drop(world, f"{name}.jsonl", 1, may_fail=True) for name in "ab"]


LOST = Fault(kind="stuck")
DEADLINE = (("MAX_REQUESTS_PER_BATCH", 2), ("BATCH_DEADLINE_HOURS", 0.02))
BAD = Fault(kind="5006", on="submit", contains="a.jsonl 1", times=0)

SLOW_WORLDS = (
    SmallWorld("two faults", partial(_one, 4, (), {}), (Fault(kind="5007"), Fault(kind="5016"))),
    slow(
        "two batches are split",
        20,
        "BATCH#00000000",
        "#pieces",
        faults=(BAD,),
        most=10,
        seconds=1.5,
    ),
    SmallWorld("a slow submit, then a wait", partial(submitted_again, 20.0), (LOST,), DEADLINE),
    SmallWorld(
        "a slow submit, then a failure",
        partial(submitted_again, 60.0),
        (LOST, Fault(kind="batch_fails")),
        DEADLINE,
    ),
    SmallWorld("lost and refused", refused_again, (LOST,), DEADLINE),
    SmallWorld("cancelled while it is split", cancelled, (BAD,), (("MAX_REQUESTS_PER_BATCH", 10),)),
    SmallWorld("commanded at its end", commanded_at_the_end),
    SmallWorld(
        "polls fail, and then do not", answers_refused, (Fault(kind="html", on="poll", times=0),)
    ),
    _within(
        SmallWorld("body that cannot be read", partial(unreadable, seconds=20.0), calls_fail=True),
        47.0,
    ),
    SmallWorld("failure noted late", partial(unreadable, seconds=0.5, apart=1.0), calls_fail=True),
    _within(
        slow("claim without an answer", 2, "BATCH#00000000", "#fence = :to_fence", unanswered=True),
        10.0,
    ),
    SmallWorld(
        "two refusals",
        partial(_one, 4, ("put_item PAUSE",), {"seconds": 1.0}),
        (Fault(kind="3036", times=2),),
    ),
    SmallWorld(
        "refused while a pause ends", refused_while_lifted, (Fault(kind="html", on="submit"),)
    ),
    SmallWorld(
        "two waits",
        partial(_one, 4, (), {}),
        tuple(Fault(kind="971", retry_after=s) for s in (600, 20)),
    ),
    SmallWorld(
        "token taken slowly",
        take_slowly,
        (Fault(kind="971", retry_after=30),),
        (("API_CALLS_PER_MINUTE", 4),),
    ),
)

"""Small worlds in which each message of a queue comes twice while batches wait for the end of a pause.

Both messages find the batch, and both put it off: it waits once, and so its clock stands still once.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from local.workers_ai import Fault
from tests.simulation.explore.schedules import SmallWorld
from tests.simulation.worlds.users import Dropped, drop

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.worlds.world import World

MINUTE = 60.0
APART = 2.0
"""Seconds between two deliveries of one message."""


def _twice(act: Callable[[World], list[Dropped]], world: World) -> list[Dropped]:
    put = world.sqs.put

    def twice(name: str, body: str, delay: float = 0.0) -> None:
        put(name, body, delay)
        put(name, body, delay + APART)

    world.sqs.put = twice  # type: ignore[method-assign]
    return act(world)


def before_the_first_submit(world: World) -> list[Dropped]:
    """An operator has paused the stack when a file comes."""
    world.command("stack", "pause")
    world.run(5.0)
    dropped = [drop(world, "a.jsonl", 2, may_fail=True)]
    world.run(10 * MINUTE)
    world.command("stack", "run")
    return dropped


def before_a_second_round(world: World) -> list[Dropped]:
    """An operator pauses the stack while a batch is outstanding, of which a record is then to be submitted again."""
    dropped = [drop(world, "a.jsonl", 2, may_fail=True)]
    world.run(1.0)
    world.command("stack", "pause")
    world.run(20 * MINUTE)
    world.command("stack", "run")
    return dropped


def before_a_poll(world: World) -> list[Dropped]:
    """The token is refused as soon as batches are accepted that have waited for ten minutes."""
    dropped = before_the_first_submit(world)
    world.run(MINUTE, lambda: bool(world.api.accepted))
    world.api.switch(tokens=("second-token",))
    world.run(10 * MINUTE)
    world.token = "second-token"
    return dropped


ROUND = Fault(kind="item_fails", first=1)
SINGLE = (("MAX_REQUESTS_PER_BATCH", 1),)

PAUSED_WORLDS = (
    SmallWorld("put off twice before the first submit", partial(_twice, before_the_first_submit)),
    SmallWorld("put off twice before a second round", partial(_twice, before_a_second_round), (ROUND,), latency=300.0),
    SmallWorld("put off twice before a poll", partial(_twice, before_a_poll), (), SINGLE),
)

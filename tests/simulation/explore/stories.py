"""What happens in a small world, step by step: files, seconds, commands, faults, slow writes.

A slow write lets another invocation work on the same item before it takes effect. A schedule can
do the same, but a search needs long to find one in which a rare write meets a rare other one. In
most of these worlds a write is held up beyond the end of its claim or lease, and so the item has
moved on when it comes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from unittest.mock import patch

from local.workers_ai import Fault
from local.workers_ai.replies import Cut, Reply
from simulation.services.errors import refused
from tests.simulation.worlds.users import MODELS, Dropped, drop

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.services.s3 import Version
    from tests.simulation.worlds.world import World

Act: TypeAlias = "Callable[[World], list[Dropped]]"
Doing: TypeAlias = "Callable[[World, list[Dropped]], object]"
Step: TypeAlias = "float | str | Fault | Doing"

OPERATIONS = ("update_item", "put_item", "delete_item")


def story(*steps: Step) -> Act:
    """What users of a small world do; see `play`."""

    def act(world: World) -> list[Dropped]:
        dropped: list[Dropped] = []
        play(world, dropped, steps)
        return dropped

    return act


def play(world: World, dropped: list[Dropped], steps: tuple[Step, ...]) -> None:
    """Take steps: a number of seconds passes, a fault is injected, a word commands a file's job.

    `a cancel` writes `cancel` for the job of `a.jsonl`, `stack pause` pauses the stack.
    """
    for step in steps:
        match step:
            case float() | int():
                world.run(step)
            case Fault():
                world.inject(step)
            case str():
                name, _, word = step.partition(" ")
                ids = {one.upload.key: one.upload.job_id for one in dropped}
                world.command(ids.get(f"inbox/{name}.jsonl", name), word)
            case _:
                step(world, dropped)


# ── steps ─────────────────────────────────────────────────────────────────────────────────────────


def files(names: str, size: int = 1, model: str = MODELS[0], **more: Any) -> Doing:
    """Drop a file of so many records for each letter."""

    def step(world: World, dropped: list[Dropped]) -> None:
        given = {"may_fail": True, **more}
        dropped += [drop(world, f"{name}.jsonl", size, model, **given) for name in names]

    return step


def commanded(*words: str, after: float = 1.5, size: int = 4, apart: float = 30.0) -> list[Step]:
    """A user commands a job."""
    commands = [step for word in words for step in (f"a {word}", apart)]
    return [files("a", size), after, *commands]


def notified_again(world: World, dropped: list[Dropped]) -> None:
    """S3 sends its event once more."""
    world.notify_again(dropped[0].upload)


def clear(world: World, _: list[Dropped]) -> None:
    """The API's faults end."""
    world.api.clear_faults()


def revoke(world: World, _: list[Dropped]) -> None:
    """Another token is valid from now on."""
    world.api.switch(tokens=("second-token",))


def replace_token(world: World, _: list[Dropped]) -> None:
    """The secret gets that token."""
    world.token = "second-token"


def ticks(seconds: float) -> Doing:
    """Ticks come apart so far, for a world of days."""
    return lambda world, _: setattr(world, "tick_seconds", seconds)


def account(name: str) -> Doing:
    """The stack gets another account."""
    return lambda world, _: world.redeploy(CLOUDFLARE_ACCOUNT_ID=name)


def unreachable(seconds: float) -> Doing:
    """The API cannot be reached for so long."""

    def step(world: World, _: list[Dropped]) -> None:
        with patch.object(world.api, "handle", lambda *_: Reply(status=0, cut=Cut.REFUSE)):
            world.run(seconds)

    return step


def twice(apart: float, queue: str = "") -> Doing:
    """From now on every message comes twice, or each of one queue."""

    def step(world: World, _: list[Dropped]) -> None:
        put = world.sqs.put

        def put_twice(name: str, body: str, delay: float = 0.0) -> None:
            put(name, body, delay)
            if queue in {"", name}:
                put(name, body, delay + apart)

        world.sqs.put = put_twice  # type: ignore[method-assign]

    return step


def dies_after(word: str) -> Doing:
    """The process dies that is the first to store an object whose key holds this word."""

    def step(world: World, _: list[Dropped]) -> None:
        dead: list[str] = []

        def watch(version: Version) -> None:
            if word in version.key and not dead and (life := world.kernel.life()) is not None:
                dead.append(version.key)
                world.kernel.kill(life)

        world.s3.watchers.append(watch)

    return step


def table_fails(name: str, seconds: float) -> Doing:
    """The submit function's writes fail, from the first one that sets this attribute on."""

    def step(world: World, _: list[Dropped]) -> None:
        real, until = world.dynamodb.update_item, [0.0]

        def failing(**given: Any) -> Any:
            now, life = world.kernel.now, world.kernel.life()
            if f":to_{name}" in given.get("ExpressionAttributeValues", {}) and not until[0]:
                until[0] = now + seconds
            if now < until[0] and life is not None and life.name.startswith("Submit"):
                world.kernel.wait(1.0)
                raise refused("InternalServerError", "UpdateItem", 500)
            return real(**given)

        world.dynamodb.update_item = failing  # type: ignore[method-assign]

    return step


def unreadable(word: str, seconds: float) -> Doing:
    """From their first read on, objects whose key holds this word cannot be read for so long."""

    def step(world: World, _: list[Dropped]) -> None:
        real, until = world.s3.get_object, [0.0]

        def failing(**given: Any) -> Any:
            if word in given["Key"]:
                until[0] = until[0] or world.kernel.now + seconds
                if world.kernel.now < until[0]:
                    raise refused("InternalError", "GetObject", 500)
            return real(**given)

        world.s3.get_object = failing  # type: ignore[method-assign]

    return step


# ── slow writes ───────────────────────────────────────────────────────────────────────────────────


def slow(*words: str, then: tuple[Step, ...] = (), **held: Any) -> Doing:
    """Hold up a write; further steps are taken when it begins."""

    def step(world: World, dropped: list[Dropped]) -> None:
        Slow(world, *words, then=lambda: play(world, dropped, then), **held)

    return step


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

"""Small worlds in which calls have to wait for tokens, pauses and models in unusual ways."""

from __future__ import annotations

from typing import TYPE_CHECKING

from local.workers_ai import Fault
from tests.simulation.explore.schedules import SmallWorld
from tests.simulation.worlds.users import MODELS, Dropped, drop

if TYPE_CHECKING:
    from tests.simulation.worlds.world import World

MINUTE, HOUR = 60.0, 3_600.0


def _files(world: World, names: str, size: int = 1, model: str = MODELS[0]) -> list[Dropped]:
    return [drop(world, f"{name}.jsonl", size, model, may_fail=True) for name in names]


def firsts_at_once(world: World) -> list[Dropped]:
    """The first batches of some jobs use all tokens, those that polls leave to them too."""
    return _files(world, "abcdefghijkl")


def refused_account(world: World) -> list[Dropped]:
    """A job's account is refused, which is not the stack's any more, while the stack's own jobs go on."""
    dropped = _files(world, "a", 8)
    world.run(1.0)
    world.redeploy(CLOUDFLARE_ACCOUNT_ID="f" * 32)
    world.run(HOUR)
    world.api.clear_faults()
    return dropped


def held_polls(world: World) -> list[Dropped]:
    """All polls have to wait; then they are due together, and find a full bucket."""
    dropped = _files(world, "abcdef")
    world.run(3 * MINUTE)
    world.inject(Fault(kind="971", on="poll", retry_after=300))
    return dropped


def quota_without_tokens(world: World) -> list[Dropped]:
    """The allocation is used up while the polls of a stalled model use all tokens."""
    dropped = _files(world, "a", 8)
    world.run(20 * MINUTE)
    world.inject(Fault(kind="3036", on="submit", times=0))
    dropped += _files(world, "b", 6, MODELS[1])
    world.run(2 * HOUR)
    world.api.clear_faults()
    return dropped


ONE, FOUR, TWENTY = ((("MAX_REQUESTS_PER_BATCH", 1), ("API_CALLS_PER_MINUTE", calls)) for calls in (1, 4, 20))
STUCK = Fault(kind="stuck", model=MODELS[0], seconds=3 * HOUR, times=0)
REFUSED = Fault(kind="10000", on="submit", status=401, times=0)

WAITING_WORLDS = (
    SmallWorld("first batches at once", firsts_at_once, (), TWENTY),
    SmallWorld("another account is refused", refused_account, (REFUSED,), FOUR),
    SmallWorld("polls after a long wait", held_polls, (), FOUR, latency=400.0),
    SmallWorld("no quota and no tokens", quota_without_tokens, (STUCK,), ONE),
)

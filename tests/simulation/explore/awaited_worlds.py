"""Small worlds in which an execution of Step Functions waits for a job, or no longer waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.explore.schedules import SmallWorld
from tests.simulation.worlds.users import Dropped, awaited

if TYPE_CHECKING:
    from tests.simulation.worlds.world import World

MINUTE = 60.0


def waits(world: World) -> list[Dropped]:
    """An execution waits until the job is over."""
    return [awaited(world, "a.jsonl", 2, may_fail=True)]


def waits_for_a_cancelled_job(world: World) -> list[Dropped]:
    """The job is cancelled while the execution waits."""
    dropped = waits(world)
    world.run(MINUTE)
    world.command(dropped[0].upload.job_id, "cancel")
    return dropped


def is_aborted(world: World) -> list[Dropped]:
    """The execution is aborted, and the job is to be cancelled with it."""
    dropped = [awaited(world, "a.jsonl", 2, may_fail=True, metadata={"cancel-with-task": "true"})]
    world.run(MINUTE / 2)
    world.step_functions.tasks[dropped[0].upload.key].is_aborted = True
    return dropped


AWAITED_WORLDS = (
    SmallWorld("an execution waits", waits, latency=100.0),
    SmallWorld("an execution waits for a cancelled job", waits_for_a_cancelled_job, latency=150.0),
    SmallWorld("an execution is aborted", is_aborted, latency=150.0),
)

"""Jobs in the hands of their users: begun, commanded, and looked at batch by batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.support.journeys.world import World
from tests.support.translations import M2M, greetings


def batches(world: World, job_id: str = "") -> list[dict[str, Any]]:
    """The batches of one job, or of all, in wire form."""
    return [
        item
        for item in world.items()
        if item["sk"]["S"].startswith("BATCH#") and item["pk"]["S"].endswith(job_id)
    ]


def states(world: World) -> Counter[str]:
    """How many batches are in each state."""
    return Counter(item["state"]["S"] for item in batches(world))


def begun(world: World, count: int = 6, path: str = "a.jsonl", word: str = "hello") -> str:
    """A job of which no batch has been submitted; its id."""
    before = {item["job_id"]["S"] for item in world.items() if item["sk"]["S"] == "META"}
    world.upload_records(path, greetings(count, word), model=M2M)
    world.deliver("UploadQueue")
    (job_id,) = {
        item["job_id"]["S"] for item in world.items() if item["sk"]["S"] == "META"
    } - before
    return str(job_id)


def command(world: World, name: str, word: str) -> None:
    """Put a command and deliver its event."""
    world.control(name, word)
    world.deliver("VisitQueue")


def minutes(world: World, count: int) -> None:
    """Let so many ticks pass, 15 seconds apart."""
    for _ in range(count):
        world.deliver_all()
        world.tick()
        world.pass_time(15)

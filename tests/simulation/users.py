"""Users of a simulated world: what they drop, how much, and which commands they give; decided by the seed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from local.workers_ai import Fault

if TYPE_CHECKING:
    from random import Random

    from tests.simulation.world import Upload, World

MODELS = ("@cf/meta/m2m100-1.2b", "@cf/baai/bge-small-en-v1.5")
FAULTS = (
    Fault(kind="3040", on="submit", times=3),
    Fault(kind="971", retry_after=30),
    Fault(kind="json_500", on="submit"),
    Fault(kind="refuse"),
    Fault(kind="accept_then_reset"),
    Fault(kind="accept_then_html"),
    Fault(kind="sync_answer"),
    Fault(kind="5006", on="submit"),
    Fault(kind="html", on="poll", times=2),
    Fault(kind="truncated_body"),
    Fault(kind="batch_fails"),
    Fault(kind="10404", on="poll", status=404, times=6),
    Fault(kind="stuck", seconds=4_000),
    Fault(kind="missing", first=1),
    Fault(kind="repeated"),
    Fault(kind="item_fails", code=3040, first=1),
    Fault(kind="10000", status=401),
)


@dataclass(frozen=True, slots=True)
class Dropped:
    """An upload and what its lines must be answered with.

    Attributes:
        records: by position; None is a line that cannot be read.
        may_fail: whether good records may end without an answer, because of a fault or a command.
    """

    upload: Upload
    model: str
    records: tuple[dict[str, Any] | None, ...]
    may_fail: bool = False


def record(model: str, name: str, number: int) -> dict[str, Any]:
    """A request that its model accepts, unlike any other."""
    text = {"text": f"{name} {number}", "external_reference": f"r{number}"}
    return {**text, "target_lang": "es"} if "m2m" in model else text


def drop(
    world: World, name: str, size: int, model: str = MODELS[0], *, bad: int = 0, may_fail: bool = False
) -> Dropped:
    """Drop a file of `size` records now, `bad` lines of which cannot be read."""
    records: list[dict[str, Any] | None] = [record(model, name, number) for number in range(size)]
    for place in range(bad):
        records[(place * 7) % size] = None
    lines = ["no JSON" if one is None else json.dumps(one) for one in records]
    return Dropped(world.upload(name, lines, model=model), model, tuple(records), may_fail)


def drop_some(world: World, random: Random, *, faults: bool) -> list[Dropped]:
    """Drop a few uploads of mixed sizes within a minute, with faults of the API and commands in between."""
    dropped: list[Dropped] = []
    if faults:
        chosen = random.sample(FAULTS, random.randint(0, 4))
        world.inject(*chosen)
    for number in range(random.randint(1, 4)):
        size = random.choice((0, 1, 2, 5, 17, 60))
        bad = random.randint(0, 2) if size > 2 else 0
        dropped.append(drop(world, f"{number}.jsonl", size, random.choice(MODELS), bad=bad, may_fail=faults))
        world.run(random.choice((0.0, 0.3, 5.0, 30.0)))
    if faults and random.random() < 0.5:
        chosen_job = random.choice(dropped).upload.job_id
        for word in random.sample(("pause", "run", "cancel", "cancel now", "run"), random.randint(1, 3)):
            world.command(random.choice((chosen_job, "stack")) if word in {"pause", "run"} else chosen_job, word)
            world.run(random.choice((0.5, 20.0, 300.0)))
        world.command("stack", "run")
        if world.s3.objects.get(f"control/jobs/{chosen_job}", None):
            last = world.s3.objects[f"control/jobs/{chosen_job}"].body
            if last == b"pause":
                world.command(chosen_job, "run")
    return dropped

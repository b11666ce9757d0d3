"""Users of a simulated world: what they drop, and what its lines must be answered with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.worlds.world import Upload, World

MODELS = ("@cf/meta/m2m100-1.2b", "@cf/baai/bge-small-en-v1.5")


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


def record(model: str, name: str, number: int, *, referenced: bool = True) -> dict[str, Any]:
    """A request that its model accepts, unlike any other; with a reference or without."""
    text = {"text": f"{name} {number}"} | (
        {"external_reference": f"r{number}"} if referenced else {}
    )
    return {**text, "target_lang": "es"} if "m2m" in model else text


def drop(
    world: World,
    name: str,
    size: int,
    model: str = MODELS[0],
    *,
    bad: int = 0,
    may_fail: bool = False,
    referenced: bool = True,
    metadata: dict[str, str] | None = None,
) -> Dropped:
    """Drop a file of `size` records now, `bad` lines of which cannot be read."""
    records: list[dict[str, Any] | None] = [
        record(model, name, number, referenced=referenced) for number in range(size)
    ]
    for place in range(bad):
        records[(place * 7) % size] = None
    lines = ["no JSON" if one is None else json.dumps(one) for one in records]
    return Dropped(
        world.upload(name, lines, model=model, **(metadata or {})), model, tuple(records), may_fail
    )


def meaning(body: bytes) -> str:
    """SHA-256 of what a request body is about, however it is written."""
    requests = json.loads(body)["requests"]
    return sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()

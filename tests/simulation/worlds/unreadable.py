"""Items of the table that nobody can read, of every kind: law 3 says that each delays no other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from dropbatch.core.names import CONTROL_PK

if TYPE_CHECKING:
    from simulation.services.dynamodb import Key
    from tests.simulation.worlds.world import World

KINDS = (
    *("JOB#", "BATCH#", "ID#", "PAUSE", "PAUSE#", "RATE", "RATE#OUTSTANDING", "RATE#TIMES#"),
    *("STACK", "KNOWN", "EVENTS#"),
)
"""All of the table."""
FOUND_BY = {"pk", "sk", "due_at", "work", "ttl"}
"""Attributes by which an item is found and expires: these stay."""
LOOK_SECONDS, MOST_LOOKS = 0.5, 400
"""Until an item of the kind is there, and how often one is looked for."""


@dataclass(frozen=True, slots=True)
class Spoil:
    """From a time on, the next item of a kind loses an attribute, or has it of another type."""

    at: float
    kind: str


def kind_of(key: Key) -> str:
    """The kind of an item."""
    if key[0] != CONTROL_PK and key[1] != "META":
        return "ID#" if key[0].startswith("ID#") else "BATCH#"
    return "JOB#" if key[1] == "META" else re.sub(r"#(?![A-Z]+(#|$)).*", "#", key[1])


def spoil(world: World, kind: str, looks: int = MOST_LOOKS) -> None:
    """Spoil an item of this kind as soon as there is one; a job's is one that is open."""
    items = world.dynamodb.items
    found = sorted(
        key
        for key in items
        if kind_of(key) == kind and ("due_at" in items[key] or key[1][:1] != "B")
    )
    if kind == "JOB#":
        found = [
            key for key in found if "total" not in items[key] or "completed_at" not in items[key]
        ]
    if not found:
        if looks:
            world.kernel.at(world.kernel.now + LOOK_SECONDS, lambda: spoil(world, kind, looks - 1))
        return
    key = found[0]
    random = Random(f"{world.seed} {kind} {looks}")
    name = random.choice(sorted(items[key].keys() - FOUND_BY) or ["sk"])
    changed = {one: wire for one, wire in items[key].items() if one != name}
    if random.random() < 0.8:
        changed[name] = {"N": "7"} if "S" in items[key][name] else {"S": "?"}
    world.spoil(key, changed)

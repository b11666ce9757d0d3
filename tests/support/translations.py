"""The records that most tests upload, greetings to translate, and their results."""

from __future__ import annotations

from typing import Any

import pytest

from local.workers_ai import WorkersAI, expected_result
from tests.support.journeys.world import World

M2M = "@cf/meta/m2m100-1.2b"


def only_slowly(*values: object) -> list[Any]:
    """Parameters that differ from an everyday one only in what unit tests cover."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def greetings(count: int, word: str = "hello") -> list[dict[str, Any]]:
    """Requests without references, each with its own text."""
    return [{"text": f"{word} {number}", "target_lang": "es"} for number in range(count)]


def referenced(count: int) -> list[dict[str, Any]]:
    """Greetings, each with its own reference."""
    return [
        {**one, "external_reference": f"r{number}"} for number, one in enumerate(greetings(count))
    ]


def all_good(world: World, count: int) -> bool:
    """Whether the only job's output has the answer to each of this many greetings, in order."""
    return [line.get("result") for line in world.lines()] == [
        expected_result(M2M, one) for one in greetings(count)
    ]


def codes(world: World, folder: str = "") -> list[str | None]:
    """Each output line's error code; None for an answer."""
    return [
        None if line["success"] else line["error"]["code"] for line in world.lines(folder=folder)
    ]


def submits(api: WorkersAI) -> int:
    """Submits that reached the API, whatever it replied."""
    return sum(api.calls.get("submit", {}).values())


def polls(api: WorkersAI) -> int:
    """Polls that reached the API, whatever it replied."""
    return sum(api.calls.get("poll", {}).values())

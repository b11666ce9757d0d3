"""Items of jobs and batches as the table holds them: without attributes of default value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def number(item: Mapping[str, Any] | None, name: str) -> float:
    """A number of an item; 0 if it has none."""
    wire = item.get(name) if item else None
    return float(wire.get("N", "0")) if wire else 0.0


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> set[str]:
    """Names of the attributes in which two items differ."""
    return {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}


def submissions(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The acceptance of a batch that counts; its item has none before the first."""
    return [batch["submission"]["M"]] if "submission" in batch else []

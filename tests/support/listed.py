"""Cloudflare's list of models, as the local Workers AI has it, with changes."""

from __future__ import annotations

import json
from typing import Any

from local.workers_ai.models.catalogue import MODELS, listing

BATCH = frozenset(name for name, model in MODELS.items() if model.batch)
DAY = "2026-12-24"
"""On which a stack has read its list: later than what is shipped."""


def rows(*without: str) -> list[dict[str, Any]]:
    """Cloudflare's list; some models take no batches any more."""
    return list(listing(BATCH - set(without)))


def with_properties(name: str, **properties: object) -> list[dict[str, Any]]:
    """The list with other properties of a model, which may be new."""
    given = [{"property_id": one, "value": value} for one, value in properties.items()]
    others = [one for one in rows() if one["name"] != name]
    task = next((one["task"]["name"] for one in rows() if one["name"] == name), "Text Generation")
    return [*others, {"name": name, "task": {"name": task}, "properties": given}]


def stored(models: list[dict[str, Any]], day: str = DAY) -> bytes:
    """A stack's own list."""
    return json.dumps({"read_on": day, "result": models}).encode()


def priced(dollars: float) -> list[dict[str, object]]:
    """The property `price` of an embeddings model."""
    return [{"unit": "per M input tokens", "price": dollars, "currency": "USD"}]

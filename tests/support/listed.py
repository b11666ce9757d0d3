"""Cloudflare's list of models, as the local Workers AI has it, with changes."""

from __future__ import annotations

from typing import Any

from local.workers_ai.models.catalogue import BATCH, listing


def rows(*without: str) -> list[dict[str, Any]]:
    """Cloudflare's list; some models take no batches any more."""
    return list(listing(BATCH - set(without)))


def with_properties(name: str, **properties: object) -> list[dict[str, Any]]:
    """The list with other properties of a model, which may be new."""
    given = [{"property_id": one, "value": value} for one, value in properties.items()]
    others = [one for one in rows() if one["name"] != name]
    task = next((one["task"]["name"] for one in rows() if one["name"] == name), "Text Generation")
    return [*others, {"name": name, "task": {"name": task}, "properties": given}]

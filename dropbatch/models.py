"""The models that Dropbatch knows: task, batches, prices. Read from the same file that the functions use."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALLED = Path(__file__).parent / "model_catalog.json"
IN_SOURCE_TREE = Path(__file__).parent.parent / "shared/model_catalog.json"


def models() -> Iterator[dict[str, Any]]:
    """Every model, by id.

    Returns:
        `id`, `task`, `batch` (null if unknown), `input_price` and `output_price` (text: dollars for a million tokens,
        null if unknown), `priced_at`, `source`.
    """
    path = INSTALLED if INSTALLED.exists() else IN_SOURCE_TREE
    catalog = json.loads(path.read_bytes(), parse_float=Decimal, parse_int=Decimal)
    for model in sorted(catalog["models"], key=lambda one: str(one["id"])):
        family: dict[str, Any] = next((one for one in catalog["families"] if model["id"].startswith(one["prefix"])), {})
        known = family | model
        priced_at = known.get("priced_at", "")
        yield {
            "id": known["id"],
            "task": known.get("task", "unknown"),
            "batch": known.get("batch"),
            **{name: str(known[name]) if name in known else None for name in ("input_price", "output_price")},
            "priced_at": priced_at or None,
            "source": catalog["sources"].get(known.get("price_source", "")),
        }

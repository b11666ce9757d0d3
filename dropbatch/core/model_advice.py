"""What to know of a model before requests are sent to it, in words. Pure."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from dropbatch.core.formats.model_catalog import is_model

if TYPE_CHECKING:
    from dropbatch.core.formats.model_catalog import Catalog

_LEAST_ALIKE = 0.7


def model_advice(model_id: str, catalog: Catalog) -> str:
    """What is odd about a model: it is not known, takes no batches, or will be withdrawn.

    Empty if nothing is.

    A new model may be used before Dropbatch knows it, so this is no fault.
    """
    if not is_model(model_id):
        return ""
    if not catalog.lists(model_id):
        nearest = nearest_model(model_id, catalog)
        return f"Dropbatch does not know the model {model_id}." + (
            f" Did you mean {nearest}?" if nearest else ""
        )
    model = catalog.find(model_id)
    if not model.batch:
        return (
            f"{model_id} is not listed as a model that takes batches: it will probably be refused."
        )
    if model.deprecated_at:
        return f"Cloudflare withdraws {model_id} on {model.deprecated_at}."
    return ""


def nearest_model(model_id: str, catalog: Catalog) -> str:
    """The model that takes batches and whose id is most like another one; empty if none is."""
    known = {model.id.lower(): model.id for model in catalog.models if model.batch}
    found = difflib.get_close_matches(model_id.lower(), known, 1, _LEAST_ALIKE)
    return known[found[0]] if found else ""

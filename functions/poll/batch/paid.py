"""What batches cost: tokens as reported, and an estimate of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.cost import Tokens, cost_of, estimate_cost, has_price
from shared.models import Usage

if TYPE_CHECKING:
    from dropbatch.core.cost import Cost
    from dropbatch.core.models import Model


def cost_so_far(
    model: Model, usage: Usage, unmetered_size: int, unmetered_records: int
) -> Cost | None:
    """What reported tokens cost, and accepted work without; None for a model without a price."""
    cost = cost_of(
        model,
        Tokens(usage.prompt_tokens or 0, usage.completion_tokens or 0, usage.cached_tokens or 0),
    )
    if cost and unmetered_size:
        return cost.plus(estimate_cost(model, unmetered_size, unmetered_records))
    return cost


def priced(model: Model, usage: Usage) -> Usage:
    """A batch's usage if it has all tokens that the model bills; if not, nothing.

    The rest would count as free.
    """
    lacks_output = usage.completion_tokens is None and bool(model.output_price)
    return Usage() if has_price(model) and (lacks_output or not usage.is_reported) else usage

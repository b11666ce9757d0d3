"""Look at models: `models`."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import as_json, emit

if TYPE_CHECKING:
    from decimal import Decimal

    from dropbatch.core.models import Catalog, Model


@click.command()
@click.option("--all", "all_", is_flag=True, help="Also list models that do not take batches.")
@as_json
def models(*, all_: bool) -> None:
    """List models: task, prices per million tokens, tokens of the context window."""
    from dropbatch.core.models import catalog

    known = catalog()
    days = (datetime.now(UTC).date() - date.fromisoformat(known.read_on)).days
    click.echo(f"Facts of {known.read_on}, {days:,} days old", err=True)
    for model in sorted((known.find(one.id) for one in known.models), key=lambda one: one.id):
        if all_ or model.batch:
            emit(_shown(model, known), _line(model))


def _shown(model: Model, catalog: Catalog) -> dict[str, Any]:
    return {
        "id": model.id,
        "task": model.task or "unknown",
        "batch": model.batch,
        "input_price": _number(model.input_price),
        "output_price": _number(model.output_price),
        "cached_price": _number(model.cached_price),
        "priced_at": model.priced_at or None,
        "source": catalog.sources.get(model.price_source),
        "context": model.context,
        "efforts": model.efforts and list(model.efforts.values),
        "deprecated_at": model.deprecated_at or None,
        "needs_paid": model.needs_paid,
        "read_on": catalog.read_on,
    }


def _line(model: Model) -> str:
    costs = (
        f"{_price(model.input_price):>9} in  {_price(model.output_price):>9} out  "
        f"{model.priced_at:10}"
    )
    context = f"{model.context:>9,} tokens" if model.context else ""
    notes = "" if model.batch else "  no batches"
    if model.deprecated_at:
        notes += f"  until {model.deprecated_at}"
    return f"{model.id:<46}  {model.task or 'unknown':<14}  {costs}  {context:16}{notes}".rstrip()


def _number(dollars: Decimal | None) -> str | None:
    return None if dollars is None else str(dollars)


def _price(dollars: Decimal | None) -> str:
    return "-" if dollars is None else f"${dollars}"

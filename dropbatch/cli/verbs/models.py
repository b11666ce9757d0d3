"""Look at models, and refresh what the stack knows of them: `models`."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import Context, as_json, emit, note, pass_context
from dropbatch.cli.exits import Exit, in_options
from dropbatch.errors import Error, UsageError

if TYPE_CHECKING:
    from decimal import Decimal

    from dropbatch.client.models import Known, Typical
    from dropbatch.core.models import Catalog, Model


@click.command()
@click.option("--all", "all_", is_flag=True, help="Also list models that do not take batches.")
@click.option(
    "--refresh",
    is_flag=True,
    help="Read Cloudflare's list, and keep it for the stack. For operators.",
)
@click.option(
    "--from",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="For --refresh: the list, as the API answers to ai/models/search.",
)
@click.option("--yes", is_flag=True, help="For --refresh: do not ask first.")
@as_json
@pass_context
def models(context: Context, *, all_: bool, refresh: bool, source: Path | None, yes: bool) -> None:
    """List models: task, prices per million tokens, tokens of the context window.

    What is known is the stack's own list, or what is shipped. Operators also see the seconds of a
    typical batch, and the tokens of a typical answer.
    """
    if refresh:
        _refresh(context, source, yes=yes)
        return
    if source or yes:
        raise UsageError("--from and --yes are for --refresh.")
    from dropbatch.client.models import Typical

    known, learned = _known(context)
    days = (datetime.now(UTC).date() - date.fromisoformat(known.catalog.read_on)).days
    click.echo(f"Facts of {known.catalog.read_on}, {days:,} days old, {known.origin}", err=True)
    if known.trouble:
        note(known.trouble)
    for model in sorted(
        (known.catalog.find(one.id) for one in known.catalog.models), key=lambda one: one.id
    ):
        if all_ or model.batch:
            typical = learned.get(model.id) or Typical()
            emit(_shown(model, known.catalog, typical), _line(model, typical))


def _known(context: Context) -> tuple[Known, dict[str, Typical]]:
    """What the stack knows of models, and has learned of their batches.

    What is shipped without a stack.
    """
    from dropbatch.client.models import Known, known_models, typical_batches
    from dropbatch.core.models import catalog

    try:
        stack = context.stack
        known = known_models(stack)
    except Error as error:
        if context.local or context.stack_name:
            raise
        return Known(catalog(), trouble=f"No stack was found. {in_options(str(error))}"), {}
    return known, typical_batches(
        stack, [model.id for model in known.catalog.models if model.batch]
    )


def _shown(model: Model, catalog: Catalog, typical: Typical) -> dict[str, Any]:
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
        "batch_seconds": typical.seconds,
        "answer_tokens": typical.answer_tokens,
    }


def _line(model: Model, typical: Typical) -> str:
    costs = (
        f"{_price(model.input_price):>9} in  {_price(model.output_price):>9} out  "
        f"{model.priced_at:10}"
    )
    context = f"{model.context:>9,} tokens" if model.context else ""
    took = "" if typical.seconds is None else f"  {typical.seconds:,.0f} s"
    took += "" if typical.answer_tokens is None else f"  {typical.answer_tokens:,.0f} tokens out"
    notes = ("" if model.batch else "  no batches") + (
        f"  until {model.deprecated_at}" * bool(model.deprecated_at)
    )
    return f"{model.id:<46}  {model.task or 'unknown':<14}  {costs}  {context:16}{took}{notes}".rstrip()


def _number(dollars: Decimal | None) -> str | None:
    return None if dollars is None else str(dollars)


def _price(dollars: Decimal | None) -> str:
    return "-" if dollars is None else f"${dollars}"


# ── refresh ───────────────────────────────────────────────────────────────────────────────────────


def _refresh(context: Context, source: Path | None, *, yes: bool) -> None:
    from dropbatch.client.models import known_models, store_list
    from dropbatch.core.formats.catalog_reader import (
        MAX_LIST_BYTES,
        CatalogError,
        changes,
        stack_catalog,
        stored_list,
    )
    from dropbatch.core.models import catalog

    stack = context.stack
    known = known_models(stack)
    if source:
        with source.open("rb") as file:
            content = file.read(MAX_LIST_BYTES + 1)
    else:
        content = _fetched(context)
    try:
        # A clock that is behind must not make it older than what is shipped.
        stored = stored_list(content, max(f"{datetime.now(UTC):%Y-%m-%d}", catalog().read_on))
        new = stack_catalog(stored)
    except CatalogError as error:
        raise Error(f"Nothing was changed. {error}") from error
    if known.trouble:
        note(known.trouble)
    found = changes(known.catalog.models, new.models)
    for line in found or ["Nothing differs but the day."]:
        note(line)
    if not yes and not click.confirm("Keep this list for the stack?", err=True):
        raise SystemExit(Exit.DONE)
    store_list(stack, stored, known.etag)
    emit(
        {"read_on": new.read_on, "changes": found},
        "Jobs that are created from now on use it, within 15 minutes.",
    )


def _fetched(context: Context) -> bytes:
    """Cloudflare's list: that of the account if there is a token, else the public one."""
    from dropbatch.cli.cloudflare import account_models, apis_of, public_models
    from dropbatch.cli.doctor import environment_of

    token = os.environ.get("CLOUDFLARE_API_TOKEN", "").strip()
    if not token:
        note(
            "CLOUDFLARE_API_TOKEN is not set, so the list is read from which Cloudflare's "
            "documentation is built."
        )
        return public_models()
    environment = environment_of(context.stack)
    return account_models(
        apis_of(environment["WORKERS_AI_BASE_URL"], environment["CLOUDFLARE_ACCOUNT_ID"], token)[0]
    )

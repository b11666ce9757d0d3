"""Reads Cloudflare's own list of models, and brings what is known of models up to date with it.

Pure.

The list is what the API answers to `ai/models/search`, what Cloudflare's documentation is built
from, or the same models as an array. A list that is not whole, or that nobody would believe,
changes nothing.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core.errors import Error
from dropbatch.core.formats.base import UNDECODABLE, Task
from dropbatch.core.models import (
    Efforts,
    Model,
    find_model,
    is_model,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_LIST_BYTES = 64 << 20
"""The list of October 2026 has 65 models and, with their schemas, 20 MB."""
MAX_PRICE = Decimal(10_000)
"""US dollars for a million tokens."""
MAX_PRICE_DIGITS = 30
MAX_CONTEXT = 1_000_000_000
MAX_EFFORTS, MAX_EFFORT_CHARACTERS = 100, 100
"""Words that name a model's efforts, their other names included, and characters of each."""
LIST_SOURCE = "catalogue"
"""Where prices and efforts of the list are from, as a key of the file's `sources`."""

_TASKS = {
    "Text Embeddings": Task.EMBEDDINGS,
    "Translation": Task.TRANSLATION,
    "Text Generation": Task.GENERATION,
    "Automatic Speech Recognition": Task.TRANSCRIPTION,
    "Text-to-Speech": Task.SPEECH,
    "Text Classification": Task.CLASSIFICATION,
}
_PRICES = {
    "per M input tokens": "input_price",
    "per M output tokens": "output_price",
    "per M cached input tokens": "cached_price",
}
_TOKENS = {
    "context_window": "context",
    "max_input_tokens": "context",
    "output_dimensions": "dimensions",
}


class CatalogError(Error):
    """A list of models that must not be believed."""


class _Property(msgspec.Struct):
    property_id: str
    value: Any = None


class _Task(msgspec.Struct):
    name: str = ""


class _Listed(msgspec.Struct):
    name: str
    task: _Task = msgspec.field(default_factory=_Task)
    properties: list[_Property] = []


class _Price(msgspec.Struct):
    unit: str
    price: Decimal


class _Efforts(msgspec.Struct):
    supported_efforts: tuple[str, ...] = ()
    normalizes_to: dict[str, str] = {}


class _Page(msgspec.Struct):
    total_count: int = 0


class _Reply(msgspec.Struct):
    """The API has its models as `result`, the documentation as `models`."""

    result: list[_Listed] = []
    models: list[_Listed] = []
    result_info: _Page | None = None


_decode = msgspec.json.Decoder(list[_Listed] | _Reply).decode


def read_list(content: bytes, known: Sequence[Model], day: str) -> dict[str, Model]:
    """The models of a list by their ids, with what it says of them.

    Args:
        content: JSON, an answer of the API or the array in it.
        known: the models that are known now.
        day: on which the list was read, as YYYY-MM-DD.

    Raises:
        CatalogError: it is empty, not whole, of another form, too large, or has a number that
            cannot be.
    """
    listed = _listed_in(content)
    models = {one.name: _model_of(one, day) for one in reversed(listed) if is_model(one.name)}
    needed = {model.id for model in known if model.batch}
    missing = sorted(needed - models.keys())
    if len(missing) * 2 > len(needed) or not models:
        raise CatalogError(
            f"The list has {len(models):,} models, and lacks {len(missing):,} of the "
            f"{len(needed):,} known ones that "
            f"take batches, such as {missing[0] if missing else 'any'}. It is probably not whole."
        )
    if not any(model.batch for model in models.values()):
        raise CatalogError(
            "The list says of no model that it takes batches. It is probably of another form."
        )
    return models


def _listed_in(content: bytes) -> list[_Listed]:
    """The models of a list."""
    if len(content) > MAX_LIST_BYTES:
        raise CatalogError(f"The list is too long: at most {MAX_LIST_BYTES:,} bytes are read.")
    try:
        read = _decode(content)
    except UNDECODABLE as error:
        raise CatalogError(
            f"This is no list of Cloudflare's models, or not all of one: {error}"
        ) from error
    if isinstance(read, list):
        return list(read)
    listed: list[_Listed] = read.result or read.models
    if read.result_info and read.result_info.total_count > len(listed):
        total = read.result_info.total_count
        raise CatalogError(f"The list has {len(listed):,} of {total:,} models. Read all of them.")
    return listed


def _model_of(listed: _Listed, day: str) -> Model:
    facts: dict[str, Any] = {"batch": False, "task": _TASKS.get(listed.task.name, Task.UNKNOWN)}
    try:
        for one in listed.properties:
            facts |= _facts(one)
    except (msgspec.ValidationError, ValueError) as error:
        raise CatalogError(f"The list says of {listed.name} what cannot be: {error}") from error
    if "input_price" in facts:
        facts |= {"priced_at": day, "price_source": LIST_SOURCE}
    return Model(listed.name, **facts)


def _facts(one: _Property) -> dict[str, Any]:
    """What a property says; nothing for one that says nothing here.

    A value may be text where it usually is not.
    """
    match one.property_id, one.value:
        case "async_queue", value:
            return {"batch": _is_true(value)}
        case "require_workers_paid", value:
            return {"needs_paid": _is_true(value)}
        case "planned_deprecation_date", str(day):
            return {"deprecated_at": day[:10]}
        case "price", list(prices):
            return dict(_named_prices(prices))
        case "reasoning_effort", dict(efforts):
            return {"efforts": _known_efforts(msgspec.convert(efforts, _Efforts))}
        case name, str() | int() as tokens if name in _TOKENS:
            return {_TOKENS[name]: _number(tokens)}
    return {}


def _known_efforts(found: _Efforts) -> Efforts:
    """Efforts; one that is taken for another counts only if that is one of them.

    They become part of a job's item.
    """
    words = [*found.supported_efforts, *found.normalizes_to, *found.normalizes_to.values()]
    if len(words) > MAX_EFFORTS or any(len(word) > MAX_EFFORT_CHARACTERS for word in words):
        raise ValueError("so many, or so long, reasoning efforts")
    aliases = {
        old: new for old, new in found.normalizes_to.items() if new in found.supported_efforts
    }
    return Efforts(found.supported_efforts, LIST_SOURCE, aliases)


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _named_prices(prices: list[Any]) -> Iterator[tuple[str, Decimal]]:
    for one in msgspec.convert(prices, list[_Price], strict=False):
        if (
            not one.price.is_finite()
            or not 0 <= one.price <= MAX_PRICE
            or len(str(one.price)) > MAX_PRICE_DIGITS
        ):
            raise ValueError(
                f"a price of {str(one.price)[:MAX_PRICE_DIGITS]} dollars "
                f"{one.unit[:MAX_PRICE_DIGITS]}"
            )
        if one.unit in _PRICES:
            yield _PRICES[one.unit], one.price


def _number(tokens: str | int) -> int:
    number = int(tokens)
    if not 0 < number <= MAX_CONTEXT:
        raise ValueError(f"{number} tokens or numbers")
    return number


# ── bringing up to date ───────────────────────────────────────────────────────────────────────────


def merged(known: Sequence[Model], listed: dict[str, Model]) -> list[Model]:
    """The known models with what the list says of them, then those that are new.

    What the list says nothing of stays as it is known. A model that it does not have takes no
    batches any more.
    """
    models = [
        _updated(model, listed[model.id])
        if model.id in listed
        else msgspec.structs.replace(model, batch=False)
        for model in known
    ]
    ids = {model.id for model in known}
    new = [_without_known(model) for model in listed.values() if model.id not in ids and model.task]
    return models + sorted(new, key=lambda model: model.id)


def _updated(model: Model, listed: Model) -> Model:
    said = {
        name: getattr(listed, name)
        for name in ("context", "dimensions", "efforts")
        if getattr(listed, name)
    }
    prices = ("input_price", "output_price", "cached_price")
    if listed.input_price is not None and not all(
        _same(getattr(model, n), getattr(listed, n)) for n in prices
    ):
        said |= {name: getattr(listed, name) for name in (*prices, "priced_at", "price_source")}
    ends = {"deprecated_at": listed.deprecated_at, "needs_paid": listed.needs_paid}
    return msgspec.structs.replace(model, batch=listed.batch, **said, **ends)


def _without_known(model: Model) -> Model:
    """A new model without the task that its family has anyway."""
    return (
        msgspec.structs.replace(model, task=Task.UNKNOWN)
        if find_model(model.id).task is model.task
        else model
    )


def _same(known: Decimal | None, listed: Decimal | None) -> bool:
    """Whether two prices are the same: the list rounds some to cents."""
    if known is None or listed is None:
        return known is listed
    return known == listed or round(known, max(-int(listed.as_tuple().exponent), 0)) == listed


def changes(before: Sequence[Model], after: Sequence[Model]) -> list[str]:
    """What differs, one line a fact."""
    old = {model.id: model for model in before}
    lines = []
    for model in after:
        if model.id not in old:
            lines.append(f"{model.id}: new{', takes batches' if model.batch else ''}")
            continue
        was, now = (
            {n: _said(v) for n, v in msgspec.structs.asdict(one).items()}
            for one in (old[model.id], model)
        )
        lines += [
            f"{model.id}: {name}: {was[name]} -> {now[name]}"
            for name in now
            if was[name] != now[name]
        ]
    return lines


def _said(value: object) -> str:
    if isinstance(value, Efforts):
        return (
            f"{', '.join(value.values) or 'none'} "
            f"({', '.join(f'{a} as {b}' for a, b in value.aliases.items())})"
        )
    return "unknown" if value is None or value == "" else str(value)

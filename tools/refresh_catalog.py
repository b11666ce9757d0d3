"""`make refresh-catalog FROM=FILE`: the shipped catalogue follows Cloudflare's list of models.

FILE is what the API answers to `GET /accounts/<account>/ai/models/search?per_page=1000`. Nothing is
written unless the whole list can be believed. Where the list and Cloudflare's guides disagree, the
guides are usually right.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from dropbatch.core.errors import Error
from dropbatch.core.formats.base import UNDECODABLE, Task
from dropbatch.core.models import Catalog, Efforts, Model, find_model, is_model

FILE = Path(__file__).parents[1] / "dropbatch/core/models.json"
MAX_PRICE, MAX_CONTEXT = Decimal(10_000), 1_000_000_000
"""US dollars for a million tokens; tokens or numbers of a vector."""
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
    result: list[_Listed] = []
    result_info: _Page | None = None


_decode = msgspec.json.Decoder(_Reply).decode


def read_list(content: bytes, known: Sequence[Model], day: str) -> dict[str, Model]:
    """The models of a list of a day (YYYY-MM-DD) by their ids, with what it says of them."""
    listed = _listed_in(content)
    models = {one.name: _model_of(one, day) for one in reversed(listed) if is_model(one.name)}
    needed = {model.id for model in known if model.batch}
    missing = sorted(needed - models.keys())
    if len(missing) * 2 > len(needed) or not models:
        raise CatalogError(
            f"The list has {len(models):,} models, and lacks {len(missing):,} of the "
            f"{len(needed):,} known ones that take batches, such as "
            f"{missing[0] if missing else 'any'}. It is probably not whole."
        )
    if not any(model.batch for model in models.values()):
        raise CatalogError(
            "The list says of no model that it takes batches. It is probably of another form."
        )
    return models


def _listed_in(content: bytes) -> list[_Listed]:
    try:
        read = _decode(content)
    except UNDECODABLE as error:
        how = "This is no list of Cloudflare's models, or not all of one"
        raise CatalogError(f"{how}: {error}") from error
    if read.result_info and read.result_info.total_count > len(read.result):
        some = f"{len(read.result):,} of {read.result_info.total_count:,} models"
        raise CatalogError(f"The list has {some}. Read all of them.")
    return read.result


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
    """What a property says; nothing for one that says nothing here."""
    match one.property_id, one.value:
        case "async_queue", value:
            return {"batch": _is_true(value)}
        case "require_workers_paid", value:
            return {"needs_paid": _is_true(value)}
        case "planned_deprecation_date", str(day):
            return {"deprecated_at": day[:10]}
        case "price", list(prices):
            return dict(_named_prices(prices))
        case "reasoning_effort", dict(found):
            efforts = msgspec.convert(found, _Efforts)
            values = efforts.supported_efforts
            aliases = {old: new for old, new in efforts.normalizes_to.items() if new in values}
            return {"efforts": Efforts(values, LIST_SOURCE, aliases)}
        case name, str() | int() as tokens if name in _TOKENS:
            return {_TOKENS[name]: _number(tokens)}
    return {}


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"


def _named_prices(prices: list[Any]) -> Iterator[tuple[str, Decimal]]:
    for one in msgspec.convert(prices, list[_Price], strict=False):
        if not one.price.is_finite() or not 0 <= one.price <= MAX_PRICE:
            raise ValueError(f"a price of {one.price} dollars {one.unit}")
        if one.unit in _PRICES:
            yield _PRICES[one.unit], one.price


def _number(tokens: str | int) -> int:
    number = int(tokens)
    if not 0 < number <= MAX_CONTEXT:
        raise ValueError(f"{number} tokens or numbers")
    return number


def merged(known: Sequence[Model], listed: dict[str, Model]) -> list[Model]:
    """The known models with what the list says of them, then those that are new.

    What the list says nothing of stays as it is known. A model that it does not have takes no
    batches any more.
    """
    models = [_updated(model, listed.get(model.id)) for model in known]
    ids = {model.id for model in known}
    new = [_without_known(model) for model in listed.values() if model.id not in ids and model.task]
    return models + sorted(new, key=lambda model: model.id)


def _updated(model: Model, listed: Model | None) -> Model:
    if listed is None:
        return msgspec.structs.replace(model, batch=False)
    names = ["context", "dimensions", "efforts"]
    said = {name: getattr(listed, name) for name in names if getattr(listed, name)}
    prices = ["input_price", "output_price", "cached_price"]
    same = [_is_same(getattr(model, name), getattr(listed, name)) for name in prices]
    if listed.input_price is not None and not all(same):
        said |= {name: getattr(listed, name) for name in (*prices, "priced_at", "price_source")}
    ends = {"deprecated_at": listed.deprecated_at, "needs_paid": listed.needs_paid}
    return msgspec.structs.replace(model, batch=listed.batch, **said, **ends)


def _without_known(model: Model) -> Model:
    """A new model without the task that its family has anyway."""
    is_known = find_model(model.id).task is model.task
    return msgspec.structs.replace(model, task=Task.UNKNOWN) if is_known else model


def _is_same(known: Decimal | None, listed: Decimal | None) -> bool:
    """Whether two prices are the same: the list rounds some to cents."""
    if known is None or listed is None:
        return known is listed
    return known == listed or round(known, max(-int(listed.as_tuple().exponent), 0)) == listed


def refreshed(written: bytes, content: bytes, day: str) -> bytes:
    before = msgspec.json.decode(written, type=Catalog)
    models = merged(before.models, read_list(content, before.models, day))
    return text_of(msgspec.structs.replace(before, read_on=day, models=models)).encode()


def text_of(written: Catalog) -> str:
    """The catalogue as its file has it: one line a family, and a model."""
    named = written.sources.items()
    sources = ",\n".join(f"    {_json(name)}: {_json(source)}" for name, source in named)
    return (
        f'{{\n  "read_on": {_json(written.read_on)},\n  "sources": {{\n{sources}\n  }},\n'
        f'  "families": {_rows(written.families)},\n  "models": {_rows(written.models)}\n}}\n'
    )


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _rows(values: Iterable[object]) -> str:
    return "[\n" + ",\n".join(f"    {_json(one)}" for one in values) + "\n  ]"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("Give the file with the list: make refresh-catalog FROM=models.json", file=sys.stderr)
        return 2
    try:
        day = f"{datetime.now(UTC):%Y-%m-%d}"
        written = refreshed(FILE.read_bytes(), Path(arguments[0]).read_bytes(), day)
    except (CatalogError, OSError) as error:
        print(f"Nothing was changed. {error}", file=sys.stderr)
        return 1
    FILE.write_bytes(written)
    print(f"git diff {FILE.name} shows what changed, a line a model. Read it before you commit.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""How the list of Cloudflare's models becomes the catalogue."""

import json
import re
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from dropbatch.core.formats.base import Task
from dropbatch.core.models import Catalog, Efforts, catalog
from local.workers_ai.models.catalogue import listing
from tests.support.converted import BGE, DEEPSEEK, KIMI, QWEN
from tools import refresh_catalog
from tools.refresh_catalog import CatalogError, merged, read_list

PROPERTIES = {
    BGE: {
        "max_input_tokens": "512",
        "output_dimensions": "384",
        "price": [{"unit": "per M input tokens", "price": 0.02, "currency": "USD"}],
    },
    KIMI: {
        "context_window": "262144",
        "price": [
            {"unit": "per M input tokens", "price": 0.95, "currency": "USD"},
            {"unit": "per M cached input tokens", "price": 0.16, "currency": "USD"},
            {"unit": "per M output tokens", "price": 4, "currency": "USD"},
        ],
        "reasoning_effort": {
            "supported_efforts": ["high", "none"],
            "default_effort": "high",
            "normalizes_to": {"low": "high", "medium": "high", "max": "high"},
        },
    },
    DEEPSEEK: {"require_workers_paid": "true", "reasoning_effort": "Off, Low, High, Max"},
    "@cf/deepgram/nova-3": {"price": [{"unit": "per audio minute", "price": 0.0052}]},
    QWEN: {"planned_deprecation_date": "2027-01-31"},
}


def rows() -> list[dict[str, Any]]:
    """Cloudflare's list of models."""
    for one in (found := list(listing())):
        given = PROPERTIES.get(str(one["name"]), {})
        more = [{"property_id": name, "value": value} for name, value in given.items()]
        one["properties"] = [*one["properties"], *more]
    return found


def with_properties(name: str, **properties: object) -> list[dict[str, Any]]:
    """The list with other properties of a model, which may be new."""
    given = [{"property_id": one, "value": value} for one, value in properties.items()]
    others = [one for one in rows() if one["name"] != name]
    task = next((one["task"]["name"] for one in rows() if one["name"] == name), "Text Generation")
    return [*others, {"name": name, "task": {"name": task}, "properties": given}]


COUNTED = {"total_count": 65}
KNOWN, DAY = catalog().models, "2026-12-24"


def as_reply(models):
    return json.dumps({"result": models, "success": True}).encode()


def read(models):
    """What a list says, by ids."""
    return read_list(as_reply(models), KNOWN, DAY)


def after(models):
    """The catalogue after a list, by ids."""
    return {model.id: model for model in merged(KNOWN, read(models))}


def test_value_may_be_text_array_or_object():
    models = read(rows())

    kimi = models[KIMI]
    assert (kimi.batch, kimi.task, kimi.context) == (True, Task.GENERATION, 262_144)
    prices = kimi.input_price, kimi.cached_price, kimi.output_price
    assert prices == (Decimal("0.95"), Decimal("0.16"), Decimal(4))
    assert kimi.efforts == Efforts(
        ("high", "none"), "catalogue", {"low": "high", "medium": "high", "max": "high"}
    )
    assert (models[BGE].dimensions, models[BGE].context) == (384, 512)
    assert (models[DEEPSEEK].needs_paid, models[DEEPSEEK].efforts) == (True, None)
    assert models[QWEN].deprecated_at == "2027-01-31"
    assert models["@cf/deepgram/nova-3"].input_price is None
    assert not models["@cf/baai/bge-reranker-base"].batch


def test_other_price_is_taken_with_its_day():
    price = [
        {"unit": "per M input tokens", "price": 0.9},
        {"unit": "per M output tokens", "price": 3},
    ]
    kimi = after(with_properties(KIMI, async_queue="true", price=price))[KIMI]
    prices = kimi.input_price, kimi.output_price, kimi.cached_price
    assert prices == (Decimal("0.9"), Decimal(3), None)
    assert (kimi.priced_at, kimi.price_source) == (DAY, "catalogue")


def test_new_model_is_added_with_its_task():
    made = after(with_properties("@cf/new/words", async_queue="true", context_window="4096"))
    new = made["@cf/new/words"]
    assert (new.task, new.context) == (Task.GENERATION, 4_096)
    painter = {"name": "@cf/new/painter", "task": {"name": "Text-to-Image"}}
    assert "@cf/new/painter" not in after([*rows(), painter, {"name": "vendor/elsewhere"}])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not all of one"),
        (as_reply(rows())[:-9], "not all of one"),
        (b"<html>", "not all of one"),
        (b'{"result":[{"id":"@cf/a/b"}]}', "This is no list"),
        (b'{"result":[]}', "has 0 models"),
        (as_reply(rows()[:6]), "lacks 13 of the 19 known ones that take batches"),
        (
            as_reply([one | {"properties": []} for one in rows()]),
            "of no model that it takes batches",
        ),
        (json.dumps({"result": rows(), "result_info": COUNTED}).encode(), "has 23 of 65 models"),
        (b"[" * 100_000, "not all of one"),
    ],
)
def test_list_that_is_not_whole_is_refused(content, says):
    with pytest.raises(CatalogError, match=re.escape(says)):
        read_list(content, KNOWN, DAY)


@pytest.mark.parametrize(
    "properties",
    [
        {"price": [{"unit": "per M input tokens", "price": -1}]},
        {"price": [{"unit": "per M input tokens", "price": 1e9}]},
        {"price": [{"price": 1}]},
        {"context_window": "0"},
        {"context_window": "-5"},
        {"context_window": "many"},
        {"reasoning_effort": {"supported_efforts": "high"}},
    ],
)
def test_number_that_cannot_be_is_refused(properties):
    with pytest.raises(CatalogError, match=re.escape(f"The list says of {KIMI} what cannot be: ")):
        read(with_properties(KIMI, async_queue="true", **properties))


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "models.json"
    path.write_bytes(refresh_catalog.FILE.read_bytes())
    monkeypatch.setattr(refresh_catalog, "FILE", path)
    return path


def test_shipped_file_is_what_is_written():
    assert refresh_catalog.text_of(catalog()) == refresh_catalog.FILE.read_text("utf-8")


def test_file_is_brought_up_to_date(file, tmp_path, capsys):
    (tmp_path / "list.json").write_bytes(as_reply(rows()))

    assert refresh_catalog.main([str(tmp_path / "list.json")]) == 0

    models = {
        model.id: model for model in msgspec.json.decode(file.read_bytes(), type=Catalog).models
    }
    assert models["@cf/qwen/qwen3-30b-a3b-fp8"].deprecated_at == "2027-01-31"
    assert "git diff models.json" in capsys.readouterr().out
    once = file.read_bytes()
    assert refresh_catalog.main([str(tmp_path / "list.json")]) == 0
    assert file.read_bytes() == once

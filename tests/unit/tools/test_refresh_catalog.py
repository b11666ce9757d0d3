"""`make refresh-catalog`: what is shipped is brought up to date, or is left as it is."""

import json

import msgspec
import pytest

from dropbatch.core.models import Catalog, catalog
from local.workers_ai.models.catalogue import MODELS, listing
from tools import refresh_catalog

LIST = json.dumps(list(listing(frozenset(name for name, model in MODELS.items() if model.batch))))


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "models.json"
    path.write_bytes(refresh_catalog.FILE.read_bytes())
    monkeypatch.setattr(refresh_catalog, "FILE", path)
    return path


def test_shipped_file_is_what_is_written():
    assert refresh_catalog.text_of(catalog()) == refresh_catalog.FILE.read_text("utf-8")


def test_file_is_brought_up_to_date(file, tmp_path, capsys):
    (tmp_path / "list.json").write_text(LIST)

    assert refresh_catalog.main([str(tmp_path / "list.json")]) == 0

    models = {
        model.id: model for model in msgspec.json.decode(file.read_bytes(), type=Catalog).models
    }
    assert models["@cf/qwen/qwen3-30b-a3b-fp8"].deprecated_at == "2027-01-31"
    assert (
        "@cf/qwen/qwen3-30b-a3b-fp8: deprecated_at: unknown -> 2027-01-31"
        in capsys.readouterr().out
    )
    assert refresh_catalog.main([str(tmp_path / "list.json")]) == 0
    assert capsys.readouterr().out == "Nothing differs but the day.\n"


@pytest.mark.parametrize("content", ["", "[]", LIST[:-9], '{"a": 1}'])
def test_list_that_is_not_believed_changes_nothing(file, tmp_path, capsys, content):
    before = file.read_bytes()
    (tmp_path / "list.json").write_text(content)

    assert refresh_catalog.main([str(tmp_path / "list.json")]) == 1

    assert file.read_bytes() == before
    assert "Nothing was changed." in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["nowhere.json"], 1)])
def test_missing_file_is_told(file, capsys, arguments, code):
    assert refresh_catalog.main(arguments) == code
    assert capsys.readouterr().err

"""`models` shows what the stack knows, and refreshes it: whole, or not at all."""

import json
import re

import pytest

from dropbatch.cli import cloudflare
from dropbatch.client import models
from dropbatch.client.stack import find_stack
from dropbatch.core import names
from dropbatch.core.models import catalog
from dropbatch.errors import Error
from tests.support.aws.resources import BUCKET, TABLE
from tests.support.converted import KIMI
from tests.support.listed import priced, rows, stored, with_properties
from tests.support.shipped import ROOT

BGE = "@cf/baai/bge-small-en-v1.5"
TODAY = catalog().read_on
"""Here; a stack's clock is behind."""


def listed(command):
    return json.loads(command.world.read(names.CATALOG))


def put_list(command, content):
    command.world.s3.put_object(Bucket=BUCKET, Key=names.CATALOG, Body=content)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "models.json"
    new = with_properties("@cf/new/thing", async_queue="true", price=priced(2), colour="red")
    path.write_text(json.dumps({"models": new}))
    return path


def test_refresh_shows_what_changes_and_keeps_it(command, file):
    done = command.run("models", "--refresh", "--from", file, "--yes", "--json")

    assert done.code == 0
    assert "@cf/new/thing: new, takes batches" in done.err
    assert "@cf/new/thing: new, takes batches" in done.json()[0]["changes"]
    kept = listed(command)
    assert kept["read_on"] == TODAY
    assert "colour" not in str(kept)
    shown = {one["id"]: one for one in command.run("models", "--json").json()}
    assert (shown["@cf/new/thing"]["input_price"], shown["@cf/new/thing"]["read_on"]) == (
        "2",
        TODAY,
    )

    again = command.run("models", "--refresh", "--from", file, "--yes")
    assert "Nothing differs but the day." in again.err


def test_refresh_asks_first(command, file, monkeypatch):
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)

    assert command.run("models", "--refresh", "--from", file).code == 0
    assert names.CATALOG not in command.world.objects()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "not all of one"),
        (json.dumps(rows()[:6]).encode(), "lacks 13 of the 19"),
        (json.dumps(with_properties(BGE, price=priced(-1))).encode(), "what cannot be"),
        (b'{"success":true}', "0 models"),
    ],
)
def test_list_that_nobody_believes_changes_nothing(command, file, content, says):
    file.write_bytes(content)
    done = command.run("models", "--refresh", "--from", file, "--yes")

    assert (done.code, names.CATALOG in command.world.objects()) == (1, False)
    assert "Nothing was changed." in done.err
    assert says in done.err


@pytest.mark.parametrize("begun", [True, False])
def test_of_two_refreshes_one_wins_whole(command, file, begun):
    if begun:
        put_list(command, stored(rows()))
    stack = find_stack("dropbatch")
    ours, theirs = models.known_models(stack), models.known_models(stack)
    models.store_list(stack, b"theirs", theirs.etag)

    with pytest.raises(Error, match="theirs counts"):
        models.store_list(stack, b"ours", ours.etag)
    assert command.world.read(names.CATALOG) == b"theirs"


def test_bad_list_is_told_and_what_is_shipped_is_shown(command):
    put_list(command, b"{}")
    done = command.run("models", "--json")

    assert f"Facts of {catalog().read_on}, " in done.err
    assert "shipped with this version" in done.err
    assert "catalog/models.json is not used: " in done.err
    assert {one["id"] for one in done.json()} == {one.id for one in catalog().models if one.batch}


def test_list_that_is_older_than_what_is_shipped_is_told(command):
    put_list(
        command, stored(with_properties("@cf/new/thing", async_queue="true"), day="2026-01-01")
    )
    done = command.run("models", "--json")

    assert "is older than what is shipped" in done.err
    assert "@cf/new/thing" not in done.out


def test_all_differs_and_shows_models_without_batches(command):
    put_list(command, stored(rows(BGE)))

    assert BGE not in command.run("models").out
    (line,) = [
        line for line in command.run("models", "--all").out.splitlines() if line.startswith(BGE)
    ]
    assert line.endswith("no batches")


def test_seconds_of_batches_are_shown(command):
    command.world.upload_records("a.jsonl", [{"text": "x"}], model=BGE)
    command.settle()

    shown = {one["id"]: one["batch_seconds"] for one in command.run("models", "--json").json()}
    assert 1 < shown.pop(BGE) < 60
    assert set(shown.values()) == {None}


def test_tokens_of_answers_are_shown(command):
    pk, sk = names.completion_times(KIMI)
    item = {
        "pk": {"S": pk},
        "sk": {"S": sk},
        "a0": {"N": "900"},
        "a1": {"N": "1100"},
        "a2": {"N": "4000"},
    }
    command.world.dynamodb.put_item(TableName=TABLE, Item=item)

    (line,) = [line for line in command.run("models").out.splitlines() if line.startswith(KIMI)]
    assert line.endswith("tokens  1,100 tokens out")


def test_put_warns_by_the_stacks_list(command, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"x"}\n')
    put_list(command, stored(rows(BGE)))

    done = command.run("put", path, "--model", BGE)
    assert f"{BGE} is not listed as a model that takes batches" in done.err


@pytest.mark.parametrize("total", [True, False])
def test_every_page_of_accounts_list_is_read(monkeypatch, total):
    asked = []

    class Paged(cloudflare.Api):
        def get(self, path):
            asked.append(path)
            page = int(path.rpartition("=")[2]) - 1
            info = {"result_info": {"total_count": len(rows())}} if total else {}
            return cloudflare.Reply(
                200, {}, {"success": True, "result": rows()[page * 9 : page * 9 + 9], **info}
            )

    found = json.loads(cloudflare.account_models(Paged("", "a" * 32, "token")))

    assert [one["name"] for one in found["result"]] == [one["name"] for one in rows()]
    assert len(asked) == (3 if total else 4)


def test_public_list_is_read_without_token(command, monkeypatch):
    monkeypatch.delenv("CLOUDFLARE_API_TOKEN", raising=False)
    asked = []

    def send(api, method, url, *_):
        asked.append((api.token, method, url))
        return cloudflare.Reply(200, {}, {"models": rows()})

    monkeypatch.setattr(cloudflare.Api, "send", send)
    done = command.run("models", "--refresh", "--yes")

    assert (done.code, asked) == (0, [("", "GET", cloudflare.PUBLIC_MODELS)])
    assert "CLOUDFLARE_API_TOKEN is not set" in done.err
    assert len(listed(command)["result"]) == len(rows())


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def shown(command):
    """The lines of docs/cli.md below a command."""
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    return (
        page.partition(f"\n$ {command}\n")[2].partition("```")[0].partition("\n$ ")[0].splitlines()
    )


def test_page_shows_validate_and_put_as_they_print(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.jsonl").write_text("\n".join(shown("cat reviews.jsonl")) + "\n")

    given = ("reviews.jsonl", "--model", "@cf/meta/m2m100-1.2b")
    warned, _ = shown(" ".join(["dropbatch", "put", *given]))

    assert command.run("validate", *given).out.splitlines() == shown(
        " ".join(["dropbatch", "validate", *given])
    )
    assert warned in command.run("put", *given).err.splitlines()


@pytest.mark.parametrize("arguments", [(), ("--all",)])
def test_page_shows_models_as_they_print(command, arguments):
    first, *wanted = shown(" ".join(["dropbatch", "models", *arguments]))
    done = command.run("models", *arguments)

    assert re.sub("[-0-9]+ days", "0 days", done.err.splitlines()[0]) == first
    assert wanted
    for line in wanted:
        without_seconds = re.sub(r"(tokens)  [0-9]+ s$", r"\1", line)
        assert without_seconds in done.out.splitlines()

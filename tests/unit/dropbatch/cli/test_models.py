"""`models` shows what is known of each model."""

import json

from click.testing import CliRunner

from dropbatch.cli.main import cli
from dropbatch.core.models import catalog


def lines(*arguments):
    result = CliRunner().invoke(cli, ["models", *arguments])
    assert result.exit_code == 0
    assert result.stderr.startswith(f"Facts of {catalog().read_on}, ")
    return result.stdout.splitlines()


def test_all_lists_models_without_batches():
    reranker = "@cf/baai/bge-reranker-base"
    assert not [line for line in lines() if line.startswith(reranker)]
    (line,) = [line for line in lines("--all") if line.startswith(reranker)]
    assert line.endswith("no batches")


def test_json_has_efforts_and_cached_price():
    shown = {one["id"]: one for one in map(json.loads, lines("--json"))}
    kimi = shown["@cf/moonshotai/kimi-k2.6"]
    assert (kimi["efforts"], kimi["cached_price"], kimi["context"]) == (
        ["high", "none"],
        "0.160",
        262_144,
    )
    assert kimi["read_on"] == catalog().read_on
    assert "0E" not in str(shown)

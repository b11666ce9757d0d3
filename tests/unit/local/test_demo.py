"""What `make demo` sends, and what `make try` starts."""

import json
import subprocess
from types import SimpleNamespace

import pytest

from local import aws, demo, try_api


def test_records_are_short_texts_with_names():
    records = list(demo.records())

    assert len(records) > 3_000
    assert len({record["external_reference"] for record in records}) == len(records)
    assert all(0 < len(record["text"]) <= demo.LONGEST_TEXT for record in records)
    assert "<" not in json.dumps(
        [record["text"] for record in records if record["external_reference"].startswith("s3.")]
    )


def test_demo_tells_calls_of_each_batch():
    told = demo.calls_of({"batches": [{"polls": 1}, {"polls": 2}], "events": "used"})
    assert told.startswith(
        "2 batches took 5 calls of Workers AI, 2.5 each: Cloudflare's completion"
    )
    told = demo.calls_of({"batches": [{"polls": 1}] * 3, "events": "none"})
    assert told == "3 batches took 6 calls of Workers AI, 2.0 each: by polls alone."


ENVIRONMENT = {"CLOUDFLARE_ACCOUNT_ID": "account", "CLOUDFLARE_API_TOKEN": "token"}


@pytest.fixture
def commands(monkeypatch):
    """The commands that were run, without a stack."""
    run = []
    monkeypatch.setattr(try_api, "check_token", lambda _: "")
    monkeypatch.setattr(aws, "up", lambda *_: {})
    monkeypatch.setattr(aws, "put_secret", lambda *_: None)
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **_: run.append(command) or SimpleNamespace(returncode=len(run)),
    )
    return run


def test_each_run_has_its_own_folder(commands, tmp_path):
    """A folder of results takes one job, and each run's stack makes a new one.

    Also of the same file.
    """
    for _ in range(2):
        try_api.run(tmp_path / "a.jsonl", "", ENVIRONMENT)

    first, second = (command[command.index("--get") + 1] for command in commands)
    assert first != second
    assert all(folder.startswith(f"{try_api.RESULTS}/") for folder in (first, second))

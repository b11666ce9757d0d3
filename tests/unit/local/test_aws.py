"""The environment of `make up`, and processes: only those started here are stopped."""

import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from local import aws, demo, processes, try_api
from local.processes import Service
from local.template import parse_parameters

PARAMETERS = {
    "": {},
    "A=7 Model=@cf/a/b": {"A": "7", "Model": "@cf/a/b"},
    "Source='a folder/' Level=DEBUG": {"Source": "a folder/", "Level": "DEBUG"},
    "Source=a folder/ Level=DEBUG": {"Source": "a folder/", "Level": "DEBUG"},
    "DefaultModel=": {"DefaultModel": ""},
}


def test_parameters_are_read_with_quotes_or_without():
    assert {text: parse_parameters(text) for text in PARAMETERS} == PARAMETERS


def test_word_without_parameters_name_is_error():
    with pytest.raises(aws.LocalAwsError, match=r"LOCAL_PARAMETERS: .*'seven'"):
        aws._parameters({"LOCAL_PARAMETERS": "seven"}, "http://127.0.0.1:1")


def test_outdated_service_is_restarted(folder, unused_port):
    service = Service("web", folder)
    command = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(unused_port)]
    service.start(command, {}, unused_port, "/")

    assert service.is_current(unused_port) is True
    with pytest.raises(aws.LocalAwsError, match="LOCAL_PORT"):
        Service("other", folder).start(command, {}, unused_port, "/")
    assert Service("web", folder, sources=("Makefile",)).is_current(unused_port) is False
    assert service.running() is None
    assert service.stop() is False


def test_service_that_fails_shows_end_of_its_log(folder, monkeypatch, unused_port):
    monkeypatch.setattr(processes, "ROOT", folder)

    with pytest.raises(aws.LocalAwsError, match="no such luck"):
        Service("web", folder).start(
            [sys.executable, "-c", "raise SystemExit('no such luck')"], {}, unused_port, "/"
        )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "logs").mkdir()
    return tmp_path


@pytest.fixture
def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
    assert told.startswith("2 batches took 5 calls of Workers AI, 2.5 each: Cloudflare's comp")
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
        try_api.run(tmp_path / "a.jsonl", {}, ENVIRONMENT)

    first, second = (command[command.index("--get") + 1] for command in commands)
    assert first != second
    assert all(folder.startswith(f"{try_api.RESULTS}/") for folder in (first, second))

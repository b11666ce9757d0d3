"""What the command line and the library say of a job is so."""

import json
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

import dropbatch
from dropbatch import Client
from dropbatch.client import aws
from dropbatch.client.stack import Stack
from tests.journeys.users.test_get import GOOD, LLAMA, M2M, job_of
from tests.support.aws.resources import BUCKET

BGE = "@cf/baai/bge-small-en-v1.5"

# ── how it ended ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def failed(command):
    """The path of an upload whose job fails as a whole."""
    command.world.upload("f.jsonl", "x\n", model=LLAMA)
    command.settle()
    return "f.jsonl"


def test_get_of_a_job_that_failed_says_so(command, failed, tmp_path):
    done = command.run("get", failed, "-o", tmp_path / "f")
    assert (done.code, (tmp_path / "f/manifest.json").exists()) == (1, True)
    assert "failed: unknown_format: " in done.err


# ── what it cost ──────────────────────────────────────────────────────────────────────────────────


def test_estimated_and_unknown_costs_of_several_jobs_are_not_shown_as_exact(command):
    jobs = [job_of(command, f"{name}.jsonl", GOOD) for name in "abc"]
    known = {
        "amount": "0.2500",
        "currency": "USD",
        "priced_at": "2026-07-09",
        "uncollected_batches": 0,
    }
    costs = (known | {"estimated": True}, None, known | {"estimated": False})
    for name, job, cost in zip("abc", jobs, costs, strict=True):
        key = f"results/{name}.jsonl/{job}/manifest.json"
        manifest = json.loads(command.world.read(key)) | {"cost": cost}
        command.world.s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(manifest).encode())

    done = command.run("wait", *jobs)

    shown = {
        name: line for line in done.out.splitlines() for name in "abc" if f"{name}.jsonl" in line
    }
    assert "~$0.2500" in shown["a"]
    assert "$" not in shown["b"]
    assert "~" not in shown["c"]
    assert "~$0.5000, cost of 1 not known." in done.err.splitlines()[-1]


# ── whether it is there ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def never_created(command, monkeypatch):
    """A job of the library whose upload the stack does not read yet."""
    monkeypatch.setattr(command.world, "deliver_all", lambda *_, **__: None)
    monkeypatch.setattr(type(command), "settle", lambda _: None)
    return Client("dropbatch").submit([{"text": "x"}], name="t.jsonl", model=BGE)


def test_time_limit_includes_the_creation_of_a_job(command, never_created):
    """Five minutes passed, and the job was said not to exist."""
    for wait in (
        never_created.wait,
        lambda timeout: list(dropbatch.wait([never_created], timeout=timeout)),
    ):
        began = command.world.now()
        with pytest.raises(dropbatch.TimedOut):
            wait(timeout=5)
        assert command.world.now() - began < 8

    began = command.world.now()
    done = command.run("wait", "t.jsonl", "--timeout", "5s")
    assert done.code == 6
    assert command.world.now() - began < 8


@pytest.fixture
def unreachable(monkeypatch):
    """Has every read of what was just stored fail."""
    ask = Stack.ask

    def fails(self, operation, key, **more):
        if operation == "head_object" and key.startswith("inbox/"):
            with aws.explained():
                raise EndpointConnectionError(endpoint_url="https://s3")
        return ask(self, operation, key, **more)

    monkeypatch.setattr(Stack, "ask", fails)


def records(tmp_path: Path):
    file = tmp_path / "i.jsonl"
    file.write_text(GOOD)
    return file


@pytest.mark.usefixtures("unreachable")
def test_upload_that_cannot_be_confirmed_is_said_to_be_there(command, tmp_path):
    done = command.run("put", records(tmp_path), "--model", M2M)
    assert done.code == 1
    assert "inbox/i.jsonl is uploaded, and its job will run" in done.err
    assert "list the jobs" in done.err

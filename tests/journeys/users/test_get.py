"""`get` and `report`; and what is said of a job is so."""

import json
from pathlib import Path

import pytest
from botocore.exceptions import EndpointConnectionError

import dropbatch
from dropbatch import Client
from dropbatch.client import aws
from dropbatch.client.stack import Stack
from local.workers_ai import Fault
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
GOOD = '{"text":"Hello","target_lang":"es"}\n'
FAILS = {"kind": "item_fails", "contains": "fail", "marker": "fail", "code": 5001}


def job_of(command, name="a.jsonl", body=GOOD * 2 + "nonsense\n", model=M2M):
    command.world.run(name, body, model=model)
    return command.run("status", name, "--json").json()[0]["job_id"]


def names_in(folder):
    return sorted(one.name for one in folder.iterdir())


def test_two_jobs_are_not_mixed(command, tmp_path):
    first, second = job_of(command), job_of(command, "b.jsonl", GOOD)
    command.run("get", first, "-o", tmp_path)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}

    done = command.run("get", second, "-o", tmp_path)

    assert done.code == 2
    assert first in done.err
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before

    assert command.run("get", second, "-o", tmp_path, "--force").code == 0
    assert names_in(tmp_path) == ["manifest.json", "output.jsonl"]
    assert json.loads((tmp_path / "manifest.json").read_text())["job_id"] == second


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("output.jsonl", []),
        ("manifest.json", []),
        ("output.parquet", ["--as", "parquet"]),
        ("output.merged.jsonl", ["--merged"]),
    ],
)
def test_file_of_others_is_not_replaced(command, tmp_path, name, options):
    job = job_of(command)
    (tmp_path / name).write_text("precious\n")

    done = command.run("get", job, "-o", tmp_path, *options)

    assert done.code == 2
    assert str(tmp_path / name) in done.err
    assert names_in(tmp_path) == [name]
    assert (tmp_path / name).read_text() == "precious\n"
    assert command.run("get", job, "-o", tmp_path, *options, "--force").code == 0
    assert (tmp_path / name).read_bytes() != b"precious\n"


@pytest.mark.parametrize("force", [[], ["--force"], ["--force", "--merged"]])
@pytest.mark.parametrize(
    "name", ["../precious.txt", "/precious.txt", "..", "a\\..\\b", "C:x", 7, None]
)
def test_manifest_never_leads_out_of_the_folder(command, tmp_path, force, name):
    job = job_of(command)
    key = f"results/a.jsonl/{job}/manifest.json"
    manifest = json.loads(command.world.read(key))
    manifest["files"][0] |= {"name": name, "sha256": None}
    command.world.s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(manifest).encode())
    for mine in ("precious.txt", "precious.txt.part"):
        (tmp_path / mine).write_text("mine")

    done = command.run("get", job, "-o", tmp_path / "out", *force)

    assert (done.code, "which is not the name of a result" in done.err) == (1, True)
    assert [(tmp_path / mine).read_text() for mine in ("precious.txt", "precious.txt.part")] == [
        "mine"
    ] * 2
    assert not (tmp_path / "out").exists()


def test_paths_that_cannot_be_written_exit_with_2(command, tmp_path):
    job = job_of(command)
    (tmp_path / "file").write_text("x")
    (tmp_path / "out" / "output.jsonl").mkdir(parents=True)

    for arguments in (
        ("get", job, "-o", tmp_path / "file" / "sub"),
        ("get", job, "-o", tmp_path / "out"),
        ("get", job, "-o", tmp_path / "out", "--force"),
        ("get", job, "-o", "/proc/x"),
        ("report", job, "-o", tmp_path / "nodir" / "r.html"),
        ("report", job, "-o", tmp_path / "file" / "r.html"),
    ):
        done = command.run(*arguments)
        assert (done.code, "Traceback" in done.err) == (2, False), arguments
        assert "cannot be written" in done.err or "exists" in done.err


def retried(command, api, body, name="a.csv", times=1):
    api.inject(Fault(**FAILS))
    job = job_of(command, name, body, LLAMA)
    api.clear_faults()
    for _ in range(times):
        command.world.pass_time(60)
        command.run("retry", job, "--wait")
    return job


def test_retry_that_cannot_be_placed_is_named(command, api, tmp_path):
    job = retried(command, api, '{"prompt":"fail a"}\n{"prompt":"fail b"}\n', "a.jsonl")
    command.world.pass_time(60)
    command.world.run("part.jsonl", '{"prompt":"other"}\n', model=LLAMA, **{"retry-of": job})

    done = command.run("get", job, "-o", tmp_path, "--merged")
    strict = command.run("get", job, "-o", tmp_path, "--merged", "--strict", "--json")

    (skipped,) = strict.json()[-1]["skipped"]
    assert (done.code, strict.code) == (0, 3)
    assert skipped["job_id"] in done.err
    assert "retries: 1" in done.out
    merged = [
        json.loads(line) for line in (tmp_path / "output.merged.jsonl").read_text().splitlines()
    ]
    assert [one["success"] for one in merged] == [True, True]
    with pytest.warns(UserWarning, match=f"Retry {skipped['job_id']} is skipped: "):
        assert [one.success for one in Client().job(job).results(merged=True)] == [True, True]


BGE = "@cf/baai/bge-small-en-v1.5"


@pytest.fixture
def failed(command):
    """The path of an upload whose job fails as a whole."""
    command.world.run("f.jsonl", "x\n", model=LLAMA)
    return "f.jsonl"


def test_get_of_a_job_that_failed_says_so(command, failed, tmp_path):
    done = command.run("get", failed, "-o", tmp_path / "f")
    assert (done.code, (tmp_path / "f/manifest.json").exists()) == (1, True)
    assert "failed: unknown_format: " in done.err


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

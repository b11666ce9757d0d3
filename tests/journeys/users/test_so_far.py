"""Answers of a job that still runs: in input order, each once, what the output will say; nothing is read twice."""

import json
from collections import Counter

import botocore.client
import pytest

from local.workers_ai import Fault
from tests.support.journeys.command_line import CommandLine

M2M = "@cf/meta/m2m100-1.2b"
LLAMA = "@cf/meta/llama-3.1-8b-instruct-fast"
HALF_AN_HOUR = 1_800.0


@pytest.fixture
def small(start, monkeypatch, capsys):
    """A command line on a stack with two records a batch."""
    return CommandLine(start(MAX_REQUESTS_PER_BATCH=2), monkeypatch, capsys)


@pytest.fixture
def read(monkeypatch):
    """Bytes that were read of each object, and calls of each operation."""
    real, bytes_, calls = botocore.client.BaseClient._make_api_call, Counter(), Counter()

    def call(client, operation, arguments):
        answer = real(client, operation, arguments)
        calls[operation] += 1
        if operation == "GetObject":
            bytes_[arguments["Key"].rpartition("/")[2].partition("-")[0]] += answer["ContentLength"]
        return answer

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)
    bytes_.calls = calls
    return bytes_


def upload(command, count, path="a.jsonl", model=M2M):
    command.world.upload_records(path, [{"text": f"text {n}.", "target_lang": "es"} for n in range(count)], model=model)


def run_until(command, pending):
    """Let AWS work until so many batches are not done."""

    def few():
        batches = [one for one in command.world.items() if "first_id" in one]
        return sum(one["state"]["S"] not in {"done", "divided"} for one in batches) <= pending

    command.world.settle(until=few)


def ids(path):
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("batches", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_all_but_a_stalled_batch_are_there(small, api, read, tmp_path, batches):
    api.inject(Fault(kind="stuck", contains="text 7.", seconds=HALF_AN_HOUR))
    upload(small, 2 * batches)
    run_until(small, 1)
    out = tmp_path / "answers.jsonl"
    read.clear()

    first = small.run("get", "a.jsonl", "--so-far", "-o", out)
    for _ in range(9):
        again = small.run("get", "a.jsonl", "--so-far", "-o", out)

    assert (first.code, again.code) == (0, 0), first.err + again.err
    assert ids(out) == [n for n in range(2 * batches) if n not in {6, 7}]
    assert f"{2 * batches - 2} records, {2 * batches - 2} new, 2 pending" in first.out
    assert f"{2 * batches - 2} records, 0 new, 2 pending" in again.out
    assert read["part"] == out.stat().st_size

    before = out.read_bytes()
    read.clear()
    small.settle()
    last = small.run("get", "a.jsonl", "--so-far", "-o", out)

    whole = small.world.read(f"{small.world.only_folder()}/output.jsonl")
    assert out.read_bytes() == whole
    assert "all of the job" in last.out
    assert set(before.splitlines()) < set(whole.splitlines())


@pytest.mark.parametrize("steps", [[1], [5, 3], [8, 6, 5, 2, 1], []])
def test_calls_at_any_time_make_the_output(small, api, tmp_path, steps):
    """Whatever was handed out before, also nothing; records that were never sent come from the output."""
    for number in (1, 6, 13):
        api.inject(Fault(kind="stuck", contains=f"text {number}.", seconds=HALF_AN_HOUR))
    api.inject(Fault(kind="item_fails", marker="text 3."))
    small.world.upload(
        "a.jsonl",
        "".join(
            "{bad\n" if n in (8, 9) else json.dumps({"text": f"text {n}.", "target_lang": "es"}) + "\n"
            for n in range(20)
        ),
        model=M2M,
    )
    out = tmp_path / "answers.jsonl"
    for pending in steps:
        run_until(small, pending)
        assert small.run("get", "a.jsonl", "--so-far", "-o", out).code == 0
    small.world.settle()

    done = small.run("get", "a.jsonl", "--so-far", "-o", out, "--json")

    assert done.code == 0, done.err
    assert out.read_bytes() == small.world.read(f"{small.world.only_folder()}/output.jsonl")
    assert (done.json()[0]["records"], done.json()[0]["pending"], done.json()[0]["over"]) == (20, 0, True)

"""Answers of a job that still runs: in input order, each once, what the output will say; nothing is read twice."""

import json
import sys
from collections import Counter, defaultdict
from functools import partial
from itertools import islice
from pathlib import Path

import botocore.client
import pytest

import dropbatch
from dropbatch.client.results import so_far, so_far_file
from dropbatch.client.results.handed_out import HandedOut
from dropbatch.errors import ConnectionLost, NotPermitted
from local.workers_ai import Fault
from tests.support.aws import iam
from tests.support.aws.resources import AWS_ACCOUNT, BUCKET
from tests.support.converted import LLAMA
from tests.support.journeys.command_line import CommandLine

M2M = "@cf/meta/m2m100-1.2b"
MINUTE, HALF_AN_HOUR = 60.0, 1_800.0
SLOW = partial(pytest.param, marks=pytest.mark.slow)


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


@pytest.mark.parametrize("batches", [12, SLOW(200)])
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


@pytest.mark.parametrize("steps", [SLOW([1]), SLOW([4, 2]), [4, 3, 3, 2, 1, 0], SLOW([])])
def test_calls_at_any_time_make_the_output(small, api, tmp_path, steps):
    """Whatever was handed out before, also nothing; records that were never sent come from the output."""
    for number in (1, 6, 13, 17):
        api.inject(Fault(kind="stuck", contains=f"text {number}.", seconds=3 * number * MINUTE))
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
    small.world.settle(minutes=120)

    done = small.run("get", "a.jsonl", "--so-far", "-o", out, "--json")

    assert done.code == 0, done.err
    assert out.read_bytes() == small.world.read(f"{small.world.only_folder()}/output.jsonl")
    assert (done.json()[0]["records"], done.json()[0]["pending"], done.json()[0]["over"]) == (20, 0, True)


def test_answers_so_far_are_no_upload(small, api, tmp_path):
    api.inject(Fault(kind="stuck", contains="text 3.", seconds=HALF_AN_HOUR))
    upload(small, 8)
    run_until(small, 1)
    (tmp_path / "b.jsonl").write_text('{"text":"x","target_lang":"es"}\n')
    assert small.run("get", "a.jsonl", "--so-far", "-o", tmp_path / "answers.jsonl").code == 0

    done = small.run("put", tmp_path, "--name", "next/", "--model", M2M)

    assert (done.code, small.world.objects("inbox/next/")) == (0, [f"inbox/next/{tmp_path.name}/b.jsonl"])
    assert f"left out: {tmp_path}/answers.jsonl (answers of job " in done.err


def chat(number):
    return {"messages": [{"role": "user", "content": f"text {number}."}]}


FILES = {
    "native": lambda n: json.dumps({"text": f"text {n}.", "target_lang": "es", "external_reference": n}),
    "openai": lambda n: json.dumps({"custom_id": f"r{n}", "url": "/v1/chat/completions", "body": chat(n)}),
    "csv": lambda n: f'{n},"text ""{n}.""\nand more"',
}


@pytest.mark.parametrize("format_", [SLOW("native"), SLOW("openai"), "csv"])
@pytest.mark.parametrize("steps", [SLOW([3]), [4, 2, 1], SLOW([])])
def test_library_gives_each_record_once(small, api, format_, steps):
    """In every format; also the rest of a batch whose first record was taken before."""
    for number in (1, 6, 13):
        api.inject(
            Fault(kind="stuck", contains=f"text {number}." if format_ != "csv" else f"{number}.", seconds=HALF_AN_HOUR)
        )
    api.inject(Fault(kind="item_fails", marker="3.", times=0))
    lines = [FILES[format_](n) for n in range(20)]
    lines[8] = "{bad" if format_ != "csv" else "8"
    header = ["id,text"] if format_ == "csv" else []
    small.world.upload(f"a.{format_}", "\n".join([*header, *lines]) + "\n", model=M2M if format_ == "native" else LLAMA)
    small.world.deliver_all()
    job = dropbatch.Client("dropbatch").job(f"a.{format_}")
    found = []
    for pending in steps:
        run_until(small, pending)
        taken = job.results(so_far=True)
        found += islice(taken, 3)
        taken.close()
        new = list(job.results(so_far=True))
        assert [one.id for one in new] == sorted(one.id for one in new)
        found += new
        assert job.pending == 20 - len(found)
    small.world.settle()
    found += job.results(so_far=True)

    assert sorted(found, key=lambda one: one.id) == list(job.results())
    assert len(found) == 20
    assert job.pending == 0
    assert list(job.results(so_far=True)) == []


def test_users_policy_is_enough(small, monkeypatch):
    """Also for a table's header; and of what is staged, users see nothing but answers."""
    small.world.upload("a.csv", "id,text\n1,a\n2,b\n3,c\n", model=LLAMA)
    run_until(small, 0)
    job = dropbatch.Client("dropbatch").job("a.csv")
    permissions = small.world.permissions
    names = defaultdict(str, {"Bucket.Arn": f"arn:aws:s3:::{BUCKET}", "AWS::AccountId": AWS_ACCOUNT})
    names["Table.Arn"] = "arn:aws:dynamodb:::table/ledger"
    policy = iam.grants("UserPolicy", names, {"UsesOwnKey": False, "UsesSource": False})
    permissions.granted = {**permissions.granted, "UserPolicy": policy}
    permissions.role = "UserPolicy"
    try:
        found = [one.external_reference for one in job.results(so_far=True)]
        monkeypatch.setattr(so_far, "ATTRIBUTES", (*so_far.ATTRIBUTES, "task_token"))
        with pytest.raises(NotPermitted):
            list(job.results(so_far=True))
        permissions.refused.clear()
    finally:
        permissions.role = ""

    assert found == ["1", "2", "3"]


def test_file_of_a_table_begins_with_its_header(small, api, tmp_path):
    api.inject(Fault(kind="stuck", contains="text 0", seconds=HALF_AN_HOUR))
    small.world.upload("a.csv", "id,text\n" + "".join(f"{n},text {n}\n" for n in range(9)), model=LLAMA)
    run_until(small, 1)
    out = tmp_path / "a.csv"

    small.run("get", "a.csv", "--so-far", "-o", out)

    assert out.read_text().splitlines()[0] == "id,text,answer,error_code,error_message"
    assert [line.partition(",")[0] for line in out.read_text().splitlines()[1:]] == [str(n) for n in range(2, 9)]
    small.world.settle()
    assert small.run("get", "a.csv", "--so-far", "-o", out).code == 0
    assert out.read_bytes() == small.world.read(f"{small.world.only_folder()}/output.csv")


def test_records_that_were_never_sent_come_at_the_end(small, api, tmp_path):
    api.inject(
        Fault(kind="stuck", contains="text 0.", seconds=HALF_AN_HOUR), Fault(kind="3040", on="submit", nth=4, times=0)
    )
    upload(small, 20)
    small.world.deliver_all()
    out = tmp_path / "a.jsonl"
    first = small.run("get", "a.jsonl", "--so-far", "-o", out)
    small.run("cancel", "a.jsonl")
    small.world.settle()

    done = small.run("get", "a.jsonl", "--so-far", "-o", out)

    assert (first.code, done.code) == (0, 0), done.err
    assert out.read_bytes() == small.world.read(f"{small.world.only_folder()}/output.jsonl")
    assert b"cancelled" in out.read_bytes()


@pytest.mark.parametrize("death", range(3))
def test_death_at_any_step_loses_and_doubles_nothing(small, api, tmp_path, monkeypatch, death):
    """At each of the replacements of the file and of what it says it has, and before them."""
    api.inject(Fault(kind="stuck", contains="text 3.", seconds=3 * MINUTE))
    api.inject(Fault(kind="stuck", contains="text 7.", seconds=HALF_AN_HOUR))
    upload(small, 20)
    run_until(small, 2)
    out = tmp_path / "a.jsonl"
    small.run("get", "a.jsonl", "--so-far", "-o", out)
    run_until(small, 1)
    real, steps = Path.replace, []

    def replace(path, target):
        steps.append(target)
        if len(steps) == death:
            sys.exit(9)
        return real(path, target)

    with monkeypatch.context() as dies:
        if death:
            dies.setattr(Path, "replace", replace)
        else:
            dies.setattr(so_far_file._State, "write", lambda *_: sys.exit(9))
        assert small.run("get", "a.jsonl", "--so-far", "-o", out).code == 9

    assert small.run("get", "a.jsonl", "--so-far", "-o", out).code == 0
    assert ids(out) == [n for n in range(20) if n not in {6, 7}]


def test_what_was_read_before_a_lost_connection_stays(small, tmp_path, monkeypatch, read):
    upload(small, 20)
    small.world.deliver_all()
    run_until(small, 0)
    out = tmp_path / "a.jsonl"
    real, opened = so_far.blocks, []

    def blocks(s3, place, size, start=0):
        if not start:
            opened.append(size)
            if len(opened) > 4:
                yield b'{"id":'
                raise ConnectionLost("AWS could not be reached.")
        yield from real(s3, place, size, start)

    monkeypatch.setattr(so_far, "blocks", blocks)
    monkeypatch.setattr(so_far.keys, "FINAL_JOB_STATES", frozenset())
    lost = small.run("get", "a.jsonl", "--so-far", "-o", out)
    monkeypatch.setattr(so_far, "blocks", real)
    assert (lost.code, ids(out)) == (1, list(range(8)))
    read.clear()

    assert small.run("get", "a.jsonl", "--so-far", "-o", out).code == 0
    assert ids(out) == list(range(20))
    assert read["part"] < out.stat().st_size


def test_other_files_are_not_touched(small, tmp_path):
    upload(small, 4)
    small.world.settle()
    out = tmp_path / "a.jsonl"
    out.write_text("mine\n")

    refused = small.run("get", "a.jsonl", "--so-far", "-o", out)

    assert (refused.code, out.read_text()) == (2, "mine\n")
    assert small.run("get", "a.jsonl", "--so-far", "-o", out, "--force").code == 0
    assert ids(out) == [0, 1, 2, 3]
    assert small.run("get", "a.jsonl", "a.jsonl", "x", "--so-far", "-o", out).code in {2, 5}
    assert small.run("get", "a.jsonl", "--so-far").code == 2


def test_file_that_does_not_match_is_written_anew_by_force(small, tmp_path):
    """It has the right size, so that only its digest shows that it was changed."""
    upload(small, 4)
    small.world.settle()
    out = tmp_path / "a.jsonl"
    assert small.run("get", "a.jsonl", "--so-far", "-o", out).code == 0
    whole = out.read_bytes()
    out.write_bytes(whole.replace(b'"id":2', b'"id":9'))

    refused = small.run("get", "a.jsonl", "--so-far", "-o", out)
    assert (refused.code, ids(out)) == (1, [0, 1, 9, 3])
    assert "--force" in refused.err

    assert small.run("get", "a.jsonl", "--so-far", "-o", out, "--force").code == 0
    assert out.read_bytes() == whole
    assert small.run("get", "a.jsonl", "--so-far", "-o", out).code == 0


def test_replaced_file_has_nothing_of_another_job_before_the_first_answer(small, tmp_path):
    upload(small, 4)
    small.world.deliver_all()
    out = tmp_path / "a.jsonl"
    out.write_text('{"id":0,"result":"of another job"}\n')

    assert small.run("get", "a.jsonl", "--so-far", "-o", out, "--force").code == 0
    assert out.read_bytes() == b""


def test_long_spans_are_not_read_again(small, api, tmp_path, monkeypatch, read):
    """The ledger is read on where a long span ends."""
    monkeypatch.setattr(so_far, "LONG_SPAN", 3)
    for number in (1, 17):
        api.inject(Fault(kind="stuck", contains=f"text {number}.", seconds=HALF_AN_HOUR))
    upload(small, 40)
    run_until(small, 2)
    out = tmp_path / "a.jsonl"
    small.run("get", "a.jsonl", "--so-far", "-o", out)
    seen = []
    real = so_far._items
    monkeypatch.setattr(so_far, "_items", lambda *given: (seen.append(given[1]) or one for one in real(*given)))

    assert small.run("get", "a.jsonl", "--so-far", "-o", out).code == 0

    assert ids(out) == [n for n in range(40) if n not in {0, 1, 16, 17}]
    assert len(seen) <= 1 + 6


def test_job_that_has_not_begun_has_nothing_yet(small, tmp_path):
    upload(small, 4)
    out = tmp_path / "a.jsonl"

    done = small.run("get", "a.jsonl", "--so-far", "-o", out)

    assert (done.code, out.read_bytes()) == (0, b"")
    assert "0 records, 0 new, the rest is not known yet" in done.out


def test_pieces_of_a_divided_batch_come_one_by_one(start, monkeypatch, capsys, api, tmp_path):
    """Its bad record is found while a piece is stalled, and others are tried again."""
    command = CommandLine(start(MAX_REQUESTS_PER_BATCH=8), monkeypatch, capsys)
    api.inject(Fault(kind="batch_fails", contains="text 3.", times=0, code=3030))
    api.inject(Fault(kind="stuck", contains="text 5.", nth=2, seconds=HALF_AN_HOUR))
    api.inject(Fault(kind="item_fails", marker="text 12.", first=1))
    upload(command, 16)
    out = tmp_path / "a.jsonl"
    seen = []
    for pending in (3, 2, 1, 0):
        run_until(command, pending)
        assert command.run("get", "a.jsonl", "--so-far", "-o", out).code == 0
        seen.append(out.read_bytes().splitlines())
    command.world.settle()

    assert command.run("get", "a.jsonl", "--so-far", "-o", out).code == 0
    whole = command.world.read(f"{command.world.only_folder()}/output.jsonl")
    assert out.read_bytes() == whole
    assert all(set(lines) <= set(whole.splitlines()) for lines in seen)
    assert any(0 < len(lines) < 16 for lines in seen)
    assert [line["success"] for line in map(json.loads, whole.splitlines())].count(False) == 1


def test_batch_without_lines_is_still_to_come(small, tmp_path):
    """Nothing of it could be written: it is done, and names no part."""
    upload(small, 6)
    run_until(small, 0)
    job = dropbatch.Client("dropbatch").job("a.jsonl")
    items = list(so_far._items(job, "BATCH#", "BATCH#~"))
    del items[1]["part"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(so_far, "_items", lambda *_: items)
        found = [one.first for one in so_far._done_batches(job, HandedOut())]

    assert found == [0, 4]

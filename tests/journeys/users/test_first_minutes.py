"""What somebody meets first: names for jobs and files, hints that can be typed, exit codes."""

import csv
import json
import re
import shutil

import pyarrow as pa
import pytest
from pyarrow import parquet

from dropbatch.cli import context
from local.workers_ai import Fault
from tests.support.aws.resources import BUCKET
from tests.support.terminal import run_alone

M2M = "@cf/meta/m2m100-1.2b"
BGE = "@cf/baai/bge-small-en-v1.5"
LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
TABLE = "id,text\n17,The room was clean.\n18,We heard the lift.\n"
GOOD = '{"text":"x","target_lang":"es"}\n'
EVERY_VERB = ("status", "wait", "get", "report", "retry", "cancel", "pause", "resume")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(command, here, name="reviews.csv", content=TABLE, *more):
    """Put a file and run its job; return the job's id."""
    (here / name).write_text(content)
    arguments = more or ("--model", LLAMA, "--template", "In Spanish: {text}")
    (made,) = command.run("put", name, *arguments, "--json").json()
    command.settle()
    return made["job_id"]


def test_output_goes_to_a_file_or_to_standard_output(command, here):
    put(command, here)
    for options, place in (([], "answers.csv"), (["--merged"], "newest.csv")):
        done = command.run("get", "reviews.csv", "-o", place, *options)
        assert (done.code, done.out) == (0, f"{place}\n")
        rows = list(csv.reader((here / place).read_text().splitlines()))
        assert [row[0] for row in rows] == ["id", "17", "18"]
    assert command.run("get", "reviews.csv", "-o", "-").out == (here / "answers.csv").read_text()
    command.run("get", "reviews.csv", "-o", "answers.parquet", "--as", "parquet")
    assert parquet.read_table("answers.parquet").num_rows == 2

    names = {"answers.csv", "answers.parquet", "newest.csv", "reviews.csv"}
    assert {one.name for one in here.iterdir()} == names, "nothing else was left"
    done = command.run("get", "reviews.csv", "-o", "answers.csv")
    assert (done.code, "--force" in done.err) == (2, True)
    assert command.run("get", "reviews.csv", "-o", "answers.csv", "--force").code == 0


def test_standard_output_is_clean_where_it_is_piped(command, here):
    """Progress and hints go elsewhere, in the first run and in the one that finds all there."""
    asked = ("put", "reviews.csv", "--model", LLAMA, "--template", "{text}", "--get", "out")
    (here / "reviews.csv").write_text(TABLE)
    for said in ("", "  is there already"):
        job, *files = command.run(*asked).out.splitlines()
        assert re.fullmatch(rf"s3://\S+/inbox/reviews\.csv  job \S+{said}", job)
        assert files == ["out/output.csv", "out/manifest.json"]
        output = (here / "out/output.csv").read_text()
        assert command.run("get", "reviews.csv", "-o", "-").out == output


def test_name_without_suffix_or_with_slash_is_a_folder(command, here):
    put(command, here)
    for place in ("out", "out.d/"):
        command.run("get", "reviews.csv", "-o", place)
        assert (here / place / "output.csv").exists()
    done = command.run("get", "*", "-o", "-")
    assert (done.code, done.out) == (2, "")


def test_end_of_an_id_is_taken_by_every_verb(command, here):
    job = put(command, here)
    for verb in EVERY_VERB:
        done = command.run(verb, job[-8:])
        assert "No upload" not in done.err, verb
        assert job in done.out + done.err, verb
    key = f"results/_jobs/20200101T000000Z-{job[-8:]}.json"
    command.world.s3.put_object(Bucket=BUCKET, Key=key, Body=b'{"path":"b"}')

    done = command.run("status", job[-8:])
    assert (done.code, "Write the whole id" in done.err) == (2, True)


def test_job_is_named_by_the_file_that_was_put(command, here):
    (here / "data").mkdir()
    table = pa.table({"id": ["17"], "text": ["The room was clean."]})
    parquet.write_table(table, "data/r2.parquet")
    (made,) = command.run("put", "data/r2.parquet", "--model", BGE, "--json").json()
    command.settle()
    for name in ("data/r2.parquet", "r2.parquet", "r2.csv"):
        (found,) = command.run("status", name, "--json").json()
        assert found["job_id"] == made["job_id"], name
    shutil.rmtree("data")
    assert command.run("get", "data/r2.parquet").code == 5


def test_retry_takes_another_model_and_gets_the_answers(command, api, here):
    api.inject(Fault(kind="item_fails", contains="fail", marker="fail", code=5001))
    put(command, here, "a.jsonl", GOOD + GOOD.replace('"x"', '"fail"'), "--model", M2M)
    assert command.run("retry", "a.jsonl", "--model", BGE, "--get", "again").code == 0

    manifest = json.loads((here / "again/manifest.json").read_text())
    assert (manifest["model"], manifest["counts"]["total"]) == (BGE, 1)


def test_validate_takes_what_put_takes(command, here, monkeypatch):
    (here / "in").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (here / "in" / name).write_text(GOOD)
    command.world.upload("c.jsonl", GOOD + '{"text":""}\n', model=M2M)

    done = command.run("validate", "in", f"s3://{BUCKET}/inbox/c.jsonl", "--model", M2M, "--json")

    assert done.code == 1
    assert [(one["path"], one["bad"]) for one in done.json()] == [
        ("in/a.jsonl", 0),
        ("in/b.jsonl", 0),
        ("c.jsonl", 1),
    ]
    named = command.run("validate", "in", "--model", M2M).out
    assert named.count("file      ") == 2


def test_hints_repeat_the_options_that_chose_the_stack(command, here):
    command.add_stack("my stack", command.stacks["dropbatch"]["Outputs"] and {"BucketName": BUCKET})
    put(command, here, "a.jsonl", GOOD + '{"text":""}\n', "--model", M2M)
    for given, said in ((("--stack", "my stack"), "--stack 'my stack' "), ((), "")):
        assert f"`dropbatch {said}report " in command.run("wait", "a.jsonl", *given).err
        assert f"(`dropbatch {said}ls` lists jobs)" in command.run("get", "none", *given).err


def test_local_stack_is_named_to_whom_it_may_be_meant(here):
    (here / "stack.json").write_text("{}")
    known = {"DROPBATCH_LOCAL": str(here / "stack.json"), "AWS_REGION": "eu-west-1"}
    assert run_alone("ls", **known).stderr.endswith(f"{context.RUNS_HERE}\n")
    assert context.RUNS_HERE not in run_alone("ls", AWS_REGION="eu-west-1").stderr


def test_operators_verbs_stand_apart():
    users, _, operators = run_alone("--help").stdout.partition("\nFor operators:\n")
    assert [line.split()[0] for line in operators.splitlines()] == ["doctor", "redrive"]
    assert "Commands:\n  put " in users


def test_job_that_ended_before_its_upload_was_read_says_so(command, here):
    job = put(command, here)
    key = f"results/reviews.csv/{job}/manifest.json"
    manifest = json.loads(command.world.read(key)) | {"read_to_end": False}
    manifest["batches"][0]["attempts"] = 0
    command.world.s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(manifest).encode())
    for options, code in (([], 0), (["--strict"], 3)):
        done = command.run("wait", job, *options)
        assert done.code == code
        assert "2 records not sent." in done.err
        assert "the rest was not sent" in done.err


def test_row_that_does_not_fit_has_a_short_id_and_no_columns(monkeypatch):
    cells = ("completed  ", f"{'8 s':>10}", f"{'2':>15}", " " * 12, "reviews.csv", "")
    wide = context.row_of("20261127T234619Z-0a6bd716", *cells)
    assert (
        wide == f"20261127T234619Z-0a6bd716  completed    {'8 s':>10}  {'2':>15}{'':16}reviews.csv"
    )
    monkeypatch.setattr(context.sys.stdout, "isatty", lambda: True)
    for columns, row in ((120, wide), (50, "0a6bd716  completed  8 s  2  reviews.csv")):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert context.row_of("20261127T234619Z-0a6bd716", *cells) == row

"""The command line where streams are closed or broken."""

import io
import sys
from fnmatch import fnmatch

import pytest

from dropbatch.cli import main as cli
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M

GOOD = '{"text":"x","target_lang":"es"}\n'


@pytest.fixture
def done(command, monkeypatch, tmp_path):
    """One job that is over."""
    monkeypatch.chdir(tmp_path)
    command.world.run("a.jsonl", GOOD, model=M2M)
    (tmp_path / "b.jsonl").write_text(GOOD)
    return command


def test_standard_input_that_cannot_be_read_is_said(done, monkeypatch, subtests):
    for verb in ("put - --model x", "cancel -", "status -", "get -", "wait -", "retry -", "pause"):
        monkeypatch.setattr(sys, "stdin", None)
        with subtests.test(verb):
            ended = done.run(*verb.split())
            assert (ended.code, ended.err.count("\n")) == (2, 1)
    for verb in ("cancel -", "status -", "get -", "wait -", "retry -"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), "utf-8"))
        with subtests.test(f"{verb}: no text"):
            ended = done.run(*verb.split())
            assert (ended.code, ended.err.count("\n")) == (5, 1)


VERBS = [
    "ls",
    "status a.jsonl",
    "status a.jsonl a.jsonl",
    "get a.jsonl",
    "get a* -o out",
    "wait a.jsonl",
    "wait a*",
    "cancel a.jsonl",
    "retry a.jsonl",
    "report a.jsonl",
    "models",
    "put b.jsonl --wait --model " + M2M,
]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_closed_output_changes_no_exit_code(done, monkeypatch, subtests, stream):
    for verb in VERBS:
        with subtests.test(verb), monkeypatch.context() as closed:
            expected = done.run(*verb.split()).code
            closed.setattr(sys, stream, None)
            with pytest.raises(SystemExit) as ended:
                cli.main()
            getattr(sys, stream).close()
            assert int(ended.value.code or 0) == expected


@pytest.mark.parametrize("name", ["a.jsonl/*/status.json", "a.jsonl/*/manifest.json", "_jobs/*"])
def test_object_that_was_changed_is_no_stack_trace(done, subtests, name):
    found = done.world.objects("results/")
    (key,) = [one for one in found if fnmatch(one, f"results/{name}")]
    job_id = next(one for one in found if "_jobs/" in one)[len("results/_jobs/") : -len(".json")]
    for verb in (*VERBS, "status ID", "wait " + "ID " * 9):
        for body in (b"{", b"{}", b"\xff"):
            done.world.s3.put_object(Bucket=BUCKET, Key=key, Body=body)
            with subtests.test(verb, body=body):
                ended = done.run(*verb.replace("ID", job_id).split())
                assert (ended.code in {0, 1, 5}, "was changed" in ended.out + ended.err) == (
                    True,
                    ended.code == 1,
                )


def test_wrong_options_file_is_named(done, subtests):
    for options in (b"{", b"[]", b'{"model": 1}', b"\xff", b'{"modle": "x"}'):
        done.world.s3.put_object(Bucket=BUCKET, Key="inbox/_options.json", Body=options)
        with subtests.test(options=options):
            ended = done.run("put", "b.jsonl")
            assert (ended.code, ended.err.count("\n"), "_options.json" in ended.err) == (2, 1, True)


ODD = {
    "put . --model x --get b.jsonl": 2,
    "put b.jsonl/x": 2,
    "put s3://": 2,
    "get a.jsonl -o b.jsonl": 2,
    "get a.jsonl -o b.jsonl/x": 2,
    "report a.jsonl -o .": 2,
    "report a.jsonl -o b.jsonl/x": 2,
    "status \udcff": 5,
}


def test_name_of_the_wrong_kind_is_said(done, subtests):
    for verb, code in ODD.items():
        with subtests.test(ascii(verb)):
            ended = done.run(*verb.split())
            assert (ended.code, ended.out, bool(ended.err)) == (code, "", True)

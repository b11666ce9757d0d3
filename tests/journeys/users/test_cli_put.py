"""`put`: what is uploaded of files, folders, frames and names."""

import gzip
import json

import pytest

from tests.support.aws.resources import BUCKET

BGE = "@cf/baai/bge-small-en-v1.5"
M2M = "@cf/meta/m2m100-1.2b"
GOOD = '{"text":"x","target_lang":"es"}\n'


@pytest.fixture
def folder(tmp_path):
    top = tmp_path / "reviews"
    (top / "july/_old").mkdir(parents=True)
    (top / ".git").mkdir()
    for name in (
        "a.jsonl",
        "july/b.jsonl",
        "july/.hidden",
        "july/_options.json",
        "july/_old/c.jsonl",
        ".git/config",
    ):
        (top / name).write_text(GOOD)
    return top


def test_put_of_folder_keeps_its_paths(command, folder):
    done = command.run("put", folder, "--name", "mine/", "--model", M2M)

    assert done.code == 0
    assert command.world.objects("inbox/") == [
        "inbox/mine/reviews/a.jsonl",
        "inbox/mine/reviews/july/b.jsonl",
    ]
    assert sorted(line.removeprefix(f"left out: {folder}/") for line in done.err.splitlines()) == [
        ".git",
        "july/.hidden",
        "july/_old",
        "july/_options.json",
    ]


# ── what the stack would refuse ───────────────────────────────────────────────────────────────────

REFUSED = {
    "prose": (
        "a.jsonl",
        b"only prose\n",
        ["--format", "csv", "--template", "{nothing}"],
        2,
        "nothing",
    ),
    "zip": ("a.jsonl", b"PK\x03\x04" + bytes(100), [], 1, "unknown_format"),
    "broken": ("a.jsonl.gz", gzip.compress(GOOD.encode() * 9)[:-20] + b"x" * 12, [], 1, ""),
    "template": ("a.jsonl", GOOD.encode(), ["--template", "text"], 2, "it names no column"),
    "member": ("a.jsonl", GOOD.encode(), ["--template", "{review}"], 1, "no column 'review'"),
    "model": ("a.jsonl", GOOD.encode(), ["--model", "gpt-4"], 2, "gpt-4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_stack_would_refuse_is_not_sent(command, tmp_path, case):
    name, content, options, code, says = REFUSED[case]
    (tmp_path / name).write_bytes(content)
    options = options if "--model" in options else [*options, "--model", M2M]

    done = command.run("put", tmp_path / name, *options)

    assert (done.code, says in done.err) == (code, True)
    assert command.world.objects("inbox/") == []
    assert command.run("put", tmp_path / name, *options, "--no-check").code == 0
    command.settle()
    manifest = command.world.manifest()
    assert manifest["state"] == "failed" or manifest["counts"] == {
        "total": 1,
        "succeeded": 0,
        "failed": 1,
    }


def test_unknown_model_is_sent_unchecked_alone(command, tmp_path):
    (tmp_path / "a.jsonl").write_text(GOOD)
    model = "@cf/meta/m2m100-1.2"

    done = command.run("put", tmp_path / "a.jsonl", "--model", model)

    assert (done.code, command.world.objects("inbox/")) == (2, [])
    assert f"{model}. Did you mean {M2M}? (`put --no-check` sends it" in done.err
    assert command.run("validate", tmp_path / "a.jsonl", "--model", model).code == 1
    assert command.run("put", tmp_path / "a.jsonl", "--model", model, "--no-check").code == 0
    command.settle()
    assert command.world.manifest()["model"] == model


TWICE = [
    ("-o", "max_cost=1", "-o", "max-cost=2"),
    ("-o", "max_cost=1", "-o", "max_cost=2"),
    ("--model", M2M, "-o", f"model={BGE}"),
    ("--model", M2M, "--model", BGE),
    ("--format", "csv", "-o", "Format=tsv"),
]


@pytest.mark.parametrize("verb", ["put", "validate"])
@pytest.mark.parametrize("given", TWICE, ids=" ".join)
def test_two_values_of_one_option_are_refused(command, tmp_path, verb, given):
    (tmp_path / "a.jsonl").write_text(GOOD)

    done = command.run(verb, tmp_path / "a.jsonl", "--model", M2M, *given)

    assert (done.code, command.world.objects("inbox/")) == (2, [])
    assert "Write it once." in done.err


def test_nearest_options_file_counts_in_check(command, tmp_path):
    (tmp_path / "a.csv").write_text("title,note\nx,y\n")
    put = ("put", tmp_path / "a.csv", "--model", BGE, "--name")
    assert command.run(*put, "x/y/").code == 2  # Which column?
    drop = command.world.s3.put_object
    drop(Bucket=BUCKET, Key="inbox/x/_options.json", Body=json.dumps({"template": "{title}"}))

    assert command.run(*put, "x/y/").code == 0
    drop(Bucket=BUCKET, Key="inbox/x/y/_options.json", Body=json.dumps({"tags": {}}))
    assert command.run(*put, "x/y/").code == 2


@pytest.mark.parametrize(("default", "code"), [("", 2), (M2M, 0)])
def test_default_model_of_stack_counts_in_check(command, tmp_path, default, code):
    (tmp_path / "a.jsonl").write_text(GOOD)
    command.add_stack("other", {"BucketName": BUCKET}, {"DefaultModel": default})

    done = command.run("put", tmp_path / "a.jsonl", "--stack", "other")

    assert (done.code, bool(command.world.objects("inbox/"))) == (code, code == 0)
    assert ("No model was named" in done.err) == (code == 2)


def test_option_that_is_gone_says_what_there_is(command, tmp_path):
    (tmp_path / "a.jsonl").write_text(GOOD)

    done = command.run("put", tmp_path / "a.jsonl", "--task-token", "secret")

    assert (done.code, command.world.objects("inbox/")) == (2, [])
    assert "--task-token: It is gone since 0.9. Have the execution wait" in done.err
    assert "secret" not in done.err

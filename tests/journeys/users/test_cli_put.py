"""`put`, what may be named how, and what works offline."""

import json

import pytest
from botocore.exceptions import EndpointConnectionError

from tests.support.aws.resources import BUCKET
from tests.support.terminal import run_alone
from tests.support.translations import M2M

BGE = "@cf/baai/bge-small-en-v1.5"
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


ID = "20261121T093000Z-00000000"


def dropped(command, path):
    """Upload to a path, run the job, and return its id."""
    before = set(command.world.manifests())
    command.world.run(path, GOOD, model=M2M)
    (folder,) = set(command.world.manifests()) - before
    return folder.rpartition("/")[2]


def meant(command, name):
    return command.run("status", name, "--json").json()[0]["job_id"]


def test_name_means_one_job(command):
    mine = dropped(command, "results/a.jsonl")
    command.world.pass_time(60)
    other = dropped(command, "a.jsonl")

    assert meant(command, "results/a.jsonl") == mine
    assert meant(command, "inbox/results/a.jsonl") == mine
    assert meant(command, f"results/results/a.jsonl/{mine}/output.jsonl") == mine
    assert meant(command, f"results/a.jsonl/{other}/") == other
    assert meant(command, f"downloads/{mine}/output.jsonl") == mine
    assert meant(command, "a.jsonl") == other
    assert command.run("cancel", "results/a.jsonl", "--json").json()[0]["job_id"] == mine


def test_name_means_newest_upload_before_it_has_a_job(command, tmp_path):
    old = dropped(command, "a.jsonl")
    command.world.pass_time(60)
    (tmp_path / "a.jsonl").write_text(GOOD)
    (put,) = command.run("put", tmp_path / "a.jsonl", "--model", M2M, "--json").json()

    assert put["job_id"] != old
    assert command.run("status", "a.jsonl", "--json").json() == [{"state": "uploaded"}]
    assert command.run("cancel", "a.jsonl", "--json").json() == [
        {"job_id": put["job_id"], "control": "cancel"}
    ]
    command.settle()
    assert command.run("status", "a.jsonl", "--json").json()[0]["state"] == "cancelled"


@pytest.mark.parametrize(
    "name", ["results/nothing/" + ID, ID, "no/such.jsonl", "inbox/no/such.jsonl", "/"]
)
def test_commands_for_what_does_not_exist_exit_with_5(command, name):
    began = command.world.now()
    for verb in ("status", "wait", "get", "cancel", "retry", "report", "pause", "resume"):
        done = command.run(verb, name)
        assert (verb, done.code, done.out, name in done.err) == (verb, 5, "", True)
    assert command.world.now() - began <= 60
    assert command.world.objects("control/") == []


@pytest.mark.parametrize(
    "verb", ["status", "wait", "get", "cancel", "report", "pause --yes", "pause", "resume"]
)
def test_empty_name_of_unset_variable_is_no_job_and_not_all(command, verb):
    done = command.run(*verb.split(), "")

    assert (done.code, done.out, "No upload '' has a job" in done.err) == (5, "", True)
    assert command.world.objects("control/") == []


def test_wait_ends_after_five_minutes_without_job(command, monkeypatch):
    command.world.upload("a.jsonl", GOOD, model=M2M)
    monkeypatch.setattr("dropbatch.client.wait.time.sleep", command.world.pass_time)
    monkeypatch.setattr("dropbatch.client.wait.time.monotonic", command.world.now)
    began = command.world.now()

    done = command.run("wait", "a.jsonl")

    assert (done.code, "no job after 300 seconds" in done.err) == (5, True)
    assert 300 <= command.world.now() - began < 330


def test_wait_outlives_lost_connections(command, before_calls):
    command.world.upload("a.jsonl", GOOD, model=M2M)
    command.world.deliver_all()
    reads = []

    def lose(operation, arguments):
        if operation == "GetObject" and arguments["Key"].endswith(("status.json", "manifest.json")):
            reads.append(arguments["Key"])
            if len(reads) in (2, 3, 5):
                raise EndpointConnectionError(endpoint_url="https://s3.eu-west-1.amazonaws.com")

    before_calls(lose)

    done = command.run("wait", "a.jsonl")

    assert done.code == 0
    assert "connection_lost" in done.err
    assert len(reads) > 5


@pytest.mark.parametrize("arguments", [("--stack", "other", "ls"), ("ls", "--stack", "other")])
def test_stack_is_named_before_or_after_verb(command, arguments):
    command.add_stack("other", {})

    done = command.run(*arguments)

    assert (done.code, '"other" is not a Dropbatch stack' in done.err) == (5, True)


@pytest.mark.parametrize("arguments", [("--stack", "", "resume"), ("resume", "--stack", "")])
def test_empty_name_is_no_stack(command, arguments):
    done = command.run(*arguments)

    assert (done.code, "'--stack': It is empty" in done.err) == (2, True)
    assert command.world.objects("control/") == []


HELLO = '{"text":"Hello","source_lang":"en","target_lang":"fr"}\n'


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.jsonl"
    path.write_text(HELLO + "nonsense\n" + HELLO)
    return str(path)


@pytest.mark.parametrize("asked", [(), ("--offline",)])
def test_file_is_checked_without_stack(tmp_path, reviews, asked):
    done = run_alone("validate", reviews, "--model", M2M, *asked)

    assert done.returncode == 1, done.stderr
    assert "records   3 in 119 bytes" in done.stdout
    assert "batches   1, about 3 calls" in done.stdout
    assert "line 2: invalid_json" in done.stdout
    assert ("no stack was found" in done.stderr) is not asked


def test_options_of_the_folder_are_the_stacks(command, reviews):
    command.world.upload("a/_options.json", json.dumps({"model": M2M, "tags": {"team": "x"}}))
    before = command.world.objects()

    (alone,), (known,) = (
        command.run("validate", reviews, "--name", "a/", "--json", *asked).json()
        for asked in (["--offline"], [])
    )

    assert command.world.objects() == before
    assert alone["error"]["code"] == "no_model"
    assert (known["error"], known["bad"]) == (None, 1)
    assert known["options"] == {"model": M2M, "tags": {"team": "x"}}

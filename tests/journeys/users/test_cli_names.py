"""Which job a name on the command line means, which stack."""

import botocore.client
import pytest
from botocore.exceptions import EndpointConnectionError

M2M = "@cf/meta/m2m100-1.2b"
GOOD = '{"text":"x","target_lang":"es"}\n'
ID = "20261121T093000Z-00000000"


def dropped(command, path):
    """Upload to a path, run the job, and return its id."""
    before = set(command.world.manifests())
    command.world.upload(path, GOOD, model=M2M)
    command.settle()
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


def test_wait_outlives_lost_connections(command, monkeypatch):
    command.world.upload("a.jsonl", GOOD, model=M2M)
    command.world.deliver_all()
    real, reads = botocore.client.BaseClient._make_api_call, []

    def call(client, operation, arguments):
        if operation == "GetObject" and arguments["Key"].endswith(("status.json", "manifest.json")):
            reads.append(arguments["Key"])
            if len(reads) in (2, 3, 5):
                raise EndpointConnectionError(endpoint_url="https://s3.eu-west-1.amazonaws.com")
        return real(client, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)

    done = command.run("wait", "a.jsonl")

    assert done.code == 0
    assert "connection_lost" in done.err
    assert len(reads) > 5


# ── which stack ───────────────────────────────────────────────────────────────────────────────────


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

"""The command line without permission."""

import json

import botocore.client
import pytest
from botocore.exceptions import ClientError

from tests.support.aws.resources import BUCKET
from tests.support.converted import LLAMA
from tests.support.translations import M2M

GOOD = '{"text":"x","target_lang":"es"}\n'
FREE = {"DescribeStacks", "DescribeStackResources"}
"""What every user may call: it finds the stack."""


@pytest.fixture
def finished(command):
    command.world.upload("a.jsonl", GOOD + "nonsense\n" + GOOD, model=M2M)
    command.settle()


def deny(monkeypatch, *operations):
    """AWS denies these operations, or all that are not free."""
    real = botocore.client.BaseClient._make_api_call

    def call(client, operation, arguments):
        if operation in operations or (not operations and operation not in FREE):
            raise ClientError(
                {"Error": {"Code": "AccessDenied", "Message": "no policy allows it"}}, operation
            )
        return real(client, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)


@pytest.mark.parametrize(
    "arguments",
    [
        ["put", "{file}", "--model", M2M],
        ["ls"],
        ["status", "a.jsonl"],
        ["wait", "a.jsonl"],
        ["get", "a.jsonl"],
        ["report", "a.jsonl"],
        ["retry", "a.jsonl"],
        ["cancel", "a.jsonl"],
        ["pause", "a.jsonl"],
        ["pause", "--yes"],
        ["resume"],
        ["redrive"],
    ],
    ids=" ".join,
)
def test_denied_verb_says_what_is_missing(command, finished, monkeypatch, tmp_path, arguments):
    file = tmp_path / "b.jsonl"
    file.write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    deny(monkeypatch)

    ended = command.run(*(one.format(file=file) for one in arguments))

    assert ended.code == 4
    assert "AWS denied " in ended.err
    assert "UserPolicyArn" in ended.err
    assert "Traceback" not in ended.err


@pytest.fixture
def forbids_missing(monkeypatch):
    """S3 answers 403 for a missing key, as to a caller who may list some prefixes only."""
    real = botocore.client.BaseClient._make_api_call
    listed = []

    def call(client, operation, arguments):
        if operation == "ListObjectsV2":
            listed.append(arguments["Prefix"])
        try:
            return real(client, operation, arguments)
        except ClientError as error:
            if operation == "GetObject" and error.response["Error"]["Code"] == "NoSuchKey":
                raise ClientError(
                    {"Error": {"Code": "AccessDenied", "Message": "not listed"}}, operation
                ) from error
            raise

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)
    return listed


def test_missing_key_is_missing_though_s3_says_denied(command, finished, forbids_missing):
    """The users' policy lets nobody list without a prefix."""
    missing = "20200101T000000Z-00000000"

    ended = command.run("status", missing)

    assert (ended.code, "There is no job" in ended.err) == (5, True)
    assert forbids_missing == [f"results/_jobs/{missing}.json"]
    command.run("doctor")
    assert "control/stack" in forbids_missing


@pytest.mark.parametrize("many", [False, True])
def test_file_is_not_refused_for_options_that_nobody_may_read(command, monkeypatch, tmp_path, many):
    """They may name the model that is missing here."""
    path = tmp_path / "in/a.csv"
    path.parent.mkdir()
    path.write_text("one,two\nx,y\n")
    real = botocore.client.BaseClient._make_api_call

    def call(client, operation, arguments):
        if operation == "GetObject" and arguments["Key"].endswith("_options.json"):
            raise ClientError(
                {"Error": {"Code": "AccessDenied", "Message": "no policy allows it"}}, operation
            )
        return real(client, operation, arguments)

    options = {"model": LLAMA, "template": "{one}"}
    for key in ("inbox/_options.json", "inbox/in/_options.json"):
        command.world.s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(options))
    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)

    done = command.run("put", path.parent if many else path)

    assert (done.code, len(done.out.splitlines())) == (0, 1), done.err
    assert "_options.json may not be read" in done.err


# ── the functions are denied ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def no_head(command):
    """S3 tells the functions nothing of an upload."""

    def before(operation, arguments):
        if operation == "HeadObject" and arguments["Key"].startswith("inbox/"):
            raise ClientError(
                {
                    "Error": {"Code": "403", "Message": "Forbidden"},
                    "ResponseMetadata": {"HTTPStatusCode": 403},
                },
                operation,
            )

    command.world.upload("july.jsonl", GOOD, model=M2M)
    command.world.permissions.before = before
    command.world.deliver_all()
    command.world.permissions.before = None


def test_status_shows_upload_of_which_nothing_is_known(command, no_head):
    (status,) = command.run("status", "july.jsonl", "--json").json()

    assert (status["state"], status["waiting_for"]["code"]) == ("waiting", "upload_denied")
    assert (
        "waiting: upload_denied: S3 refuses to tell anything"
        in command.run("status", "july.jsonl").out
    )


@pytest.mark.parametrize("verb", ["status", "get", "wait", "cancel", "retry"])
def test_verb_of_many_says_which_upload_has_no_job(command, no_head, monkeypatch, tmp_path, verb):
    """It has no job that a listing could find, only a notice."""
    command.world.upload("jan.jsonl", GOOD, model=M2M)
    command.settle()
    monkeypatch.chdir(tmp_path)

    done = command.run(verb, "j*")

    assert (done.code != 0, "july.jsonl has no job: upload_denied: S3 refuses" in done.err) == (
        True,
        True,
    )
    assert len(done.out.splitlines()) == (0 if verb == "retry" else 1)


def test_wait_ends_when_upload_was_given_up(command, no_head):
    key = "results/july.jsonl/status.json"
    gone = {"state": "failed", "error": {"code": "upload_denied", "message": "Upload it again."}}
    notice = json.loads(command.world.read(key)) | gone | {"waiting_for": None}
    command.world.s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(notice).encode())
    began = command.world.now()

    done = command.run("wait", "july.jsonl")

    assert "has no job: upload_denied: Upload it again." in done.err
    assert command.world.now() - began < 10
    assert "  upload_denied: Upload it again.\n" in command.run("status", "july.jsonl").out

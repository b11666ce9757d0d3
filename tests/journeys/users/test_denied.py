"""Who may not: denied commands, organizations, pages of documents."""

import json
import re

import botocore.client
import pytest
from botocore.exceptions import ClientError

from local.workers_ai import Fault
from tests.support.aws.resources import BUCKET
from tests.support.converted import LLAMA
from tests.support.shipped import ROOT
from tests.support.translations import M2M

BLOCK = re.compile(r"```python\n(.*?)```\n(?:```\n(.*?)```)?", re.DOTALL)
BLOCKS = 7


def printed_and_shown(
    capsys: pytest.CaptureFixture[str],
) -> tuple[list[list[str]], list[list[str]]]:
    """Run the page in the current folder, on the stack that boto3 finds."""
    names: dict[str, object] = {}
    walk, _, _ = (ROOT / "docs/python.md").read_text("utf-8").partition("## Reference")
    blocks = BLOCK.findall(walk)

    printed = []
    for code, _ in blocks:
        capsys.readouterr()
        exec(compile(code, "docs/python.md", "exec"), names)
        lines = capsys.readouterr().out.splitlines()
        printed.append([line.rstrip() for line in lines if not line.startswith('{"')])

    assert len(blocks) == BLOCKS
    return printed, [[line.rstrip() for line in shown.splitlines()] for _, shown in blocks]


GOOD = '{"text":"x","target_lang":"es"}\n'
FREE = {"DescribeStacks", "DescribeStackResources"}
"""What every user may call: it finds the stack."""


@pytest.fixture
def finished(command):
    command.world.run("a.jsonl", GOOD + "nonsense\n" + GOOD, model=M2M)


def denied(operation, message="no policy allows it"):
    return ClientError({"Error": {"Code": "AccessDenied", "Message": message}}, operation)


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
def test_denied_verb_says_what_is_missing(
    command, finished, before_calls, monkeypatch, tmp_path, arguments
):
    file = tmp_path / "b.jsonl"
    file.write_text(GOOD)
    monkeypatch.chdir(tmp_path)

    def deny(operation, _arguments):
        if operation not in FREE:
            raise denied(operation)

    before_calls(deny)

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
                raise denied(operation) from error
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
def test_file_is_not_refused_for_options_that_nobody_may_read(
    command, before_calls, tmp_path, many
):
    """They may name the model that is missing here."""
    path = tmp_path / "in/a.csv"
    path.parent.mkdir()
    path.write_text("one,two\nx,y\n")

    def deny(operation, arguments):
        if operation == "GetObject" and arguments["Key"].endswith("_options.json"):
            raise denied(operation)

    options = {"model": LLAMA, "template": "{one}"}
    for key in ("inbox/_options.json", "inbox/in/_options.json"):
        command.world.s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(options))
    before_calls(deny)

    done = command.run("put", path.parent if many else path)

    assert (done.code, len(done.out.splitlines())) == (0, 1), done.err
    assert "_options.json may not be read" in done.err


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
    command.world.run("jan.jsonl", GOOD, model=M2M)
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


WRITES = {"PutObject", "CreateMultipartUpload"}
DENIED = (
    "... is not authorized to perform: s3:PutObject with an explicit deny in a service "
    "control policy"
)


@pytest.fixture
def written(before_calls):
    """The functions' writes, which are denied without the header."""
    found = []

    def deny(operation, arguments):
        if operation in WRITES and not arguments["Key"].startswith("inbox/"):
            found.append((arguments.get("ServerSideEncryption"), arguments.get("SSEKMSKeyId")))
            if "ServerSideEncryption" not in arguments:
                raise denied(operation, DENIED)

    before_calls(deny)
    return found


def test_every_write_says_how_it_is_encrypted(world, written):
    world.run("a.jsonl", '{"text":"y","target_lang":"es"}\n' * 3, model=M2M)

    (folder,) = {
        key.rpartition("/")[0] for key in world.objects() if key.endswith("/manifest.json")
    }
    assert world.manifest(folder)["state"] == "completed"
    assert len(written) > 8
    assert set(written) == {("AES256", None)}
    assert (
        world.s3.head_object(Bucket=BUCKET, Key=f"{folder}/output.jsonl")["ServerSideEncryption"]
        == "AES256"
    )


def test_page_prints_what_it_shows(command, api, tmp_path, monkeypatch, capsys):
    api.inject(
        Fault(kind="item_fails", contains="Sleep well", marker="Sleep well", code=5001, times=0)
    )
    monkeypatch.chdir(tmp_path)
    printed, shown = printed_and_shown(capsys)
    assert printed == shown


def test_readme_has_answers_in_order(command, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    printed = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]
    assert printed == ["0 The room was clean. True", "1 We heard the lift all night. True"]


def shown(command):
    """The lines of docs/cli.md below a command."""
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    return (
        page.partition(f"\n$ {command}\n")[2].partition("```")[0].partition("\n$ ")[0].splitlines()
    )


def test_page_shows_validate_and_put_as_they_print(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reviews.jsonl").write_text("\n".join(shown("cat reviews.jsonl")) + "\n")

    given = ("reviews.jsonl", "--model", "@cf/meta/m2m100-1.2b")
    warned, _ = shown(" ".join(["dropbatch", "put", *given]))

    assert command.run("validate", *given).out.splitlines() == shown(
        " ".join(["dropbatch", "validate", *given])
    )
    assert warned in command.run("put", *given).err.splitlines()


def test_page_shows_models_as_they_print(command):
    first, *wanted = shown("dropbatch models")
    done = command.run("models")

    assert re.sub("[-0-9]+ days?", "0 days", done.err.splitlines()[0]) == first
    assert wanted
    for line in wanted:
        assert line in done.out.splitlines()

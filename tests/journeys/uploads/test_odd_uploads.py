"""Uploads of one batch, without records, beyond S3's limits, and those that retry a job."""

from __future__ import annotations

import gzip
import json
from urllib.parse import quote

import pytest

from dropbatch.core.names import MAX_KEY_BYTES, MAX_PATH_BYTES
from functions.submit import submit
from shared.errors import StorageError
from shared.ledger import Ledger
from tests.support.aws.resources import BUCKET, TABLE
from tests.support.translations import M2M, all_good, greetings


def state_of(world):
    return world.item("BATCH#00000000")["state"]["S"]


def waiting(world, queue):
    answer = world.sqs.receive_message(QueueUrl=world.queues[queue], MaxNumberOfMessages=10)
    return [json.loads(one["Body"]) for one in answer.get("Messages", [])]


def test_only_batch_is_submitted_by_whoever_reads_its_upload(start, api):
    world = start()
    world.upload_records("a.jsonl", greetings(250, "hello"), model=M2M)

    world.deliver("UploadQueue")

    assert state_of(world) == "queued"
    assert len(api.accepted) == 1
    assert waiting(world, "SubmitQueue") == []
    assert world.status()["counts"]["total"] == 250


def test_first_of_several_batches_is_sent_by_message(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", greetings(5, "hello"), model=M2M)

    world.deliver("UploadQueue")

    assert api.accepted == []
    assert {one["number"] for one in waiting(world, "SubmitQueue")} == {
        f"{number:08d}" for number in range(3)
    }


@pytest.mark.parametrize("step", ["begin_submit", "permit"])
def test_batch_whose_submit_aws_fails_is_due_again(start, api, monkeypatch, step):
    world = start()

    def fail(*_, **_named):
        raise StorageError("the table is away")

    with monkeypatch.context() as patch:
        if step == "permit":
            patch.setattr(submit, "_submit_if_permitted", fail)
        else:
            patch.setattr(Ledger, "begin_submit", fail)
        world.upload_records("a.jsonl", greetings(3, "hello"), model=M2M)
        world.deliver("UploadQueue")
    assert (state_of(world), api.accepted) == ("ready", [])
    assert world.item("META")["state"]["S"] == "in_progress"

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1


BLANKS = b"\n" * (9 << 20)
ENDLESS = b'{"text": "a record"}\n{"text": "' + b"a" * (9 << 20)


@pytest.fixture
def small_bound(monkeypatch):
    """The bound of gigabytes, in megabytes."""
    monkeypatch.setattr("dropbatch.core.read.cut.MAX_BYTES_WITHOUT_BATCH", 5 << 20)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (BLANKS, "unknown_format"),
        (ENDLESS, "unknown_format"),
        pytest.param(gzip.compress(BLANKS), "broken_archive", marks=pytest.mark.slow),
        (gzip.compress(ENDLESS), "broken_archive"),
    ],
    ids=["blank lines", "one line", "packed blank lines", "one packed line"],
)
def test_endless_upload_fails_as_whole_and_says_what_to_do(world, small_bound, content, code):
    world.run("a.jsonl", content, model=M2M)

    error = world.manifest()["error"]
    assert error["code"] == code
    assert "one request per line" in error["message"]


BGE = "@cf/baai/bge-small-en-v1.5"
UPLOADS = {
    "a.jsonl": "".join(
        json.dumps({"text": "" if number % 10 == 3 else f"t{number}"}) + "\n"
        for number in range(40)
    ),
    "a.csv": "id,text\n"
    + "".join(f"r{number},{'' if number % 10 == 3 else 'a'}\n" for number in range(40)),
    "b.jsonl": "".join(
        json.dumps(
            {
                "custom_id": f"r{number}",
                "method": "POST",
                "url": "/v1/embeddings",
                "body": {"model": BGE, "input": ["a", ""] if number % 10 == 3 else "a"},
            }
        )
        + "\n"
        for number in range(40)
    ),
}


@pytest.mark.parametrize("name", UPLOADS)
def test_empty_inputs_fail_alone_and_unsent(world, api, name):
    world.run(name, UPLOADS[name], model=BGE)

    counts = world.manifest()["counts"]
    assert (counts["total"], counts["succeeded"], counts["failed"]) == (40, 36, 4)
    assert sum(api.calls["submit"].values()) == 1, "no submit is spent on isolation"
    errors = world.lines("errors.jsonl")
    assert [line["id"] for line in errors] == [3, 13, 23, 33]
    assert {line["error"]["code"] for line in errors} == {"bad_record"}
    assert all("empty" in line["error"]["message"] for line in errors)
    assert "retry" not in {file["kind"] for file in world.manifest()["files"]}


BAD_AND_GOOD = '{"text":"x","target_lang":"es"}\n{"text":"(refused)","target_lang":"es"}\n'
"""One record that succeeds, and one that fails and is in the retry file."""


def path_of(size, suffix=".jsonl"):
    """A path of so many bytes, most of them of letters with three."""
    letters, ascii_bytes = divmod(size - len(suffix), 3)
    return "評" * letters + "x" * ascii_bytes + suffix


def retry_of(world, folder):
    return world.s3.head_object(Bucket=BUCKET, Key=f"{folder}/retry.jsonl")["Metadata"]["retry-of"]


@pytest.mark.parametrize("size", [300, 740, MAX_PATH_BYTES])
def test_job_with_long_path_ends_and_its_retry_too(world, size):
    world.run(path_of(size), BAD_AND_GOOD, model=M2M)

    folder = world.only_folder()
    assert world.manifest()["counts"] == {"total": 2, "succeeded": 1, "failed": 1}
    assert retry_of(world, folder) == world.manifest()["job_id"]
    again = path_of(size, ".retry.jsonl")
    world.s3.copy_object(
        Bucket=BUCKET, Key=f"inbox/{again}", CopySource=f"{BUCKET}/{folder}/retry.jsonl"
    )
    world.settle()

    (child,) = [one for one in world.manifests() if one != folder]
    assert [key for key in world.objects() if "/retries/" in key] == [
        f"{folder}/retries/{world.manifest(child)['job_id']}.json"
    ]


@pytest.mark.parametrize("name", ["x", path_of(500)])
def test_longest_key_of_upload_ends_path_too_long(world, name):
    """Its `_options.json` would have a key that S3 does not allow."""
    folder = "f" * (MAX_KEY_BYTES - len(f"inbox//{name}".encode()))
    world.run(f"{folder}/{name}", BAD_AND_GOOD, model=M2M)

    assert world.only_folder().startswith("results/_long/")
    assert world.manifest()["error"]["code"] == "path_too_long"


BODY = '{"text":"(refused)","target_lang":"es"}\n'


@pytest.fixture
def parent(world):
    """The folder of a job that is over, whose one record was refused."""
    world.run("a.jsonl", BODY, model=M2M, tags='{"of":"parent"}')
    return world.only_folder()


def options_of(world, folder):
    return json.loads(world.read(f"{folder}/options.json"))


def try_again(world, parent, path="again.jsonl", body=BODY, **metadata):
    """Upload the record again, and return the folder of the new job."""
    known = set(world.manifests())
    world.run(path, body, **metadata)
    (folder,) = set(world.manifests()) - known
    return folder


def records(world):
    return [key for key in world.objects() if "/retries/" in key]


def job_key(folder):
    return {"pk": {"S": f"JOB#{folder.rpartition('/')[2]}"}, "sk": {"S": "META"}}


@pytest.mark.parametrize("path", ["again.jsonl", f"{BGE}/again.jsonl", "@cf/nothing/again.jsonl"])
def test_options_are_own_then_those_of_first_job(world, parent, path):
    world.upload("_options.json", '{"modle":"a member that no option has"}')
    again = try_again(
        world, parent, path, **{"retry-of": parent.rpartition("/")[2], "max-cost": "1"}
    )

    assert world.manifest(again)["error"] is None
    assert options_of(world, again) == {
        "model": M2M,
        "format": "native",
        "max_cost": 1,
        "tags": {"of": "parent"},
    }
    assert records(world) == [f"{parent}/retries/{world.manifest(again)['job_id']}.json"]
    assert json.loads(world.read(records(world)[0]))["joined_by"] == "line"


def test_retry_needs_options_of_first_job(world, api, parent):
    """Without them it would send other requests than those that failed."""
    world.s3.delete_object(Bucket=BUCKET, Key=f"{parent}/options.json")
    submits = len(api.accepted)
    again = try_again(world, parent, **{"retry-of": parent.rpartition("/")[2]})

    assert world.manifest(again)["error"]["code"] == "options_gone"
    assert len(api.accepted) == submits


@pytest.mark.parametrize("has_expired", [False, True])
def test_retry_of_job_that_failed_for_its_options_has_its_own(world, has_expired):
    world.run("a.jsonl", BODY, model=M2M, **{"max-cost": "lots"})
    failed = world.only_folder()
    assert world.manifest(failed)["error"]["code"] == "bad_options"
    if has_expired:
        world.dynamodb.delete_item(TableName=TABLE, Key=job_key(failed))
    again = try_again(
        world, failed, model=M2M, **{"retry-of": failed.rpartition("/")[2], "max-cost": "1"}
    )

    assert world.manifest(again)["error"] is None
    assert options_of(world, again) == {"model": M2M, "max_cost": 1}


@pytest.mark.parametrize(
    "named",
    [
        "20261121T093007Z-00000000",
        "results/nobody/20261121T093007Z-00000000/manifest.json",
        "results/nobody/manifest.json",
        "nobody",
    ],
)
def test_retry_of_no_job_is_ignored(world, parent, named):
    world.upload("_options.json", json.dumps({"model": M2M, "tags": {"of": "folder"}}))
    before = set(world.objects())
    again = try_again(world, parent, **{"retry-of": quote(named, safe="")})

    assert options_of(world, again)["tags"] == {"of": "folder"}
    new = [key for key in world.objects() if key not in before]
    assert all(key.startswith((f"{again}/", "results/_jobs/")) for key in new)

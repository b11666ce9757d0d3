"""Uploads that change under our feet."""

import pytest

import functions.submit.read
from local.workers_ai import expected_result
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M, greetings

ODD = "a b+c%2F漢 & ü?.jsonl"


@pytest.fixture
def world(start, monkeypatch):
    """Splits a batch of two records at a turn, and then gives up its turn."""
    monkeypatch.setattr(functions.submit.read, "TURN_SECONDS", -1.0)
    return start(MAX_REQUESTS_PER_BATCH=2)


def begin(world, key, word="hello", count=6):
    """Upload, and read the first two records."""
    version = world.upload_records(key, greetings(count, word), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    return version


def folders_by_word(world):
    """The folder of the job that answered a word; each must have answered that word alone."""
    found = {}
    for folder in world.manifests():
        words = {
            line["result"]["translated_text"].split()[1] for line in world.lines(folder=folder)
        }
        (word,) = words
        found[word] = folder
    return found


def is_right(world, folder, word, count=6):
    wanted = [expected_result(M2M, record) for record in greetings(count, word)]
    return [line.get("result") for line in world.lines(folder=folder)] == wanted


@pytest.mark.parametrize("key", ["a.jsonl", ODD])
def test_upload_overwritten_while_read_is_two_jobs(world, key):
    first = begin(world, key)
    second = world.upload_records(key, greetings(4, "bye"), model=M2M)

    world.settle()

    folders = folders_by_word(world)
    assert set(folders) == {"hello", "bye"}
    assert all(folder.startswith(f"results/{key}/") for folder in folders.values())
    assert is_right(world, folders["hello"], "hello", 6)
    assert is_right(world, folders["bye"], "bye", 4)
    assert [world.manifest(folders[word])["source"]["version"] for word in ("hello", "bye")] == [
        first,
        second,
    ]
    assert {one["state"] for one in world.manifests().values()} == {"completed"}


def test_version_deleted_while_read_is_reported(world, api):
    version = begin(world, "a.jsonl")
    assert len(api.accepted) == 1
    world.s3.delete_object(Bucket=BUCKET, Key="inbox/a.jsonl", VersionId=version)

    world.settle()

    manifest = world.manifest()
    assert (manifest["state"], manifest["error"]["code"]) == ("failed", "source_gone")
    assert manifest["counts"] == {"total": 2, "succeeded": 2, "failed": 0}
    assert is_right(world, world.only_folder(), "hello", 2)
    assert len(api.accepted) == 1


def test_upload_overwritten_without_versions_is_reported(world):
    world.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})
    begin(world, "a.jsonl")
    world.pass_time(5)
    world.upload_records("a.jsonl", greetings(4, "bye"), model=M2M)

    world.settle()

    failed, completed = sorted(
        world.manifests().items(), key=lambda one: one[1]["state"], reverse=True
    )
    assert (failed[1]["state"], failed[1]["error"]["code"]) == ("failed", "source_gone")
    assert "overwritten" in failed[1]["error"]["message"]
    assert is_right(world, failed[0], "hello", 2)
    assert completed[1]["state"] == "completed"
    assert is_right(world, completed[0], "bye", 4)


def test_restored_version_is_a_new_job(world, api):
    first = begin(world, "a.jsonl")
    world.upload_records("a.jsonl", greetings(2, "bye"), model=M2M)
    world.settle()
    world.pass_time(60)
    source = {"Bucket": BUCKET, "Key": "inbox/a.jsonl", "VersionId": first}
    world.s3.copy_object(Bucket=BUCKET, Key="inbox/a.jsonl", CopySource=source)

    world.settle(until=lambda: len(world.manifests()) == 3 and world.all_over())

    assert len(api.accepted) == 3 + 1 + 3
    assert {one["state"] for one in world.manifests().values()} == {"completed"}


# ── its options ───────────────────────────────────────────────────────────────────────────────────


def test_job_without_options_sends_no_more(world, api):
    """Its records would be sent without the options that its user gave them."""
    world.upload("a.csv", "text\n" + "hello\n" * 6, model="@cf/baai/bge-m3")
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    (options,) = [key for key in world.objects("results/") if key.endswith("/options.json")]
    world.s3.delete_object(Bucket=BUCKET, Key=options)
    world.settle()

    manifest = world.manifest()
    assert (manifest["state"], manifest["error"]["code"]) == ("failed", "options_gone")
    assert manifest["counts"] == {"total": 2, "succeeded": 2, "failed": 0}
    assert len(api.accepted) == 1

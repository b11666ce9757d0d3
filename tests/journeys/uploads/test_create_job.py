"""From an event to a job: options, and uploads that change meanwhile."""

import json
from dataclasses import replace

import pytest

import functions.submit.handler
import functions.submit.read
import functions.submit.upload
from dropbatch.core import names
from dropbatch.core.names import JobState
from functions.submit.upload import (
    MAX_EVENT_AGE_SECONDS,
    NEW_SECONDS,
    TURN_LEASE_SECONDS,
    create_job,
)
from local.workers_ai import expected_result
from shared.aws.object_events import ObjectCreated
from shared.errors import RefusedError, StorageError
from tests.support.aws.resources import BUCKET, TABLE
from tests.support.translations import M2M, codes, greetings

# ── how an upload becomes a job ───────────────────────────────────────────────────────────────────


KEY = "inbox/a.jsonl"


@pytest.fixture
def services(world):
    return functions.submit.handler.services()


@pytest.fixture
def put(world):
    """Puts an upload; its event, which came so many seconds ago."""

    def upload(age=0.0, key=KEY, **metadata):
        version = world.s3.put_object(
            Bucket=BUCKET, Key=key, Body=b"{}\n", Metadata={"model": M2M, **metadata}
        )["VersionId"]
        return ObjectCreated(BUCKET, key, version, None if age is None else world.now() - age)

    return upload


@pytest.mark.parametrize(
    "age", [0, MAX_EVENT_AGE_SECONDS, None], ids=["new", "old", "without a time"]
)
def test_event_makes_job_that_its_function_holds(services, put, age):
    job = create_job(services, put(age)).job

    assert (job.state, job.claims) == (JobState.SPLITTING, 1)
    assert job.due_at == job.lease_until == services.now() + TURN_LEASE_SECONDS
    assert services.ledger.job(job.job_id) == job


def test_too_old_event_is_refused(services, put):
    assert create_job(services, put(MAX_EVENT_AGE_SECONDS + 1)) is None


def test_event_of_finished_job_makes_no_second(services, put, world):
    event = put(key=KEY)
    job = create_job(services, event).job
    world.dynamodb.delete_item(
        TableName=TABLE, Key={"pk": {"S": f"JOB#{job.job_id}"}, "sk": {"S": "META"}}
    )
    services.store.put(names.result(job.upload.key, job.job_id, "manifest.json"), b"{}")
    world.pass_time(NEW_SECONDS)

    assert create_job(services, event) is None


def test_job_whose_creation_was_not_answered_is_due_soon(services, put, monkeypatch):
    monkeypatch.setattr("functions.submit.upload.retry_seconds", lambda claims: 2.0 * (claims + 1))
    real = type(services.ledger).create_job
    created = []

    def unanswered(at, job):
        created.append(real(at, job))
        raise StorageError("no answer")

    monkeypatch.setattr(type(services.ledger), "create_job", unanswered)

    with pytest.raises(StorageError):
        create_job(services, put())

    (job,) = created
    assert services.ledger.job(job.job_id) == replace(
        job, lease_until=0.0, due_at=services.now() + 2, claims=0
    )


def test_upload_without_free_id_has_no_job(services, put, monkeypatch, caplog):
    # Each is gone when it is read.
    monkeypatch.setattr(type(services.ledger), "create_job", lambda at, job: None)

    assert create_job(services, put()) is None
    assert "no job id left for an upload" in caplog.text


@pytest.mark.parametrize(
    ("setting", "per_reply", "most", "first"),
    [
        (5_000, 9_999, 5_000, 500),
        (5_000, 2_000, 2_000, 500),
        (5_000, 200, 200, 200),
        (3, 9_999, 3, 3),
    ],
    ids=[
        "as it is set",
        "fewer fit a reply",
        "fewer than a first batch",
        "set below a first batch",
    ],
)
def test_batch_size_is_as_set_and_fits_reply(start, monkeypatch, setting, per_reply, most, first):
    world = start(MAX_REQUESTS_PER_BATCH=setting)
    monkeypatch.setattr(
        "dropbatch.core.plan.max_records_per_reply", lambda model, transport: per_reply
    )
    version = world.upload("a.jsonl", "{}\n", model=M2M)

    job = create_job(
        functions.submit.handler.services(), ObjectCreated(BUCKET, KEY, version, None)
    ).job

    assert (job.plan.max_requests, job.plan.first_requests) == (most, first)


def test_upload_whose_retried_job_the_table_refuses_to_read_is_tried_again(
    services, put, world, monkeypatch
):
    """What S3 does not hand out is for the user to fix; what the table refuses is not."""
    retried = create_job(services, put(key="inbox/first.jsonl")).job
    items, real = world.items(), type(services.ledger).job

    def refused(at, job_id):
        if job_id == retried.job_id:
            raise RefusedError("DynamoDB get_item", "AccessDeniedException", "no")
        return real(at, job_id)

    monkeypatch.setattr(type(services.ledger), "job", refused)

    with pytest.raises(RefusedError):
        create_job(services, put(**{"retry-of": retried.job_id}))
    assert world.items() == items


# ── where they come from, that they are pinned, and what each does ────────────────────────────────


BGE = "@cf/baai/bge-small-en-v1.5"
LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"


def records(count, **more):
    return [{"text": f"hello {number}", "target_lang": "es", **more} for number in range(count)]


def put_options(world, folder, **options):
    world.upload(f"{folder}_options.json", json.dumps(options))


def test_options_are_layered_and_pinned(start, api):
    world = start(DEFAULT_MODEL=BGE)
    put_options(world, "", model=LLAMA, tags={"of": "root"})
    put_options(world, "a/", tags={"of": "a"}, defaults={"target_lang": "es"})
    world.upload("a/b/c.jsonl", json.dumps({"text": "hello"}), model=M2M)
    world.deliver("UploadQueue")
    put_options(world, "a/", tags={"of": "later"})
    world.settle()

    assert json.loads(world.read(f"{world.only_folder()}/options.json")) == {
        "model": M2M,
        "defaults": {"target_lang": "es"},
        "tags": {"of": "a"},
    }
    assert (world.manifest()["model"], world.manifest()["tags"], world.status()["tags"]) == (
        M2M,
        {"of": "a"},
        {"of": "a"},
    )
    assert codes(world) == [None]
    assert world.notices()[0]["detail"]["tags"] == {"of": "a"}


@pytest.mark.parametrize("body", ["", json.dumps({"text": "hello"})])
@pytest.mark.parametrize(
    ("metadata", "options", "words"),
    [
        ({"max-failed-fraction": "2"}, None, "from 0 to 1"),
        ({"format": "csw"}, None, "Did you mean csv"),
        ({}, {"modle": BGE}, "Did you mean model"),
        ({"max_cost": "1", "max-cost": "2"}, None, "Write it once"),
        ({}, {"max_cost": 1, "max-cost": 2}, "Write it once"),
        ({"max-cost": "1", "model": "@cf/somebody/something"}, None, "max_cost"),
    ],
)
def test_wrong_option_fails_upload_immediately(world, body, metadata, options, words):
    if options is not None:
        put_options(world, "", **options)
    world.run("a/b.jsonl", body, **metadata)

    error = world.manifest()["error"]
    assert (error["code"], words in error["message"]) == ("bad_options", True)
    assert world.read(f"results/_jobs/{world.manifest()['job_id']}.json")


@pytest.mark.parametrize("written", ["max-cost", "max_cost", "Max_Cost"])
def test_batch_beyond_highest_cost_is_not_submitted(start, api, written):
    world = start()
    api.switch(answer_tokens=(1_000, 1_000))
    prompts = [{"prompt": f"hello {n}", "max_tokens": 1_000} for n in range(6)]
    world.run("a.jsonl", prompts, model=LLAMA, **{written: "0.01"})

    assert codes(world) == [None, None, None, None, "cost_limit", "cost_limit"]
    assert len(api.accepted) == 4
    assert len(world.lines("retry.jsonl")) == 2
    cost = world.manifest()["cost"]
    assert (cost["currency"], float(cost["amount"]) > 0, cost["priced_at"] != "") == (
        "USD",
        True,
        True,
    )


# ── uploads that change under our feet ────────────────────────────────────────────────────────────


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


@pytest.mark.parametrize("key", ["results/a.jsonl", "inbox/", "control/stack"])
def test_other_object_makes_no_job(services, world, key):
    world.s3.put_object(Bucket=BUCKET, Key=key, Body=b"{}\n")

    assert create_job(services, ObjectCreated(BUCKET, key, "", None)) is None


def test_event_whose_job_is_over_finds_nothing_to_do(services, put, world):
    event = put()
    job = create_job(services, event).job
    over = services.ledger.end_split(job, 0, None, services.now())
    finalizing = services.ledger.release_job(over, services.now(), state=JobState.FINALIZING)
    services.ledger.end_job(finalizing, JobState.COMPLETED, services.now(), services.now())

    assert create_job(services, event) is None


def test_upload_whose_id_another_one_has_gets_next(services, put, monkeypatch):
    event = put()
    job = create_job(services, event).job
    real = type(services.ledger).job
    other = replace(job, upload=replace(job.upload, etag="another"))
    monkeypatch.setattr(
        type(services.ledger),
        "job",
        lambda at, job_id: other if job_id == job.job_id else real(at, job_id),
    )

    second = create_job(services, event).job

    assert second.job_id != job.job_id
    assert second.upload == job.upload

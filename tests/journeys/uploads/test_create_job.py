"""How an upload becomes a job."""

from dataclasses import replace

import pytest

import functions.submit.handler
import functions.submit.upload
from dropbatch.core import names
from dropbatch.core.names import JobState
from functions.submit.upload import MAX_EVENT_AGE_SECONDS, TURN_LEASE_SECONDS, create_job
from shared.aws.object_events import ObjectCreated
from shared.errors import RefusedError, StorageError
from tests.support.aws.resources import BUCKET, TABLE

M2M = "@cf/meta/m2m100-1.2b"
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
    job = create_job(services, put(age))

    assert (job.state, job.claims) == (JobState.SPLITTING, 1)
    assert job.due_at == job.lease_until == services.now() + TURN_LEASE_SECONDS
    assert services.ledger.job(job.job_id) == job


def test_too_old_event_is_refused(services, put):
    assert create_job(services, put(MAX_EVENT_AGE_SECONDS + 1)) is None


@pytest.mark.parametrize("key", ["results/a.jsonl", "inbox/", "control/stack"])
def test_other_object_makes_no_job(services, world, key):
    world.s3.put_object(Bucket=BUCKET, Key=key, Body=b"{}\n")

    assert create_job(services, ObjectCreated(BUCKET, key, "", None)) is None


def test_event_whose_job_is_over_finds_nothing_to_do(services, put, world):
    event = put()
    job = create_job(services, event)
    over = services.ledger.end_split(job, 0, None, services.now())
    finalizing = services.ledger.release_job(over, services.now(), state=JobState.FINALIZING)
    services.ledger.end_job(finalizing, JobState.COMPLETED, services.now(), services.now())

    assert create_job(services, event) is None


def test_event_of_finished_job_makes_no_second(services, put, world):
    event = put(key=KEY)
    job = create_job(services, event)
    world.dynamodb.delete_item(
        TableName=TABLE, Key={"pk": {"S": f"JOB#{job.job_id}"}, "sk": {"S": "META"}}
    )
    services.store.put(names.result(job.upload.key, job.job_id, "manifest.json"), b"{}")

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


def test_upload_whose_id_another_one_has_gets_next(services, put, monkeypatch):
    event = put()
    job = create_job(services, event)
    real = type(services.ledger).job
    other = replace(job, upload=replace(job.upload, etag="another"))
    monkeypatch.setattr(
        type(services.ledger),
        "job",
        lambda at, job_id: other if job_id == job.job_id else real(at, job_id),
    )

    second = create_job(services, event)

    assert second.job_id != job.job_id
    assert second.upload == job.upload


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

    job = create_job(functions.submit.handler.services(), ObjectCreated(BUCKET, KEY, version, None))

    assert (job.plan.max_requests, job.plan.first_requests) == (most, first)


@pytest.mark.parametrize(
    ("metadata", "deadline", "tags", "tokens"),
    [
        ({}, None, {}, 0),
        (
            {"deadline-hours": "5", "tags": '{"team": "a"}', "output-tokens": "70"},
            5 * 3_600,
            {"team": "a"},
            70,
        ),
    ],
)
def test_job_holds_its_deadline_its_tags_and_its_tokens(
    services, put, metadata, deadline, tags, tokens
):
    job = create_job(services, put(**metadata))

    assert job.deadline_at == (None if deadline is None else services.now() + deadline)
    assert job.tags == tags
    assert job.output_tokens == tokens


def test_upload_whose_retried_job_the_table_refuses_to_read_is_tried_again(
    services, put, world, monkeypatch
):
    """What S3 does not hand out is for the user to fix; what the table refuses is not."""
    retried = create_job(services, put(key="inbox/first.jsonl"))
    items, real = world.items(), type(services.ledger).job

    def refused(at, job_id):
        if job_id == retried.job_id:
            raise RefusedError("DynamoDB get_item", "AccessDeniedException", "no")
        return real(at, job_id)

    monkeypatch.setattr(type(services.ledger), "job", refused)

    with pytest.raises(RefusedError):
        create_job(services, put(**{"retry-of": retried.job_id}))
    assert world.items() == items

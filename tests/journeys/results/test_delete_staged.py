"""What a job staged is deleted after its end.

Surely, for good, at the times promised, and nothing of any other job.
"""

from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

import functions.poll.handler
import functions.poll.schedule.delete_staged
from functions.poll.schedule.delete_staged import (
    CLAIM_SECONDS,
    FIRST_SECONDS,
    MIN_FIRST_BYTES,
    _delete,
    delete_staged,
    first_deletion,
)
from local.template import default
from shared.aws.object_store import ObjectStore
from shared.claims import MAX_CLAIMS
from shared.ledger import DueEntry, Ledger
from shared.models import Staging
from tests.support.aws.resources import BUCKET, TABLE
from tests.support.journeys.deaths import DiedError
from tests.support.translations import M2M

DAY = 86_400.0
KEPT_DAYS = int(default("StagingRetentionDays"))
GOOD = '{"text":"y","target_lang":"es"}\n'


def staged(world, job_id=""):
    """Names of the staged objects, by version.

    Nothing that is deleted may stay behind as an old version.
    """
    pages = world.s3.get_paginator("list_object_versions").paginate(
        Bucket=BUCKET, Prefix=f"staging/{job_id}"
    )
    return [
        one["Key"]
        for page in pages
        for one in (*page.get("Versions", []), *page.get("DeleteMarkers", []))
    ]


def kinds(world):
    return {key.rpartition("/")[2].partition("-")[0] for key in staged(world)}


def is_forgotten(world):
    """Whether nothing is due any more, and only a tombstone is left."""
    job = world.item()
    return not {"due_at", "work", "staging"} & set(job) and "ttl" in job


@pytest.fixture
def large(monkeypatch):
    """Every job counts as large."""
    monkeypatch.setattr(functions.poll.schedule.delete_staged, "MIN_FIRST_BYTES", 0)


@pytest.fixture
def small_pages(monkeypatch):
    """S3 lists two versions at a time."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "2")


def finish(world, path="a.jsonl", body=GOOD * 3):
    world.upload(path, body, model=M2M)
    world.settle()


@pytest.mark.parametrize("days", [3, 1, 60])
def test_staged_objects_are_deleted_after_days(start, days):
    world = start(STAGING_RETENTION_DAYS=days)
    finish(world)
    before = staged(world)
    world.pass_time(days * DAY - 60)
    world.tick()
    assert staged(world) == before != []

    world.pass_time(60)
    world.tick()

    assert staged(world) == []
    assert is_forgotten(world)
    assert world.lines()[2]["success"]


def test_large_job_is_deleted_partly_after_an_hour(world, large):
    finish(world)
    assert kinds(world) == {"request", "raw", "part"}

    world.pass_time(FIRST_SECONDS)
    world.tick()
    assert kinds(world) == {"request"}

    world.pass_time(KEPT_DAYS * DAY - FIRST_SECONDS)
    world.tick()
    assert staged(world) == []
    assert is_forgotten(world)


def test_nothing_of_other_jobs_is_deleted(world):
    finish(world)
    first = world.item()["job_id"]["S"]
    world.pass_time(KEPT_DAYS * DAY)
    world.upload("b.jsonl", GOOD, model=M2M)
    world.deliver_all()
    others = [key for key in staged(world) if first not in key]
    world.tick()

    assert staged(world, first) == []
    assert others
    assert set(others) <= set(staged(world))


def test_older_versions_and_delete_markers_go_too(world):
    finish(world)
    (request,) = [key for key in staged(world) if key.endswith("/request")]
    world.s3.put_object(Bucket=BUCKET, Key=request, Body=b"again")
    world.s3.delete_object(Bucket=BUCKET, Key=request)
    assert staged(world).count(request) == 3

    world.pass_time(KEPT_DAYS * DAY)
    world.tick()

    assert staged(world) == []


@pytest.mark.parametrize("records", [1, 30])
def test_deletion_takes_same_calls_whatever_job_holds(start, records):
    """Listing and deleting take one call each for 1,000 objects, the ledger two writes."""
    world = start(MAX_REQUESTS_PER_BATCH=1)
    finish(world, body=GOOD * records)
    assert len(staged(world)) == 3 * records
    world.pass_time(KEPT_DAYS * DAY)
    seen = []
    world.permissions.before = lambda operation, _: seen.append(operation)
    world.tick()

    begun = seen.index("ListObjectVersions") - 2
    assert seen[begun:] == [
        "GetItem",
        "UpdateItem",
        "ListObjectVersions",
        "DeleteObjects",
        "UpdateItem",
    ]
    assert staged(world) == []


STEPS = [
    (Ledger, "claim_cleanup"),
    (ObjectStore, "versions"),
    (ObjectStore, "delete"),
    (Ledger, "continue_cleanup"),
    (Ledger, "end_cleanup"),
]


@pytest.mark.parametrize("passed", [FIRST_SECONDS, KEPT_DAYS * DAY])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=[name for _, name in STEPS])
def test_death_at_any_step_leaves_rest_to_next_tick(
    world, large, small_pages, monkeypatch, passed, after, step
):
    finish(world)
    world.pass_time(passed)
    real = getattr(*step)

    def die(*arguments):
        if after:
            real(*arguments)
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(*step, die)
        try:
            world.tick()
        except DiedError:
            pass
        else:
            assert step[1] == ("end_cleanup" if passed == FIRST_SECONDS else "continue_cleanup"), (
                "never reached"
            )
    world.pass_time(CLAIM_SECONDS)
    world.tick()
    assert "part" not in kinds(world)
    world.pass_time(KEPT_DAYS * DAY)
    world.tick()

    assert staged(world) == []
    assert is_forgotten(world)
    assert world.manifest()["counts"]["succeeded"] == 3


def test_without_time_deletion_continues_at_next_tick(start, large, small_pages, monkeypatch):
    """Each pass begins where the last one ended, and each tick deletes one page, of two objects."""
    world = start(MAX_REQUESTS_PER_BATCH=1)
    finish(world, body=GOOD * 6)
    real = delete_staged
    monkeypatch.setattr(
        "functions.poll.schedule.tick.delete_staged",
        lambda services, _: real(services, services.now()),
    )
    for passed, left in ((FIRST_SECONDS, 12), (KEPT_DAYS * DAY, 0)):
        world.pass_time(passed)
        sizes = [len(staged(world))]
        while sizes[-1] > left:
            world.tick()
            world.pass_time(1)
            sizes.append(len(staged(world)))
            assert sizes[-1] >= sizes[-2] - 2
            assert len(sizes) < 30
    world.tick()

    assert is_forgotten(world)


def failing_deletions(world, code):
    """Times at which S3 did not delete a page of objects, with this error; filled as it happens."""
    tries = []

    def deny(operation, arguments):
        if operation == "DeleteObjects":
            tries.append(world.now())
            raise ClientError({"Error": {"Code": code, "Message": "no"}}, operation)

    world.permissions.before = deny
    return tries


def test_undeleted_page_is_retried_then_given_up(world):
    finish(world)
    tries = failing_deletions(world, "InternalError")
    world.pass_time(KEPT_DAYS * DAY)
    hours = 0
    while not is_forgotten(world):
        world.tick()
        world.pass_time(3_600)
        hours += 1
        assert hours <= MAX_CLAIMS + 2

    assert hours >= 72
    assert len(tries) == MAX_CLAIMS + 1
    assert world.item()["state"]["S"] == "completed"
    assert staged(world)


def test_undeleted_objects_are_tried_again(world, monkeypatch):
    finish(world)
    world.pass_time(KEPT_DAYS * DAY)
    answers = iter([{"Errors": [{"Key": "staging/a", "Code": "InternalError"}]}])
    services = functions.poll.handler.services()
    real = services.store.client.delete_objects
    monkeypatch.setattr(
        services.store.client,
        "delete_objects",
        lambda **named: next(answers, None) or real(**named),
    )
    world.tick()
    assert staged(world)

    world.pass_time(CLAIM_SECONDS)
    world.tick()

    assert staged(world) == []
    assert is_forgotten(world)


def test_unreadable_job_is_left_to_lifecycle(world):
    finish(world)
    key = {"pk": world.item()["pk"], "sk": {"S": "META"}}
    world.dynamodb.update_item(
        TableName=TABLE,
        Key=key,
        UpdateExpression="SET created_at = :wrong",
        ExpressionAttributeValues={":wrong": {"S": "?"}},
    )
    world.pass_time(KEPT_DAYS * DAY)
    world.tick()

    job = world.item()
    assert "due_at" not in job
    assert job["state"]["S"] == "completed"


def test_jobs_that_cannot_be_claimed_hold_up_no_other(world, monkeypatch):
    """They are the oldest, and more than one tick takes."""
    finish(world)
    real, good = Ledger.claim_cleanup, world.item()
    monkeypatch.setattr(functions.poll.schedule.delete_staged, "MAX_JOBS_DELETED", 2)
    monkeypatch.setattr(
        Ledger,
        "claim_cleanup",
        lambda self, job, until: real(self, job, until) if job.tags == {} else 1 / 0,
    )
    for number in range(4):
        bad = {
            **good,
            "pk": {"S": f"JOB#{number}"},
            "job_id": {"S": f"{number}"},
            "tags": {"M": {"bad": {"S": ""}}},
        }
        world.dynamodb.put_item(
            TableName=TABLE, Item={**bad, "due_at": {"N": str(world.now() + number)}}
        )
    world.pass_time(KEPT_DAYS * DAY)

    for _ in range(3):
        world.tick()

    assert staged(world) == []


@pytest.mark.parametrize(
    "change",
    ["DELETE", "REMOVE staging", "REMOVE due_at", "SET due_at = :later"],
    ids=["no job", "nothing staged", "nothing due", "due later"],
)
def test_outdated_index_deletes_nothing(world, change):
    finish(world)
    world.pass_time(KEPT_DAYS * DAY)
    job = world.item()
    key = {"pk": job["pk"], "sk": {"S": "META"}}
    if change == "DELETE":
        world.dynamodb.delete_item(TableName=TABLE, Key=key)
    else:
        later = {":later": {"N": str(world.now() + 1)}}
        values = {"ExpressionAttributeValues": later} if ":later" in change else {}
        world.dynamodb.update_item(TableName=TABLE, Key=key, UpdateExpression=change, **values)
    before = world.items()

    _delete(functions.poll.handler.services(), DueEntry(job["job_id"]["S"], "", None), world.now())

    assert staged(world)
    assert world.items() == before


@pytest.mark.parametrize(
    "claimed", [None, SimpleNamespace(staging=None)], ids=["changed", "nothing staged"]
)
def test_claimed_job_is_left_alone(world, monkeypatch, claimed):
    finish(world)
    world.pass_time(KEPT_DAYS * DAY)
    monkeypatch.setattr(Ledger, "claim_cleanup", lambda *_: claimed)

    due = DueEntry(world.item()["job_id"]["S"], "", None)
    _delete(functions.poll.handler.services(), due, world.now() + 60)

    assert staged(world)


def test_claim_keeps_others_away_for_three_minutes(world, monkeypatch):
    finish(world)
    world.pass_time(KEPT_DAYS * DAY)

    def die(*_):
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(ObjectStore, "versions", die)
        with pytest.raises(DiedError):
            world.tick()
    world.pass_time(CLAIM_SECONDS - 61)
    world.tick()
    assert staged(world)


@pytest.mark.parametrize(
    ("size", "kept", "first"),
    [
        (MIN_FIRST_BYTES - 1, KEPT_DAYS * DAY, KEPT_DAYS * DAY),
        (MIN_FIRST_BYTES, KEPT_DAYS * DAY, FIRST_SECONDS),
        (MIN_FIRST_BYTES, FIRST_SECONDS - 1, FIRST_SECONDS - 1),
    ],
    ids=["small", "large", "everything is due sooner"],
)
def test_first_deletion_is_within_an_hour_of_end(size, kept, first):
    job = SimpleNamespace(output=SimpleNamespace(size=size))

    assert first_deletion(job, Staging(until=1_000 + kept), 1_000) == 1_000 + first

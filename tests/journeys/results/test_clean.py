"""What a job staged is deleted an hour after its end.

Surely, for good, and nothing of any other job.
"""

import pytest
from botocore.exceptions import ClientError

import functions.poll.end
import functions.poll.handler
from functions.poll.end import CLAIM_SECONDS, CLEAN_AFTER_SECONDS
from shared.aws.object_store import ObjectStore
from shared.ledger import Ledger
from shared.models import DueKind
from shared.retry import MAX_CLAIMS
from tests.support.aws.resources import BUCKET
from tests.support.journeys.deaths import DiedError
from tests.support.translations import M2M

GOOD = '{"text":"y","target_lang":"es"}\n'


def staged(world, job_id=""):
    """Names of the staged objects, by version."""
    pages = world.s3.get_paginator("list_object_versions").paginate(
        Bucket=BUCKET, Prefix=f"staging/{job_id}"
    )
    return [
        one["Key"]
        for page in pages
        for one in (*page.get("Versions", []), *page.get("DeleteMarkers", []))
    ]


def is_forgotten(world):
    """Whether nothing is due any more, and only a tombstone is left."""
    job = world.item()
    return not {"due_at", "work"} & set(job) and "ttl" in job


@pytest.fixture
def small_pages(monkeypatch):
    """S3 lists two versions at a time."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "2")


def finish(world, path="a.jsonl", body=GOOD * 3):
    world.run(path, body, model=M2M)


def test_staged_objects_are_deleted_after_an_hour(world):
    finish(world)
    before = staged(world)
    world.pass_time(CLEAN_AFTER_SECONDS - 60)
    world.tick()
    assert staged(world) == before != []

    world.pass_time(60)
    world.tick()

    assert staged(world) == []
    assert is_forgotten(world)
    assert world.lines()[2]["success"]


def test_nothing_of_other_jobs_is_deleted(world):
    finish(world)
    first = world.item()["job_id"]["S"]
    world.pass_time(CLEAN_AFTER_SECONDS)
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

    world.pass_time(CLEAN_AFTER_SECONDS)
    world.tick()

    assert staged(world) == []


STEPS = [
    (Ledger, "set_aside"),
    (ObjectStore, "versions"),
    (ObjectStore, "delete"),
    (Ledger, "forget_cleanup"),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=[name for _, name in STEPS])
def test_death_at_any_step_leaves_rest_to_next_tick(world, small_pages, monkeypatch, after, step):
    finish(world)
    world.pass_time(CLEAN_AFTER_SECONDS)
    real = getattr(*step)

    def die(*arguments):
        if after:
            real(*arguments)
        raise DiedError

    with monkeypatch.context() as patched:
        patched.setattr(*step, die)
        with pytest.raises(DiedError):
            world.tick()
    world.pass_time(CLAIM_SECONDS)
    world.tick()

    assert staged(world) == []
    assert is_forgotten(world)
    assert world.manifest()["counts"]["succeeded"] == 3


def failing(world, failing_call, code):
    """Times at which S3 failed a call with this code; filled as it happens."""
    tries = []

    def deny(operation, _):
        if operation == failing_call:
            tries.append(world.now())
            raise ClientError({"Error": {"Code": code, "Message": "no"}}, operation)

    world.permissions.before = deny
    return tries


def test_undeleted_page_is_retried_then_given_up(world):
    finish(world)
    tries = failing(world, "DeleteObjects", "InternalError")
    world.pass_time(CLEAN_AFTER_SECONDS)
    hours = 0
    while not is_forgotten(world):
        world.tick()
        world.pass_time(3_600)
        hours += 1
        assert hours <= MAX_CLAIMS + 2

    assert hours >= 72
    assert len(tries) == MAX_CLAIMS
    assert world.item()["state"]["S"] == "completed"
    assert staged(world)


def test_outdated_index_deletes_nothing(world):
    finish(world)
    world.pass_time(CLEAN_AFTER_SECONDS)
    services = functions.poll.handler.services()
    (due,), _ = services.ledger.due(DueKind.ROUTINE, world.now(), 9)
    assert services.ledger.set_aside(due, 1, world.now() + 60)

    functions.poll.end.clean(services, due, world.now())

    assert staged(world)

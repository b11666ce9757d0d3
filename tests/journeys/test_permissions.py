"""Least privilege, both ways.

What a function does its role allows, and what its role allows some function does.

The first half is proved by every test on moto, since each call there is judged by the role
(tests/support/aws/iam.py). Here is the second: a world in which everything happens that ever
happens, after which no grant may be left unused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

import functions.poll.due_polls
import functions.poll.files
import functions.submit.read
from dropbatch.core.names import result
from local.workers_ai import Fault
from tests.support.aws.resources import BUCKET, TABLE
from tests.support.translations import M2M, greetings

if TYPE_CHECKING:
    from tests.support.journeys.world import World


DONE_BY_AWS = {
    # Lambda takes messages as the function.
    *("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"),
    *("logs:CreateLogStream", "logs:PutLogEvents"),  # Lambda writes what the function prints.
    *("xray:PutTraceSegments", "xray:PutTelemetryRecords"),  # Lambda's daemon sends the traces.
}
"""What no line of ours calls, but Lambda does with the function's role."""


@pytest.fixture
def small_steps(monkeypatch):
    """What large jobs do, done by small ones."""
    monkeypatch.setattr(functions.submit.read, "TURN_SECONDS", -1.0)
    monkeypatch.setattr(functions.poll.due_polls, "MAX_OWN_POLLS", 1)
    monkeypatch.setattr(functions.poll.files, "SEGMENT_BYTES", 400)
    monkeypatch.setattr(functions.poll.files, "MIN_COPY_BYTES", 300)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


def finish_first(world: World) -> None:
    """Somebody else writes each output just before this function does."""

    def before(operation: str, arguments: dict[str, Any]) -> None:
        if operation == "CompleteMultipartUpload":
            joined = {name: arguments[name] for name in ("Bucket", "Key", "UploadId")}
            size = sum(part["Size"] for part in world.s3.list_parts(**joined)["Parts"])
            world.s3.put_object(Bucket=BUCKET, Key=arguments["Key"], Body=b"x" * size)

    world.permissions.before = before


def refuse_to_note_acceptance(world: World, *, receipts: bool) -> None:
    """The table takes everything but the news that a batch was accepted."""

    def before(operation: str, arguments: dict[str, Any]) -> None:
        news = arguments.get("ExpressionAttributeValues", {}).get(":to_state") == {"S": "queued"}
        receipt = operation == "PutObject" and "/receipt-" in arguments["Key"]
        if news or (receipt and not receipts):
            refusal = {"Error": {"Code": "ThrottlingException", "Message": "slow down"}}
            raise ClientError(refusal, operation)

    world.permissions.before = before


def pause_and_resume(world: World) -> None:
    """An upload comes while the stack is paused."""
    world.control("stack", "pause")
    world.upload_records("paused.jsonl", greetings(2, "paused"), model=M2M)
    world.deliver_all()
    world.control("stack", "run")
    world.settle(minutes=240)


def in_progress(world: World) -> list[str]:
    """Ids of the jobs whose upload was read to its end, and that are not over."""
    jobs = [item for item in world.items() if item["sk"]["S"] == "META"]
    return [item["job_id"]["S"] for item in jobs if item["state"]["S"] == "in_progress"]


@pytest.mark.slow
def test_every_grant_is_used_and_unique(start, api, small_steps):  # noqa: PLR0915 - one world, all that happens
    world = start(MAX_REQUESTS_PER_BATCH=4)

    # A large job with a bad record that is isolated; its output is there already when it would be
    # written.
    api.inject(Fault(kind="5006", on="submit", contains="large 7", times=0))
    world.upload_records("large.jsonl", greetings(12, "large"), model=M2M)
    finish_first(world)
    world.settle(minutes=240)
    world.permissions.before = None

    # An answer that comes at once; a batch that fails after acceptance.
    api.inject(Fault(kind="batch_fails", contains="later", message="out of memory"))
    world.upload_records("later.jsonl", greetings(2, "later"), model=M2M)
    api.inject(Fault(kind="sync_answer", contains="at once"))
    world.run("once.jsonl", greetings(3, "at once"), model=M2M, minutes=240)

    # A table, one of whose rows fails, and its retry file dropped again.
    api.inject(Fault(kind="item_fails", marker="xtwox", code=5001, times=0))
    world.run("table.csv", "text\none\nxtwox\n", model="@cf/baai/bge-m3", minutes=240)
    (retry,) = [key for key in world.objects() if key.endswith("/retry.csv")]
    parent = {"pk": {"S": f"JOB#{retry.split('/')[-2]}"}, "sk": {"S": "META"}}
    world.dynamodb.delete_item(TableName=TABLE, Key=parent)  # Expired: its record names it.
    world.s3.copy_object(Bucket=BUCKET, Key="inbox/again.csv", CopySource=f"{BUCKET}/{retry}")
    world.settle(minutes=240)

    # An upload without a record, and one whose event comes late.
    world.upload("empty.jsonl", "", model=M2M)
    world.upload_records("late.jsonl", greetings(2, "late"), model=M2M)
    world.pass_time(3_600)
    world.settle(minutes=240)

    # More batches due at once than one run polls.
    for name in ("one", "two", "three"):
        world.upload_records(f"{name}.jsonl", greetings(2, name), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    world.pass_time(300)
    world.tick()
    world.settle(minutes=240)

    # A pause that a submit finds over, and one that a poll finds over.
    api.inject(Fault(kind="3036", on="submit", times=1))
    world.run("quota.jsonl", greetings(2, "quota"), model=M2M, minutes=24 * 60)
    api.inject(Fault(kind="10000", on="poll", times=1))
    world.run("token.jsonl", greetings(2, "token"), model=M2M, minutes=240)

    # What jobs that are over have staged is deleted.
    world.pass_time(3 * 86_400)
    world.tick()

    # A command for a job, and one for all.
    pause_and_resume(world)

    # A command that is carried out in two passes: a message asks for the second.
    api.inject(Fault(kind="stuck", contains="slow", seconds=4_000))
    world.upload_records("slow.jsonl", greetings(2, "slow"), model=M2M)
    world.settle(until=lambda: in_progress(world))
    (slow,) = in_progress(world)
    for word in ("pause", "run"):
        world.control(slow, word)
        world.deliver("VisitQueue")
    world.settle(minutes=240)

    # What the table does not take is found again: an acceptance in its receipt, an answer where it
    # lies.
    world.upload_records("receipt.jsonl", greetings(2, "receipt"), model=M2M)
    refuse_to_note_acceptance(world, receipts=True)
    world.deliver_all()
    world.permissions.before = None
    world.settle(minutes=240)
    api.inject(Fault(kind="sync_answer", contains="lost"))
    world.upload_records("lost.jsonl", greetings(2, "lost"), model=M2M)
    refuse_to_note_acceptance(world, receipts=False)
    world.deliver_all()
    world.permissions.before = None
    world.settle(minutes=240)

    # Wakes are planned. Somebody has suspended versioning: uploads and events have no version.
    world.wakes = True
    world.s3.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Suspended"})
    world.run("versionless.jsonl", greetings(2, "versionless"), model=M2M, minutes=240)

    told = world.manifests()
    assert len(told) == 17
    assert [
        one["counts"]["failed"]
        for key, one in told.items()
        if "large" not in key and "csv" not in key
    ] == [0] * 14
    assert {
        batch["attempts"] for key, one in told.items() if "lost" in key for batch in one["batches"]
    } == {1}
    (large,) = [one for key, one in told.items() if "large" in key]
    assert world.read(result("inbox/large.jsonl", large["job_id"], "output.jsonl")).startswith(
        b"xxx"
    )
    for role, granted in world.permissions.granted.items():
        idle = {
            grant for grant in granted if grant.action not in DONE_BY_AWS
        } - world.permissions.used[role]
        assert sorted(map(str, idle)) == [], f"{role} allows what the function never does"
    assert world.permissions.shared == set()


@pytest.fixture
def as_poll(world):
    """A Dropbatch at which the calls of a test are judged by poll's role."""
    world.permissions.role = "PollRole"
    yield world
    world.permissions.role = ""
    world.permissions.refused.clear()


@pytest.mark.parametrize("call", ["head_object", "get_object"])
@pytest.mark.parametrize(
    "key", ["staging/job/00000000/raw-1-1", "results/a.jsonl/job/manifest.json"]
)
def test_poll_gets_not_found_for_missing_key(as_poll, call, key):
    with pytest.raises(ClientError) as caught:
        getattr(as_poll.s3, call)(Bucket=BUCKET, Key=key)

    assert caught.value.response["Error"]["Code"] in {"404", "NoSuchKey"}


@pytest.mark.parametrize(
    "asked", [{"Prefix": ""}, {"Prefix": "inbox/"}, {"Prefix": "inbox/a"}, {"Prefix": "i"}]
)
def test_poll_cannot_list_uploads(as_poll, asked):
    with pytest.raises(ClientError) as caught:
        as_poll.s3.list_objects_v2(Bucket=BUCKET, **asked)

    assert caught.value.response["Error"]["Code"] == "AccessDenied"


def test_poll_could_list_what_it_works_on(as_poll):
    assert as_poll.s3.list_objects_v2(Bucket=BUCKET, Prefix="staging/job/")["KeyCount"] == 0

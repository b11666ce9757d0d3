"""Many open jobs: each kind of message has its own room, and no job with its last answer waits for its visit."""

import time
from dataclasses import replace

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.dynamodb.models import dynamodb_backends

import functions.poll.handler
import functions.poll.schedule.due_polls
import functions.poll.schedule.tick
from dropbatch.records.plan import SplitPlan
from dropbatch.rules.names import JobState
from functions.poll.schedule.due_jobs import MAX_TURNS_WAITING, MAX_VISITS_WAITING
from functions.poll.schedule.due_polls import MAX_POLLS_WAITING
from shared.aws.attribute_values import attribute, attributes
from shared.models import Batch, BatchState, DueKind, Job, Submission, Upload
from tests.support.aws.resources import BUCKET, REGION, TABLE

BGE = "@cf/baai/bge-small-en-v1.5"
LARGE = 100 << 20


def put(job_id, sort_key, held, work):
    item = {"pk": {"S": f"JOB#{job_id}"}, "sk": {"S": sort_key}, **attributes(held), "work": attribute(work)}
    dynamodb_backends[DEFAULT_ACCOUNT_ID][REGION].put_item(TABLE, item)


def open_job(number, state=JobState.IN_PROGRESS, *, due_in=0.0, size=100):
    """A job that has been open for a quarter of an hour; its upload has been read, unless it still is."""
    now = time.time()
    upload, plan = Upload(BUCKET, f"inbox/{number}.jsonl", "v", "e", size), SplitPlan(BGE, 500, 9_500_000, "a", "jsonl")
    job = Job(
        job_id=f"20261121T093000Z-{number:08x}",
        state=state,
        upload=upload,
        plan=plan,
        created_at=now - 900,
        due_at=now + due_in,
        told_at=now,
    )
    return replace(job, plan=replace(plan, packing="plain"), total=None if state is JobState.SPLITTING else 100_000)


def put_idle(job, *, poll_in=3_600.0):
    """A job that waits for the answer of its one batch."""
    put(job.job_id, "META", job, "v1#job")
    now = time.time()
    asked = {"state": BatchState.QUEUED, "first_id": 0, "requests": 500, "sendable": 500, "body_size": 10}
    batch = Batch(
        job_id=job.job_id, number="00000000", **asked, created_at=now - 900, due_at=now + poll_in, attempt=1, ordinal=0
    )
    put(job.job_id, "BATCH#00000000", replace(batch, submissions=(Submission(job.job_id, 1, now - 800),)), "v1#poll")


def messages(world, queue):
    """How many wait."""
    asked = {"QueueUrl": world.queues[queue], "AttributeNames": ["ApproximateNumberOfMessages"]}
    return int(world.sqs.get_queue_attributes(**asked)["Attributes"]["ApproximateNumberOfMessages"])


def test_each_kind_of_message_has_own_room(start):
    world = start()
    ledger = functions.poll.handler.services().ledger
    for number in range(25):
        put_idle(open_job(number, due_in=-5, size=LARGE), poll_in=30)
        ledger.create_job(open_job(1_000 + number, JobState.SPLITTING, size=LARGE))
        job = open_job(2_000 + number, size=LARGE)
        ledger.create_job(job)
    for _ in range(3):
        began = time.time()
        world.tick()
        world.pass_time(max(60 - time.time() + began, 0))

    assert 0 < messages(world, "PollQueue") <= MAX_POLLS_WAITING
    assert 0 < messages(world, "VisitQueue") <= MAX_VISITS_WAITING
    assert 0 < messages(world, "SplitQueue") <= MAX_TURNS_WAITING


@pytest.mark.parametrize("due_in", [3_600.0, -3_600.0], ids=["its visit is far off", "many jobs are visited before it"])
def test_job_of_dead_collector_is_over_in_a_minute(start, api, monkeypatch, due_in):
    """The function died after it had stored the job's last answer."""
    world = start()
    world.upload_records("a.jsonl", [{"text": "one"}], model=BGE)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    ledger = functions.poll.handler.services().ledger
    (job_id,) = {item["pk"]["S"].removeprefix("JOB#") for item in world.items() if item["sk"]["S"] == "META"}
    ledger.release_job(ledger.job(job_id), time.time() + due_in, DueKind.JOB)
    for number in range(30):
        put_idle(open_job(number, due_in=-4_000))
    world.pass_time(30)
    with monkeypatch.context() as dying:
        dying.setattr(functions.poll.schedule.due_polls, "advance_job", lambda *_: 1 / 0)
        world.deliver("PollQueue")
    assert ledger.batch(job_id, "00000000").state is BatchState.DONE
    monkeypatch.setattr(functions.poll.schedule.tick, "MAX_IDLE_VISITS", 0)

    world.pass_time(10)
    world.tick()

    assert len(world.manifests()) == 1

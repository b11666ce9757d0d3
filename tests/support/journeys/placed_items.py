"""Items put into the table as they stand while they wait.

And what becomes of them minute by minute.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import functions.poll.handler
from dropbatch.core.names import JobState
from dropbatch.core.plan import SplitPlan
from shared.aws.attribute_values import attributes
from shared.models import Batch, BatchState, DueKind, Job, Records, Submission, Upload
from tests.support.aws import quick_dynamodb
from tests.support.aws.resources import ACCOUNT, BUCKET, TABLE

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.services import Services
    from tests.support.journeys.world import World

BGE = "@cf/baai/bge-small-en-v1.5"
MINUTE, DAY = 60.0, 86_400.0


def texts(count: int) -> list[dict[str, str]]:
    """Requests for embeddings."""
    return [{"text": f"text {number}"} for number in range(count)]


def services_of() -> Services:
    """What the functions of the running world work with."""
    return functions.poll.handler.services()  # type: ignore[attr-defined] # A world puts its own there.


def job_of(name: str, model: str = BGE, **more: Any) -> Job:
    """A job that has been read to its end, and is to be looked at in an hour."""
    now = time.time()
    upload, plan = (
        Upload(BUCKET, f"inbox/{name}.jsonl", "v", "e", 1),
        SplitPlan(model, 500, 9_500_000, ACCOUNT, "jsonl", "plain"),
    )
    held = {"created_at": now - DAY, "due_at": now + 3_600, "total": 1_000, **more}
    return Job(
        job_id=f"20261121T093000Z-{name:0>8}",
        state=JobState.IN_PROGRESS,
        upload=upload,
        plan=plan,
        **held,
    )


def put_batches(job: Job, count: int, *, state: BatchState, due_in: float) -> None:
    """Batches of a job as they stand while they wait to be submitted or polled."""
    now = time.time()
    queued = state is BatchState.QUEUED
    for number in range(count):
        batch = Batch(
            job_id=job.job_id,
            number=f"{number:08d}",
            state=state,
            records=Records(first_id=number, requests=1, sendable=1, body_size=10),
            created_at=now - DAY,
            due_at=now + due_in + number / 1_000,
            work=DueKind.POLL if queued else DueKind.SUBMIT,
            submission=Submission(f"{job.job_id}/{number}", 1, now - DAY / 2) if queued else None,
            attempt=int(queued),
        )
        key = {"pk": {"S": f"JOB#{job.job_id}"}, "sk": {"S": f"BATCH#{batch.number}"}}
        quick_dynamodb.put({**key, **attributes(batch)})


def batches_of(world: World, job_id: str) -> list[dict[str, Any]]:
    found = [
        item
        for item in world.items()
        if item["pk"]["S"] == f"JOB#{job_id}" and item["sk"]["S"] != "META"
    ]
    return sorted(found, key=lambda item: item["sk"]["S"])


def waiting(world: World, queue: str) -> int:
    """Messages that nobody has taken."""
    asked = {"QueueUrl": world.queues[queue], "AttributeNames": ["ApproximateNumberOfMessages"]}
    return int(world.sqs.get_queue_attributes(**asked)["Attributes"]["ApproximateNumberOfMessages"])


def minutes_until(
    world: World, is_so: Callable[[], object], *, most: float, step: float = 10
) -> float:
    """Minutes of ticks and deliveries until something is so; fails beyond `most`."""
    began = time.time()
    while not is_so():
        assert time.time() - began <= most * MINUTE, f"not within {most} minutes"
        world.deliver_all()
        world.tick()
        world.deliver_all()
        world.pass_time(step)
    return (time.time() - began) / MINUTE


def edit(world: World, key: dict[str, Any], **values: dict[str, Any]) -> None:
    for name, value in values.items():
        world.dynamodb.update_item(
            TableName=TABLE,
            Key={"pk": key["pk"], "sk": key["sk"]},
            UpdateExpression="SET #name = :value",
            ExpressionAttributeNames={"#name": name},
            ExpressionAttributeValues={":value": value},
        )

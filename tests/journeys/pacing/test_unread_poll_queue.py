"""A poll queue that nobody reads, or that may not be asked.

No job waits for ever, and none is hidden by another.
"""

import json

import pytest
from botocore.exceptions import ClientError

from tests.support.translations import M2M, greetings, polls

READ = ("UploadQueue", "SplitQueue", "SubmitQueue", "VisitQueue")
"""All queues but that of polls."""


def run(world, minutes, queues=READ):
    """Deliver the messages of some queues, with a tick each minute."""
    ends = world.now() + 60 * minutes
    while world.now() < ends:
        for queue in queues:
            world.deliver(queue)
        world.tick()
        for queue in queues:
            world.deliver(queue)
        world.pass_time(max(60 - world.now() % 60, 1))


def states(world):
    """Each job's state, and what it waits for, by its upload."""
    found = {
        key.split("/")[1]: json.loads(world.read(key))
        for key in world.objects()
        if key.endswith("status.json")
    }
    return {
        name: (one["state"], one["waiting_for"] and one["waiting_for"]["code"])
        for name, one in found.items()
    }


@pytest.mark.parametrize("calls", [20, 200])
def test_batches_are_polled_although_event_source_is_disabled(start, api, calls):
    """At 20 calls a minute, batches of a large job hid those of a small one."""
    world = start(MAX_REQUESTS_PER_BATCH=100, API_CALLS_PER_MINUTE=calls)
    api.switch(latency=300.0)
    world.upload_records("large.jsonl", greetings(2_100), model=M2M)
    run(world, 20)
    world.upload_records("small.jsonl", greetings(3), model=M2M)
    run(world, 60)

    assert states(world) == {"large.jsonl": ("completed", None), "small.jsonl": ("completed", None)}
    assert polls(api) <= 3 * len(api.accepted)


@pytest.mark.parametrize(
    ("queue", "code"),
    [
        ("PollQueue", "AWS.SimpleQueueService.NonExistentQueue"),
        ("VisitQueue", "InternalError"),
        ("SubmitQueue", "InternalError"),
    ],
)
def test_queue_that_fails_kills_no_tick(start, api, queue, code):
    """Every tick ended at it, so that nothing that was accepted was collected."""
    world = start(MAX_REQUESTS_PER_BATCH=100)
    api.switch(latency=120.0)
    world.upload_records("large.jsonl", greetings(1_100), model=M2M)
    world.upload_records("small.jsonl", greetings(3), model=M2M)
    run(world, 1)

    def fail(called, arguments):
        if called in {"GetQueueAttributes", "SendMessageBatch"} and queue in arguments["QueueUrl"]:
            raise ClientError({"Error": {"Code": code, "Message": "no"}}, called)

    world.permissions.before = fail
    run(world, 30)

    assert states(world)["small.jsonl"] == ("completed", None)

"""Functions that die, queues that nobody reads, an API that is silent: everything comes to its end.

No job waits for ever, and none is hidden by another.
"""

import dataclasses
import json
import time
from collections import Counter
from contextlib import contextmanager

import pytest
from botocore.exceptions import ClientError

import functions.poll.handler
import functions.poll.tick
from functions.poll.tick import tick
from shared.pacing.breaker import PauseReason, Permit
from shared.services import Invocation
from shared.workers_ai.replies import OutcomeUnknown
from tests.support.journeys.deaths import Boundaries, mortal_world
from tests.support.translations import M2M, greetings, polls

MINUTE, DAY = 60.0, 86_400.0
READ = ("UploadQueue", "SplitQueue", "SubmitQueue", "VisitQueue")
"""All queues but that of polls."""


def run(world, minutes, queues=READ):
    """Deliver the messages of some queues, with a tick each minute."""
    ends = world.now() + MINUTE * minutes
    while world.now() < ends:
        for queue in queues:
            world.deliver(queue)
        world.tick()
        for queue in queues:
            world.deliver(queue)
        world.pass_time(max(MINUTE - world.now() % MINUTE, 1))


class Silent:
    """The API, which takes a poll and says nothing until its time is over."""

    def __init__(self, services):
        self.sleep, self.transport = services.sleep, services.api.transport
        self.calls = Counter()

    @contextmanager
    def poll(self, model, request_id, seconds, records):
        self.calls[request_id] += 1
        self.sleep(seconds)
        yield OutcomeUnknown("ReadTimeout")


def test_tick_ends_within_a_minute_without_api(world, subtests):
    world.upload_records("a.jsonl", greetings(1), model=M2M)
    world.deliver("UploadQueue")
    services = functions.poll.handler.services()
    services = dataclasses.replace(services, api=Silent(services))
    for due_in in (0, 20, 30, 40, 50):
        (batch,) = services.ledger.batches(world.job_id())
        began = time.time()
        services.ledger.schedule_poll(batch, began + due_in)

        tick(Invocation(services, began + 150))

        with subtests.test(due_in):
            assert time.time() - began <= MINUTE
    assert services.api.calls.total() >= 3, "later polls are left to the next tick"


@pytest.mark.slow
def test_job_ends_before_its_objects_expire(start, api, monkeypatch):
    monkeypatch.setattr(functions.poll.tick, "TICK_SECONDS", 0.0)
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.switch(latency=3_600.0)
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue", most=1)
    world.sqs.purge_queue(QueueUrl=world.queues["SubmitQueue"])
    budget = functions.poll.handler.services().budget
    budget.pause(PauseReason.TOKEN_REFUSED, time.time(), "10000", Permit())
    api.switch(tokens=("another",))
    world.pass_time(51 * DAY)

    world.settle(minutes=10)

    manifest = world.manifest()
    assert (manifest["state"], manifest["error"]["code"]) == ("failed", "expired")
    assert [line["error"]["code"] for line in world.lines()] == ["expired", "expired"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "mode", "found"),
    [("HeadObject", "before", "META"), ("PutItem", "after", "BATCH#")],
    ids=["before there is a job", "before its first turn"],
)
def test_work_of_dead_function_begins_in_3_minutes(api, call, mode, found):
    """S3's notification comes again; if there is a job, the tick takes it."""
    boundaries = Boundaries()
    with mortal_world(api, boundaries) as world:
        world.upload_records("a.jsonl", greetings(1), model=M2M)
        boundaries.strike_first(call, mode)
        world.deliver("UploadQueue")
        assert boundaries.struck
        died = time.time()
        while not world.all_over() and time.time() < died + 5 * MINUTE:
            world.deliver_all()
            world.tick()
            world.deliver_all()
            world.pass_time(10)

        assert float(world.item(found)["created_at"]["N"]) - died <= 3 * MINUTE + 10
        assert [batch["attempts"] for batch in world.manifest()["batches"]] == [1]


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


@pytest.mark.parametrize("calls", [20, pytest.param(200, marks=pytest.mark.slow)])
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

"""Functions that die or never end, and what stands in the way for weeks.

Everything comes to its end.
"""

import dataclasses
import random
import time
from collections import Counter
from contextlib import contextmanager

import pytest

from functions.poll.tick import tick
from shared.models import BatchState
from shared.pacing.breaker import PauseReason, Permit
from shared.services import Invocation
from shared.workers_ai.replies import OutcomeUnknown
from tests.support.journeys.deaths import Boundaries, mortal_world
from tests.support.journeys.placed_items import (
    BGE,
    DAY,
    MINUTE,
    job_of,
    minutes_until,
    put_batches,
    services_of,
    texts,
)

pytestmark = pytest.mark.slow  # They take minutes together.


TIMEOUT = 150.0


# ── time ──────────────────────────────────────────────────────────────────────────────────────────


class Silent:
    """The API, which takes a poll and says nothing until its time is over."""

    def __init__(self, sleep):
        self.sleep = sleep
        self.calls = Counter()

    @contextmanager
    def poll(self, model, request_id, seconds):
        self.calls[request_id] += 1
        self.sleep(seconds)
        yield OutcomeUnknown("ReadTimeout")


@pytest.mark.parametrize("due_in", [0, 20, 30, 40, 50])
def test_tick_ends_within_a_minute_without_api(start, due_in):
    start()
    services = services_of()
    services = dataclasses.replace(services, api=Silent(services.sleep))
    job = dataclasses.replace(job_of("small"), total=1)
    services.ledger.create_job(job)
    put_batches(job, 1, state=BatchState.QUEUED, due_in=due_in)
    began = time.time()

    tick(Invocation(services, began + TIMEOUT))

    assert time.time() - began <= MINUTE


# ── what stands in the way for weeks ──────────────────────────────────────────────────────────────


def test_job_ends_before_its_objects_expire(start, api, short_ticks):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.switch(latency=3_600.0)
    world.upload_records("a.jsonl", texts(2), model=BGE)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue", most=1)
    world.sqs.purge_queue(QueueUrl=world.queues["SubmitQueue"])
    services_of().budget.pause(PauseReason.TOKEN_REFUSED, time.time(), "10000", Permit())
    api.switch(tokens=("another",))
    world.pass_time(51 * DAY)

    minutes_until(world, lambda: len(world.manifests()) == 1, most=10, step=30)

    manifest = world.manifest()
    assert (manifest["state"], manifest["error"]["code"]) == ("failed", "expired")
    assert [line["error"]["code"] for line in world.lines()] == ["expired", "expired"]


# ── deaths ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("call", "mode", "found"),
    [("HeadObject", "before", "META"), ("PutItem", "after", "BATCH#")],
    ids=["before there is a job", "before its first turn"],
)
def test_work_of_dead_function_begins_in_3_minutes(api, call, mode, found):
    """S3's notification comes again; if there is a job, the tick takes it."""
    boundaries = Boundaries()
    with mortal_world(api, boundaries) as world:
        world.upload_records("a.jsonl", texts(1), model=BGE)
        boundaries.strike_first(call, mode)
        world.deliver("UploadQueue")
        assert boundaries.struck
        died = time.time()

        minutes_until(world, world.all_over, most=5)

        assert float(world.item(found)["created_at"]["N"]) - died <= 3 * MINUTE + 10
        assert [batch["attempts"] for batch in world.manifest()["batches"]] == [1]


def test_forty_deaths_are_recovered_in_five_minutes(api):
    chance = random.Random(1)
    boundaries = Boundaries()
    with mortal_world(api, boundaries, MAX_REQUESTS_PER_BATCH=2) as world:
        for name in range(3):
            world.upload_records(f"{name}.jsonl", texts(6), model=BGE)
        world.deliver("UploadQueue")
        deaths = 0
        while deaths < 40:
            boundaries.strike(chance.randint(1, 25), chance.choice(["before", "after"]))
            world.tick()
            for queue in ("SubmitQueue", "PollQueue"):
                if not boundaries.struck:
                    world.deliver(queue, most=3)
            deaths += bool(boundaries.struck)
            world.pass_time(1.5)
            if world.all_over():
                break
        boundaries.strike(0, "after")

        assert minutes_until(world, world.all_over, most=5) <= 5

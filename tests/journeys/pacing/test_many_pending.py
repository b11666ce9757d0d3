"""Ticks while very many batches are pending: what one does is bounded by the rate, not by how many there are."""

import dataclasses
from collections import Counter
from contextlib import contextmanager

import botocore.client
import pytest

import functions.poll.handler
import functions.poll.schedule.due_jobs
import functions.poll.schedule.due_polls
import functions.poll.schedule.tick
from functions.poll.schedule.due_jobs import LARGE_RECORDS
from functions.poll.schedule.due_polls import BATCHES_PER_MESSAGE, advance_batches
from functions.poll.schedule.tick import MAX_JOBS, TICK_SECONDS, tick
from shared.aws.queues import decode_message
from shared.invocation import Invocation
from shared.models import Batch, BatchState, DueKind, Submission
from shared.workers_ai.replies import Pending
from tests.support.aws import quick_dynamodb
from tests.support.journeys.placed_items import job_of

JOB = "20261121T093000Z-0000000a"
TIMEOUT = 150.0
MINUTE = 60.0


class PendingForever:
    """The API, which finishes nothing."""

    def __init__(self):
        self.asked = Counter()

    @contextmanager
    def poll(self, model, request_id, seconds):
        self.asked[request_id] += 1
        yield Pending("queued")


def items_of(world):
    return {item["sk"]["S"]: item for item in world.items() if item["sk"]["S"].startswith("BATCH#")}


@pytest.fixture
def pending(start):
    """Makes so many pending batches, each third one due; the world, and services with an API that finishes nothing."""

    def make(count, calls_per_minute):
        world = start(API_CALLS_PER_MINUTE=calls_per_minute)
        services = functions.poll.handler.services()
        now = services.now()
        job = job_of("a", created_at=now, due_at=now + 300, total=count)
        services.ledger.create_job(job)
        accepted = (Submission("request", 1, now - 600),)
        held = {"created_at": now - 900, "due_at": now, "work": DueKind.POLL, "attempt": 1, "submissions": accepted}
        size = {"first_id": 0, "requests": 1, "sendable": 1, "body_size": 10}
        batch = Batch(job_id=JOB, number="00000000", state=BatchState.QUEUED, **size, **held)
        services.ledger.create_batch(batch)
        (first,) = items_of(world).values()
        for number in range(count):
            name = f"{number:08d}"
            due_at = now - 60 + number / count if number % 3 == 0 else now + 600
            request = {"L": [{"M": {**first["submissions"]["L"][0]["M"], "request_id": {"S": name}}}]}
            own = {"sk": {"S": f"BATCH#{name}"}, "number": {"S": name}, "due_at": {"N": repr(due_at)}}
            quick_dynamodb.put({**first, **own, "submissions": request})
        return world, dataclasses.replace(services, api=PendingForever())

    return make


@pytest.mark.parametrize(("count", "rate"), [(150, 20), pytest.param(10_000, 200, marks=pytest.mark.slow)])
def test_tick_does_what_rate_allows(pending, monkeypatch, count, rate):
    """It does what the rate allows until the next tick, and touches nothing else."""
    world, services = pending(count, rate)
    before, calls = items_of(world), Counter()
    real = botocore.client.BaseClient._make_api_call

    def counted(client, operation, arguments):
        answer = real(client, operation, arguments)
        calls[operation] += 1
        counts_all = arguments.get("ProjectionExpression") == "pk"  # Once a tick, to see which models are full.
        calls["items read"] += 0 if counts_all else len(answer.get("Items", [])) + ("Item" in answer)
        return answer

    began = services.now()
    with monkeypatch.context() as patch:
        patch.setattr(botocore.client.BaseClient, "_make_api_call", counted)
        tick(Invocation(services, began + TIMEOUT))

    cycles = MINUTE
    allowed = services.budget.calls_in(MINUTE)
    polls = sum(services.api.asked.values())
    changed = [sk for sk, item in items_of(world).items() if item != before[sk]]
    assert (polls > 0) == (count <= LARGE_RECORDS), "a large job's batches are all handed over"
    assert polls <= len(changed) <= allowed
    assert changed
    assert all(float(before[sk]["due_at"]["N"]) <= services.now() for sk in changed)
    # A claim and a note for each poll, a token for each call, a postponement for each one handed over.
    assert calls["UpdateItem"] <= 3 * allowed + cycles
    assert calls["items read"] <= 6 * allowed + MAX_JOBS + 5 * cycles
    # Near its end a tick polls nothing itself: it would not be over in time if the API were silent.
    assert calls["SendMessageBatch"] <= allowed / BATCHES_PER_MESSAGE + TICK_SECONDS / 4
    longest_due = sorted((item for item in before.values()), key=lambda item: float(item["due_at"]["N"]))
    assert set(changed) == {item["sk"]["S"] for item in longest_due[: len(changed)]}


def test_tick_hands_over_what_it_cannot_reach(pending):
    """All tokens are used, but no more."""
    world, services = pending(300, 100)
    began = services.now()
    tick(Invocation(services, began + 42))
    by_tick = sum(services.api.asked.values())

    answer = world.sqs.receive_message(QueueUrl=world.queues["PollQueue"], MaxNumberOfMessages=10)
    handed = [batch for message in answer["Messages"] for batch in decode_message(message["Body"]).batches]
    advance_batches(Invocation(services, services.now() + TIMEOUT), handed)

    seconds = services.now() - began
    asked = sum(services.api.asked.values())
    assert len(set(handed)) == len(handed) > 0
    assert asked > by_tick
    assert services.budget.poll_burst <= asked <= services.budget.burst + seconds * 1_000 / services.budget.interval

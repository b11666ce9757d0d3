"""The times of polls are learned: on the whole path, from one job to the next."""

import time

import pytest

import functions.submit.handler
from dropbatch.core.names import CONTROL_PK
from shared.errors import StorageError
from shared.pacing.cadence import UNKNOWN_POLL

M2M = "@cf/meta/m2m100-1.2b"
GREETING = [{"text": "hello", "target_lang": "es"}]


def run_job(world):
    """Run one job to its end."""
    world.upload_records("a.jsonl", GREETING, model=M2M)
    world.settle()
    assert world.manifest()["counts"]["succeeded"] == 1


def test_forgotten_model_is_polled_like_new(world, monkeypatch):
    def broken(*_, **__):
        raise StorageError("DynamoDB is away")

    monkeypatch.setattr("shared.pacing.cadence.Cadence.call", broken)
    run_job(world)


@pytest.mark.parametrize("kind", [{"S": "odd"}, {"L": [{"N": "1"}]}])
def test_slot_that_holds_something_else_is_not_fault(world, kind):
    key = {"pk": {"S": CONTROL_PK}, "sk": {"S": f"RATE#TIMES#{M2M}"}}
    world.dynamodb.put_item(TableName="ledger", Item={**key, "b99": kind})
    run_job(world)


def test_process_learns_model_from_first_answer(world):
    services = functions.submit.handler.services()
    now = time.time()
    assert services.times.first_poll(M2M, "00000009", now) >= UNKNOWN_POLL

    services.times.note(M2M, 0.0, 6.0, now)

    assert services.times.first_poll(M2M, "00000009", now + 1) < UNKNOWN_POLL / 2


@pytest.mark.parametrize(("calls", "least"), [(4, 30.0), (20, 6.0)])
def test_no_poll_comes_sooner_than_call_for_it(start, calls, least):
    start(API_CALLS_PER_MINUTE=calls)
    services, now = functions.submit.handler.services(), time.time()
    services.times.note(M2M, 0.0, 0.7, now)

    assert services.times.first_poll(M2M, "00000000", now + 1) == least
    assert services.times.next_poll(M2M, 1.0, now + 1) == least


@pytest.mark.parametrize("seconds", [2, 8, 25])
def test_small_job_needs_no_tick(start, api, seconds):
    world = start()
    world.wakes = True
    api.switch(latency=float(seconds))
    world.upload_records("a.jsonl", GREETING, model=M2M)
    began = time.time()

    while not world.manifests():
        assert time.time() - began <= max(2 * seconds, 6)
        world.deliver_all()
        world.pass_time(1)

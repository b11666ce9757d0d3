"""The times of polls are learned: on the whole path, from one job to the next."""

import time

import pytest

import functions.submit.handler
from shared.errors import StorageError
from shared.pacing.poll_schedule import LATER_FIRST

M2M = "@cf/meta/m2m100-1.2b"
GREETING = [{"text": "hello", "target_lang": "es"}]


def run_job(world, api, name):
    """Run one job; the polls it took."""
    before = sum(api.calls.get("poll", {}).values())
    world.upload_records(name, GREETING, model=M2M)
    world.settle()
    return sum(api.calls.get("poll", {}).values()) - before


def test_forgotten_model_is_polled_like_new(world, api, monkeypatch):
    def broken(*_, **__):
        raise StorageError("DynamoDB is away")

    monkeypatch.setattr("shared.pacing.completion_times.call_dynamodb", broken)

    run_job(world, api, "a.jsonl")

    assert world.manifest()["counts"]["succeeded"] == 1


@pytest.mark.parametrize("kind", [{"S": "odd"}, {"L": [{"N": "1"}]}])
def test_slot_that_holds_something_else_is_not_fault(world, api, kind):
    key = {"pk": {"S": "CONTROL"}, "sk": {"S": f"RATE#TIMES#{M2M}"}}
    world.dynamodb.put_item(TableName="ledger", Item={**key, "b99": kind})

    run_job(world, api, "a.jsonl")

    assert world.manifest()["counts"]["succeeded"] == 1


def test_process_learns_model_from_first_answer(world):
    services = functions.submit.handler.services()
    now = time.time()
    assert services.times.first_poll(M2M, "00000009", now) >= LATER_FIRST

    for number in range(7):
        services.times.note(M2M, f"{number:08d}", 0.0, 6.0, now)

    assert services.times.first_poll(M2M, "00000009", now + 1) < LATER_FIRST / 2


@pytest.mark.parametrize(("apart", "is_held"), [(20, True), (-20, False)], ids=["in order", "the other way round"])
def test_model_that_works_in_order_is_polled_in_order(world, monkeypatch, apart, is_held):
    monkeypatch.setattr("shared.pacing.completion_times.random.random", lambda: 0.9)
    slots = iter(range(40))
    monkeypatch.setattr("shared.pacing.completion_times.random.randrange", lambda _: next(slots))
    services, now = functions.submit.handler.services(), time.time()
    for number in range(30):  # Accepted every 10 s, and over every 10 + `apart` s.
        services.times.note(M2M, f"{number:08d}", 595.0, 600.0 + apart * number, now + (10 + apart) * number)
    now += 1_000

    assert services.times.seconds_behind(M2M, now - 50, now) == 0.0
    services.times.note_pending(M2M, now - 90, now)
    services.times.next_poll(M2M, 90.0, now)
    assert services.times.seconds_behind(M2M, now - 50, now) == (40.0 if is_held else 0.0)
    monkeypatch.setattr("shared.pacing.completion_times.random.random", lambda: 0.01)
    assert services.times.seconds_behind(M2M, now - 50, now) == 0.0


@pytest.mark.parametrize(("calls", "least"), [(4, 30.0), (20, 6.0)])
def test_no_poll_comes_sooner_than_call_for_it(start, calls, least):
    start(API_CALLS_PER_MINUTE=calls)
    services, now = functions.submit.handler.services(), time.time()
    for number in range(7):
        services.times.note(M2M, f"{number:08d}", 0.0, 0.7, now)

    assert services.times.first_poll(M2M, "00000000", now + 1) == least
    assert services.times.next_poll(M2M, 1.0, now + 1) == least


@pytest.mark.parametrize(("hours", "least", "most"), [(5, 250.0, 330.0), (7, 125.0, 165.0)])
def test_first_batch_of_the_day_is_polled_at_half(world, hours, least, most):
    services, now = functions.submit.handler.services(), time.time()
    for number in range(20):
        services.times.note(M2M, f"{number:08d}", 270.0, 280.0, now)

    assert least <= services.times.first_poll(M2M, "00000000", now + 3_600 * hours) <= most

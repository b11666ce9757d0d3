"""The times of polls are learned: on the whole path, from one job to the next."""

import time

import pytest

import functions.submit.handler
from dropbatch.core.names import completion_times
from shared.errors import StorageError
from shared.pacing.completion_times import SIGHTING_READ_EVERY, CompletionTimes
from shared.pacing.controls import control_key
from shared.pacing.poll_schedule import LATER_FIRST, MAX_IN_ORDER_SECONDS

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

    monkeypatch.setattr("shared.pacing.completion_times.CompletionTimes.call", broken)

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


@pytest.fixture
def processes(world, monkeypatch):
    """The completion times of two processes that know a model whose batches are over every 10 + `apart` s."""
    monkeypatch.setattr("shared.pacing.completion_times.random.random", lambda: 0.9)
    slots = iter(range(40))
    monkeypatch.setattr("shared.pacing.completion_times.random.randrange", lambda _: next(slots))

    def known(apart=20):
        first, now = functions.submit.handler.services().times, time.time()
        for number in range(30):  # Accepted every 10 s.
            took = 300.0 + apart * (number if apart > 0 else number - 30)
            first.note(M2M, f"{number:08d}", took - 5.0, took, now + 10 * number + took)
        other = CompletionTimes(first.client, first.table)
        for one in (first, other):
            one.next_poll(M2M, 90.0, now + 1_500)
        return first, other, now + 1_500

    return known


@pytest.mark.parametrize(
    ("apart", "held"), [(20, 40.0), (-20, 0.0)], ids=["in order", "the other way round"]
)
def test_model_that_works_in_order_is_polled_in_order(processes, monkeypatch, apart, held):
    one, _, now = processes(apart)
    assert one.seconds_behind(M2M, now - 50, now) == 0.0
    one.note_pending(M2M, now - 90, now)

    assert one.seconds_behind(M2M, now - 50, now) == held
    assert (one.next_poll(M2M, 1_000.0, now) <= MAX_IN_ORDER_SECONDS) is (held > 0)
    monkeypatch.setattr("shared.pacing.completion_times.random.random", lambda: 0.01)
    assert one.seconds_behind(M2M, now - 50, now) == 0.0


def test_what_one_process_finds_pending_holds_back_others(processes):
    """Within seconds: they read it now and then."""
    one, other, now = processes()
    assert other.seconds_behind(M2M, now - 50, now) == 0.0
    one.note_pending(M2M, now - 90, now)

    assert other.seconds_behind(M2M, now - 50, now + SIGHTING_READ_EVERY - 0.1) == 0.0
    assert other.seconds_behind(M2M, now - 50, now + SIGHTING_READ_EVERY) == 40.0


def test_earliest_pending_batch_is_what_all_know(processes):
    one, other, now = processes()
    one.note_pending(M2M, now - 90, now)
    other.note_pending(M2M, now - 70, now + 1)  # It has not read of the first one yet.

    third = CompletionTimes(one.client, one.table)
    third.next_poll(M2M, 90.0, now)
    for process in (one, other, third):
        assert process.seconds_behind(M2M, now - 50, now + 2) == 40.0
    other.note_pending(M2M, now - 60, now + 26)  # The first one may be over.
    assert third.seconds_behind(M2M, now - 50, now + 27) == 10.0


@pytest.mark.parametrize(
    "seen", [{"N": "9999999999"}, {"S": "never"}], ids=["in the future", "no number"]
)
def test_sighting_that_cannot_be_right_holds_back_nothing(processes, seen):
    one, _, now = processes()
    one.client.update_item(
        TableName=one.table,
        Key=control_key(completion_times(M2M)[1]),
        UpdateExpression="SET pending_seen = :seen, pending_accepted = :accepted",
        ExpressionAttributeValues={":seen": seen, ":accepted": {"N": "1"}},
    )

    assert one.seconds_behind(M2M, now - 50, now) == 0.0


def test_table_that_fails_holds_back_nothing(processes, monkeypatch):
    one, _, now = processes()

    def hang(*_args, **_named):
        raise StorageError("no answer")

    monkeypatch.setattr("shared.pacing.completion_times.CompletionTimes.call", hang)

    assert one.seconds_behind(M2M, now - 50, now) == 0.0
    one.note_pending(M2M, now - 90, now)
    assert one.seconds_behind(M2M, now - 50, now) == 40.0  # It knows of its own.


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

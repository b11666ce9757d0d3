"""Wake-ups, cadence, and open jobs."""

import dataclasses
import json
import math
import time

import pytest

import functions.poll.due_polls
import functions.poll.handler
import functions.poll.tick
from shared.aws.queues import MAX_HOPS, PollMessage
from shared.errors import StorageError
from shared.pacing.breaker import Permit
from shared.pacing.wake import LeftDue, Wakes, wake
from tests.support.aws.resources import TABLE
from tests.support.translations import M2M


@pytest.fixture
def services(world):
    return functions.poll.handler.services()


@pytest.fixture
def wakes(services):
    """Wake-ups of a real table, which the fixture `world` would drop."""
    return Wakes(services.wakes.client, TABLE)


@pytest.fixture
def plan(wakes, monkeypatch, world):
    world.wakes = True
    return wakes.plan


class Recorder:
    """A client of SQS that keeps what is sent."""

    def __init__(self, sent):
        self.sent = sent

    def send_message_batch(self, **given):
        self.sent += given["Entries"]
        return {}


def messages(world, queue="PollQueue"):
    """The bodies of what waits in a queue, delayed or not."""
    world.pass_time(60)
    found = world.sqs.receive_message(QueueUrl=world.queues[queue], MaxNumberOfMessages=10).get(
        "Messages", []
    )
    return [json.loads(one["Body"]) for one in found]


def test_thousand_batches_plan_one_wake_up(plan):
    now = time.time()

    assert [plan(now + 5 + number / 1_000, now) for number in range(1_000)].count(None) == 999


def test_whoever_lifts_a_pause_replaces_who_looks(plan, wakes, services):
    now = time.time()
    services.budget.note_outstanding(0, (), now, now + 52)

    assert plan(now + 5, now + 5) is None
    planned = plan(now + 5, now + 5, at_once=True)
    assert wakes.begin(planned, now + 6) == now + 58
    assert plan(now + 57, now + 57, at_once=True) is not None
    assert plan(now + 59, now + 59, at_once=True) is None  # The tick itself comes.


@pytest.mark.parametrize(
    ("due_in", "ticked_ago", "is_planned"),
    [
        (5, 30, True),
        (28, 30, True),
        (29.5, 30, False),
        (31, 30, False),
        (5, 69, False),
        (5, 71, True),
    ],
)
def test_next_tick_in_time_needs_no_wake(plan, services, due_in, ticked_ago, is_planned):
    now = time.time()
    now -= now % 1
    services.budget.note_outstanding(1, (), now - ticked_ago, now - ticked_ago)

    assert (plan(now + due_in, now) is not None) is is_planned


@pytest.mark.parametrize(("due_in", "delay"), [(0, 0), (4.2, 4), (5, 5)])
def test_message_of_wake_up_is_delayed_until_due(services, world, due_in, delay):
    world.wakes = True
    sent = []
    services = dataclasses.replace(
        services, queues=dataclasses.replace(services.queues, client=Recorder(sent))
    )

    planned = wake(services, time.time() + due_in)

    (entry,) = sent
    assert entry["DelaySeconds"] == delay
    assert json.loads(entry["MessageBody"]) == {"do": "wake", "at": planned, "hops": 1}


def item(number, due_at, work="v2#poll"):
    held = {"due_at": {"N": str(due_at)}, "work": {"S": work}} if due_at else {}
    return {"pk": {"S": "JOB#a"}, "sk": {"S": f"BATCH#{number}"}, **held}


def test_end_of_chain_of_messages_sends_nothing(services, world):
    def sent(hops):
        own = dataclasses.replace(services, queues=dataclasses.replace(services.queues, hops=hops))
        own.queues.send(PollMessage((("a", "0", 0.0),)))
        wake(own, time.time())
        return [(one["do"], one["hops"]) for one in messages(world)]

    world.wakes = True
    assert sent(MAX_HOPS) == []
    assert sent(MAX_HOPS - 1) == [("poll", MAX_HOPS)]  # A wake-up could send nothing.
    assert sorted(sent(MAX_HOPS - 2)) == [("poll", MAX_HOPS - 1), ("wake", MAX_HOPS - 1)]


GREETING = [{"text": "hello", "target_lang": "es"}]


def run_job(world):
    """Run one job to its end."""
    world.run("a.jsonl", GREETING, model=M2M)
    assert world.manifest()["counts"]["succeeded"] == 1


def test_forgotten_model_is_polled_like_new(world, monkeypatch):
    def broken(*_, **__):
        raise StorageError("DynamoDB is away")

    monkeypatch.setattr("shared.pacing.cadence.Cadence.call", broken)
    run_job(world)


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


def test_batches_of_a_message_without_tokens_wait_for_a_second(start, api, monkeypatch):
    """Not until they are due as if the message had been lost."""
    monkeypatch.setattr(functions.poll.due_polls, "MAX_OWN_POLLS", 0)
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.switch(latency=300.0)
    world.upload_records("a.jsonl", GREETING * 3, model=M2M)
    world.deliver_all()
    world.pass_time(30)
    world.tick()
    budget = functions.poll.handler.services().budget
    monkeypatch.setattr(type(budget), "permit_polls", lambda *_: (1, Permit()))

    world.deliver("PollQueue")

    assert sum(one["polls"] for one in api.accepted) == 1
    waits = sorted(float(one["due_at"]["N"]) - world.now() for one in world.open_items())
    assert waits[:2] == [pytest.approx(1.0, abs=0.1)] * 2


def test_job_of_dead_collector_is_over_in_a_minute(world, monkeypatch):
    """The function died after it had stored the job's last answer."""
    world.upload_records("a.jsonl", GREETING, model=M2M)
    world.deliver("UploadQueue")
    world.pass_time(30)
    began, died = world.now(), []
    monkeypatch.setattr(functions.poll.due_polls, "visit_job", lambda *_: died.append(1) or 1 / 0)

    world.tick()

    assert died == [1]
    assert len(world.manifests()) == 1
    assert world.now() - began <= 60


@pytest.mark.parametrize(("own", "is_planned"), [(0, True), (-1, False)], ids=["itself", "another"])
def test_who_looks_is_replaced_by_itself(plan, wakes, services, own, is_planned):
    now = time.time()
    services.budget.note_outstanding(1, (), now, now + 52)

    planned = plan(now + 20, now, instead_of=now + own)

    assert (planned is not None) is is_planned
    assert plan(now + 10, now) == (math.ceil(now + 10) if is_planned else None)


def test_whoever_looks_no_longer_is_replaced(plan, wakes):
    now = time.time()
    planned = plan(now, now)
    assert plan(now + 3, now) is None

    wakes.end(planned, now + 2)

    assert plan(now + 3, now) is not None
    wakes.end(planned, now + 3)
    assert plan(now + 4, now) is None


def test_earliest_time_without_message_counts():
    left = LeftDue()
    for number, due_at in (("1", 50), ("2", 20), ("3", 30), ("4", 10), ("5", 5)):
        left.note(item(number, due_at), {"due_at"})
    left.cover("a", "4")
    left.note(item("2", None), {"due_at"})
    left.note(item("5", 5, "v2#routine"), {"due_at"})
    left.note(item("6", 1), {"wait"})
    left.look(40, "a", "7")

    assert left.earliest() == 30
    left.look(60, "a", "3")
    assert left.earliest() == 40  # It was set aside.

"""Load, and turns between kinds of work: what the project once did wrong."""

import json
from collections import Counter
from dataclasses import replace
from math import inf
from types import SimpleNamespace

import pytest

from functions.poll import commands, dispatch, tick
from functions.submit import handler
from functions.submit import read as turn
from functions.submit import stage as create_batches
from local.workers_ai import Behaviour, Fault
from shared.ledger.batches import Batches
from shared.models import DueKind
from simulation.services.awkward import Awkward
from tests.simulation.explore.schedules import Schedule, run
from tests.simulation.explore.small_worlds import SMALL_WORLDS
from tests.simulation.worlds.judges import Laws, Promises
from tests.simulation.worlds.users import MODELS, drop
from tests.simulation.worlds.world import simulated

OF_NAME = {one.name: one for one in SMALL_WORLDS}


def world_with(calls_per_minute=200, awkward=None, latency=2.0, size=1):
    settings = {"MAX_REQUESTS_PER_BATCH": size, "API_CALLS_PER_MINUTE": calls_per_minute}
    return simulated(1, awkward, Behaviour(embedder="hash", latency=latency), **settings)


def laws_broken(name):
    return {one.law for one in run(OF_NAME[name], Schedule()).violations}


def test_split_that_is_decided_anew_by_each_run(monkeypatch):
    monkeypatch.setattr(
        Batches, "decide_pieces", lambda _self, batch, pieces: replace(batch, pieces=pieces)
    )

    assert "a batch is split or ended, not both" in laws_broken("refused record")


@pytest.mark.slow
def test_polls_that_are_not_counted_go_on_for_weeks(monkeypatch):
    real = Batches.schedule_poll
    monkeypatch.setattr(
        Batches,
        "schedule_poll",
        lambda self, batch, at, **updates: real(self, batch, at, **(updates | {"claims": 0})),
    )

    assert "everything is over in time" in laws_broken("unreadable answers")


def seconds_behind_batches_without_a_job():
    """Seconds that 8 batches take behind 120 due ones whose job is missing."""
    with world_with(4) as world:
        promises = Promises(Laws(world))
        lost = drop(world, "lost.jsonl", 120)
        world.run(3)
        world.dynamodb.delete_item(
            TableName=world.dynamodb.table,
            Key={"pk": {"S": f"JOB#{lost.upload.job_id}"}, "sk": {"S": "META"}},
        )
        world.run(7_200)
        dropped = drop(world, "b.jsonl", 8, MODELS[1])
        world.run(1_800, lambda: bool(promises.over))
        return promises.seconds_of(dropped)


@pytest.mark.slow
def test_batches_without_a_job_delay_no_other():
    assert seconds_behind_batches_without_a_job() < 600


def messages_without_a_consumer():
    """Messages in the submit queue after five minutes in which nobody has received one."""
    with world_with() as world:
        drop(world, "a.jsonl", 100)
        world.run(1.5)
        world.sources["SubmitQueue"].most = 0
        world.run(300)
        return len(world.sqs.queues["SubmitQueue"].messages)


def test_dispatch_without_bound_fills_the_queue(monkeypatch):
    assert messages_without_a_consumer() <= 60
    monkeypatch.setattr(dispatch, "MAX_SUBMITS_WAITING", 1_000_000)

    assert messages_without_a_consumer() > 200


def laws_of_many_drops():
    """Laws broken when 80 files of two batches are dropped together at 20 calls a minute."""
    with world_with(20) as world:
        laws = Laws(world)
        promises = Promises(laws)
        dropped = [drop(world, f"{number}.jsonl", 2) for number in range(80)]
        world.run(3_600, lambda: len(promises.first_batch) == len(dropped))
        promises.judge(dropped, 20)
        return {one.law for one in laws.violations}


@pytest.mark.slow
def test_first_batches_of_many_drops_are_submitted_in_time():
    assert laws_of_many_drops() == set()


HOUR = 3_600.0


def hours_of_alarm(metric):
    """Hours in which a pause is counted for its alarm after its cause is gone."""
    counted = Counter()
    with world_with() as world:
        if metric == "Outage":
            world.inject(Fault(kind="accept_then_reset", times=1))
        else:
            world.api.switch(tokens=("second-token",))
        dropped = drop(world, "a.jsonl", 3)
        world.run(3)
        world.command(dropped.upload.job_id, "pause")
        world.run(300)
        world.token = "second-token" if metric == "TokenRefused" else world.token
        world.measured.append(
            lambda name, _value: counted.update([(name, int(world.kernel.now // HOUR))])
        )
        world.run(6 * HOUR)
    return len([hour for name, hour in counted if name == metric])


@pytest.mark.parametrize("metric", ["Outage", "TokenRefused"])
def test_pause_that_only_submits_probe_is_counted_for_hours(monkeypatch, metric):
    assert hours_of_alarm(metric) <= 1
    monkeypatch.setattr(commands, "_waits_soon", lambda *_: True)

    assert hours_of_alarm(metric) >= 6


def polls_sent():
    """Messages to poll that wait when 60 large jobs had due polls and visits."""
    with world_with(latency=HOUR) as world:
        for number in range(60):
            drop(world, f"{number}.jsonl", 2)
        world.run(1_200)
        for name in ("PollQueue", "VisitQueue"):
            world.sources[name].most = 0
        world.run(600)
        waiting = [
            one.body
            for name in ("PollQueue", "VisitQueue")
            for one in world.sqs.queues[name].messages.values()
        ]
        return Counter(json.loads(body)["do"] for body in waiting)


@pytest.mark.slow
def test_visits_shut_no_poll_out(monkeypatch):
    monkeypatch.setattr(dispatch, "LARGE_RECORDS", 1)
    assert polls_sent()["poll"] >= 15


def seconds_beside_turns():
    """The longest until a small job is submitted, while ten uploads are read by turns of 55 s."""
    with world_with() as world:
        promises = Promises(Laws(world))
        for number in range(10):
            drop(world, f"large{number}.jsonl", 6)
        world.run(60)
        small = []
        for number in range(5):
            small.append(drop(world, f"small{number}.jsonl", 1).upload)
            world.run(20)
        world.run(60)
        firsts = [promises.first_batch.get(f"JOB#{one.job_id}", inf) - one.at for one in small]
        return max(firsts)


def test_submits_do_not_wait_for_turns(monkeypatch):
    def slowly(one):
        if one.services.ledger.last_batch(one.job.job_id):
            one.services.sleep(55.0)
        create_batches.split(one)

    monkeypatch.setattr(handler, "split", slowly)
    monkeypatch.setattr(turn, "TURN_SECONDS", 0.0)
    assert seconds_beside_turns() < 5


def seconds_until_read():
    """Seconds until an upload is read whose first function died, beside 300 open jobs."""
    with world_with(latency=6 * HOUR) as world:
        promises = Promises(Laws(world))
        for number in range(300):
            drop(world, f"{number}.jsonl", 1)
        world.run(HOUR)
        dies_with_job(world)
        dropped = drop(world, "large.jsonl", 2)
        job = f"JOB#{dropped.upload.job_id}"
        world.run(HOUR, lambda: job in promises.first_batch)
        return promises.first_batch.get(job, inf) - dropped.upload.at


def dies_with_job(world):
    """The process dies that creates the next job."""
    dead = []

    def watch(key, old, _new):
        if key[1] == "META" and old is None and not dead:
            dead.append(key)
            world.kernel.kill(world.kernel.life())

    world.dynamodb.watchers.append(watch)


@pytest.mark.slow
def test_upload_is_read_before_visits_that_show_only(monkeypatch):
    monkeypatch.setattr(tick, "MAX_JOBS", 1)
    assert seconds_until_read() < 180


def seconds_to_the_end():
    """Seconds until an upload of 800 batches is read to its end, while their answers come."""
    ended = []

    def watch(key, _old, new):
        if key[1] == "META" and new["state"]["S"] != "splitting" and not ended:
            ended.append(world.kernel.now - world.began)

    with world_with(latency=1.0) as world:
        world.dynamodb.watchers.append(watch)
        drop(world, "a.jsonl", 800)
        world.run(HOUR, lambda: bool(ended))
    return ended[0]


@pytest.mark.slow
def test_visits_do_not_hold_up_reading(monkeypatch):
    monkeypatch.setattr(turn, "TURN_SECONDS", 2.0)
    assert seconds_to_the_end() < 30


def seconds_beside_a_backlog():
    """Seconds of one record while 120 batches of another model wait at 20 calls a minute."""
    with world_with(20) as world:
        promises = Promises(Laws(world))
        for number in range(3):
            drop(world, f"big{number}.jsonl", 40)
        world.run(60)
        dropped = drop(world, "small.jsonl", 1, MODELS[1])
        world.run(310, lambda: f"JOB#{dropped.upload.job_id}" in promises.over)
        return promises.seconds_of(dropped)


def test_backlog_without_first_batches_of_their_own_hides_a_job(monkeypatch):
    assert seconds_beside_a_backlog() < 30
    kinds = SimpleNamespace(POLL=DueKind.POLL, SUBMIT=DueKind.SUBMIT, FIRST=DueKind.SUBMIT)
    monkeypatch.setattr(create_batches, "DueKind", kinds)
    monkeypatch.setattr(create_batches, "_slot", lambda services, *_: services.now())

    assert seconds_beside_a_backlog() > 300


def most_outstanding():
    """Batches of a model without answers that are submitted in six hours at 2 calls a minute."""
    with world_with(2, Awkward(unprocessed=0.3)) as world:
        world.inject(Fault(kind="stuck", model=MODELS[0], seconds=24 * HOUR, times=0))
        drop(world, "a.jsonl", 60)
        world.run(6 * HOUR)
        return len(world.api.accepted)


@pytest.mark.slow
def test_models_that_a_read_left_out_count():
    assert most_outstanding() < 20

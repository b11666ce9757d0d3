"""Load: what the project once did wrong with many batches, jobs or polls."""

from dataclasses import replace

import pytest

from functions.poll import dispatch
from local.workers_ai import Behaviour
from shared.ledger.batches import Batches
from tests.simulation.explore.schedules import Schedule, run
from tests.simulation.explore.small_worlds import SMALL_WORLDS
from tests.simulation.worlds.judges import Laws, Promises
from tests.simulation.worlds.users import MODELS, drop
from tests.simulation.worlds.world import simulated

OF_NAME = {one.name: one for one in SMALL_WORLDS}


def world_with(calls_per_minute=200, **settings):
    settings |= {"MAX_REQUESTS_PER_BATCH": 1, "API_CALLS_PER_MINUTE": calls_per_minute}
    return simulated(1, behaviour=Behaviour(embedder="hash", latency=2.0), **settings)


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
        drop(world, "a.jsonl", 150)
        world.run(1.5)
        world.sources["SubmitQueue"].most = 0
        world.run(300)
        return len(world.sqs.queues["SubmitQueue"].messages)


def test_dispatch_without_bound_fills_the_queue(monkeypatch):
    assert messages_without_a_consumer() <= 60
    monkeypatch.setattr(dispatch, "MAX_SUBMITS_WAITING", 1_000_000)

    assert messages_without_a_consumer() > 300


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

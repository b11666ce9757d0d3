"""Small worlds keep the laws under each schedule of their races, and find missing conditions."""

import gc

import pytest

from dropbatch.core.names import CONTROL_PK
from shared.ledger import batches
from tests.simulation.explore.schedules import Schedule, explore, run
from tests.simulation.explore.small_worlds import SMALL_WORLDS
from tests.simulation.explore.stories import Slow
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import World, simulated

OF_NAME = {one.name: one for one in SMALL_WORLDS}
HEAVY = {
    *("stalled model", "full model", "counted one by one", "another model beside many batches"),
    *("lost while its model is full", "first batches and polls", "outage without tokens"),
    "no quota and no tokens",
}
"""These run with all their disturbances only."""


@pytest.mark.parametrize("name", sorted(OF_NAME.keys() - HEAVY))
def test_undisturbed_world_keeps_laws(monkeypatch, name):
    """Each write that is to be slow takes place: otherwise a world is not what its name says."""
    slow, real = [], Slow.__init__
    monkeypatch.setattr(
        Slow,
        "__init__",
        lambda self, *given, **named: slow.append(self) or real(self, *given, **named),
    )

    assert run(OF_NAME[name], Schedule()).violations == []
    assert [one.words for one in slow if one.begun < max(one.nth, 1)] == []


def test_nearest_races_of_smallest_world_keep_laws():
    explored = explore(OF_NAME["one batch"], 1, most=40)

    assert explored.broken == []
    assert explored.schedules == 40
    assert explored.distinct > 15, "a schedule changes what is written, or in which order"


def test_world_is_forgotten_when_it_is_over():
    """All schedules of all worlds run in one process. Only its handlers keep the last one."""

    def worlds_after_two():
        run(OF_NAME["one batch"], Schedule())
        with simulated(1) as world:
            drop(world, "a.jsonl", 2)
            world.run(0.8)
            assert any(one.running for one in world.functions.values())
        del world
        gc.collect()
        return sum(type(one) is World for one in gc.get_objects())

    assert worlds_after_two() == worlds_after_two()


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", OF_NAME)
def test_two_disturbances_keep_laws(name):
    """The nearest ones, a minute's worth in a large world; every night CI draws others."""
    assert explore(OF_NAME[name], 2, most=300, most_calls=400_000).broken == []


def laws_broken(name, most):
    """Laws that some of a world's first schedules broke."""
    return {one.law for _, one in explore(OF_NAME[name], 2, most).broken}


def test_poll_that_does_not_check_its_claim_is_found(monkeypatch):
    monkeypatch.setattr(
        batches, "_unchanged", lambda batch: {"state": batch.state, "attempt": batch.attempt}
    )

    assert "no update is lost" in laws_broken("lost id", 1)


def test_hold_that_begins_while_a_token_is_taken_is_heeded():
    """What is read again after the bucket has changed may say that all calls have to wait."""
    world = OF_NAME["bare refusal"]
    _, refused, _, limit, *_ = [
        one
        for one in run(world, Schedule()).touches
        if one.writes and one.key == (CONTROL_PK, "RATE")
    ]
    held_up = Schedule(((refused.place, limit.at - refused.at + 0.003),))

    assert run(world, held_up).violations == []

"""Ids that the API says it does not know.

Lost, or an outage of the route on which every id is unknown.
"""

import time

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, codes, greetings

MINUTE = 60


def unknown_for(world, api, minutes, code=10404):
    """Every id is unknown for minutes, and then known again."""
    api.inject(Fault(kind="error", on="poll", code=code, status=404, message="its words", times=0))
    began = time.time()
    world.settle(minutes=minutes + 5, until=lambda: time.time() > began + minutes * MINUTE)


@pytest.mark.slow
@pytest.mark.parametrize("code", [10404, 0, 424242])
def test_ids_unknown_for_minutes_cost_nothing(start, api, code):
    """Ten minutes of it cost nine batches instead of three."""
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    unknown_for(world, api, 10, code)

    api.clear_faults()
    world.settle()

    assert all_good(world, 6)
    assert len(api.accepted) == 3


@pytest.mark.slow
def test_outage_of_route_costs_nothing(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    unknown_for(world, api, 180)
    waiting = world.status()["waiting_for"]
    assert waiting["code"] == "polls_refused"
    assert "its words" in waiting["message"]

    api.clear_faults()
    world.settle(minutes=30)

    assert all_good(world, 6)
    assert len(api.accepted) == 3


@pytest.mark.slow
def test_codes_of_gateway_never_mean_a_lost_id(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", greetings(4), model=M2M)
    unknown_for(world, api, 25, 2005)

    api.clear_faults()
    world.settle(minutes=30)

    assert all_good(world, 4)
    assert len(api.accepted) == 2


def test_lost_ids_are_submitted_again(start, api):
    """Each of them, once the API has shown that it knows others."""
    world = start(MAX_REQUESTS_PER_BATCH=2)
    api.inject(*(Fault(kind="forgotten", contains=f"hello {number}") for number in (0, 4)))
    api.inject(Fault(kind="stuck", contains="hello 2", seconds=60))
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    began = time.time()

    world.settle()

    assert all_good(world, 6)
    assert len(api.accepted) == 3 + 2
    assert time.time() - began < 25 * MINUTE


def test_only_batch_of_stack_is_submitted_again_after_its_deadline(start, api):
    world = start(BATCH_DEADLINE_HOURS=1)
    api.inject(Fault(kind="forgotten"))
    world.upload_records("a.jsonl", greetings(2), model=M2M)

    world.settle(minutes=90)

    assert all_good(world, 2)
    assert len(api.accepted) == 2


@pytest.mark.slow
def test_unproven_loss_ends_nothing(start, api):
    """A batch that is not submitted again waits for its deadline."""
    world = start(AMBIGUOUS_SUBMIT="fail", BATCH_DEADLINE_HOURS=3)
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    unknown_for(world, api, 120)
    assert world.manifests() == {}

    world.settle(minutes=100)

    assert codes(world) == ["expired"] * 2
    assert len(api.accepted) == 1

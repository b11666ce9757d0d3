"""A batch is submitted again: it has one id, and the one before is given up and counted."""

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, codes, greetings, polls, referenced, submits

HOUR = 3_600.0


@pytest.fixture
def world(start):
    """A Dropbatch that submits again after an hour."""
    return start(BATCH_DEADLINE_HOURS=1)


def test_prompt_second_submit_costs_no_poll(world, api):
    api.inject(Fault(kind="stuck", times=1))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.settle(
        minutes=180,
        until=lambda: (
            world.item("BATCH#00000000")["state"]["S"] == "ready" or len(api.accepted) == 2
        ),
    )
    before = polls(api)

    world.deliver_all()

    assert len(api.accepted) == 2
    assert polls(api) == before


def test_overdue_batch_is_submitted_again(start, api):
    api.inject(Fault(kind="stuck", seconds=1.5 * HOUR))
    world = start(BATCH_DEADLINE_HOURS=1)
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle(minutes=180)

    assert all_good(world, 3)
    assert submits(api) == 2
    (batch,) = world.manifest()["batches"]
    assert (world.manifest()["given_up_ids"], batch["given_up_ids"], batch["attempts"]) == (1, 1, 2)


def test_batch_that_is_always_overdue_expires(start, api):
    api.inject(Fault(kind="stuck", times=0))
    world = start(BATCH_DEADLINE_HOURS=1)
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle(minutes=300)

    assert codes(world) == ["expired"] * 3
    assert submits(api) == 3
    assert world.manifest()["cost"]["uncollected_batches"] == 3


def test_refused_second_submit_is_divided(start, api):
    api.inject(
        Fault(kind="stuck", times=1),
        Fault(kind="5006", on="submit", nth=2, contains="hello 1", times=0),
    )
    world = start(BATCH_DEADLINE_HOURS=1)
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle(minutes=300)

    assert codes(world) == [None, "rejected", None]

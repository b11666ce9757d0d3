"""Batches that are submitted twice.

An id that was paid for is polled on, whatever becomes of the other.
"""

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, codes, referenced, submits

HOUR = 3_600


@pytest.mark.parametrize(
    "second",
    [Fault(kind="5006", on="submit", nth=2, times=0), Fault(kind="batch_fails", nth=2)],
    ids=["refused", "failed"],
)
def test_second_submit_that_comes_to_nothing_gives_up_no_running_id(start, api, second):
    api.inject(Fault(kind="stuck", seconds=1.5 * HOUR), second)
    world = start(BATCH_DEADLINE_HOURS=1)
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle(minutes=180)

    assert all_good(world, 3)
    assert submits(api) == 2


def test_refused_batch_is_divided_once_its_first_id_is_over(start, api):
    api.inject(
        Fault(kind="stuck", times=1),
        Fault(kind="5006", on="submit", nth=2, contains="hello 1", times=0),
    )
    world = start(BATCH_DEADLINE_HOURS=1)
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle(minutes=300)

    assert codes(world) == [None, "rejected", None]


def test_each_id_is_asked_again_for_items_that_are_not_there_yet(start, api):
    api.inject(Fault(kind="placeholder", items=(1,), first=2, times=0))
    api.inject(Fault(kind="10404", on="poll", status=404, times=40))
    world = start(BATCH_DEADLINE_HOURS=0.5)
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle(minutes=180)

    assert submits(api) > 1
    assert all_good(world, 3)

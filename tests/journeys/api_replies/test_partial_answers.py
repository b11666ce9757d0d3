"""Items beside a status that says that the batch still runs, items without numbers.

And replies without end.
"""

import pytest

from local.workers_ai import Fault
from shared.workers_ai import client
from tests.support.translations import M2M, all_good, codes, referenced, submits


@pytest.mark.parametrize("shape", ["A", "B"])
def test_items_beside_running_are_waited_for(world, api, shape):
    api.switch(partial_items=True, latency=3_600, shapes={"*": shape})
    world.upload_records("a.jsonl", referenced(5), model=M2M)

    world.settle(minutes=120)

    assert all_good(world, 5)
    assert submits(api) == 1


def test_all_items_beside_running_are_the_answer(world, api):
    api.switch(completed_status="running")
    world.upload_records("a.jsonl", referenced(5), model=M2M)

    world.settle(minutes=5)

    assert all_good(world, 5)


@pytest.mark.parametrize(
    ("metadata", "settings"),
    [({"deadline-hours": "1"}, {}), ({}, {"BATCH_DEADLINE_HOURS": 1})],
    ids=["of the job", "of the batch"],
)
def test_items_that_are_there_at_the_end_count(start, api, metadata, settings):
    api.inject(Fault(kind="stuck"), Fault(kind="partial"))
    world = start(**settings)
    world.upload_records("a.jsonl", referenced(5), model=M2M, **metadata)

    world.settle(minutes=90)

    assert codes(world) == [None, None, None, None, "expired"]
    assert submits(api) == 1


@pytest.mark.parametrize("shape", ["A", "B"])
def test_items_with_only_a_reference_are_placed(world, api, shape):
    api.switch(item_ids="absent", shapes={"*": shape})
    records = [*referenced(5), {"text": "hello 5", "target_lang": "es", "external_reference": "r1"}]
    world.upload_records("a.jsonl", records, model=M2M)

    world.settle()

    twice = [None, "missing_response", None, None, None, "missing_response"]
    assert codes(world) == twice, "two records have the reference r1"


@pytest.mark.parametrize("status", [200, 502, 404])
def test_page_larger_than_any_answer_costs_nothing(world, api, monkeypatch, status):
    monkeypatch.setattr(client, "MAX_REPLY_BYTES", 500_000)
    api.inject(Fault(kind="flood", message="page", factor=1, times=3, status=status))
    world.upload_records("a.jsonl", referenced(5), model=M2M)

    world.settle(minutes=60)

    assert all_good(world, 5)
    assert submits(api) == 1


@pytest.mark.parametrize("what", ["items", "errors", "unknown", "wide", "deep", "page"])
def test_reply_without_end_is_no_answer(world, api, what):
    api.inject(Fault(kind="flood", message=what, factor=4, times=2))
    world.upload_records("a.jsonl", referenced(5), model=M2M)

    world.settle(minutes=60)

    assert all_good(world, 5) or what == "wide"
    assert submits(api) == 1

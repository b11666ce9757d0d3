"""A reply lacks items, or some failed for capacity.

What it holds counts. Missing items are asked for again for some minutes; nothing is sent again.
"""

import time

import pytest

from functions.poll import collect
from local.workers_ai import Fault, expected_result
from tests.support.translations import M2M, codes

RECORDS = [
    {"text": f"hello {number}", "target_lang": "es", "external_reference": f"r{number}"}
    for number in range(20)
]
MISSING = (3, 11)


def polls_end_with(code, status):
    """What the API says once an incomplete reply is stored."""
    return Fault(kind="error", on="poll", code=code, status=status, times=0)


LOST_ID, FAILED, NO_MODEL = (
    polls_end_with(10404, 404),
    polls_end_with(3030, 500),
    polls_end_with(5007, 400),
)


def run(start, api, *faults, later=None, **settings):
    """An upload to its end; a further fault begins once an incomplete reply is stored."""
    world = start(**settings)
    api.inject(*faults)
    world.upload_records("a.jsonl", RECORDS, model=M2M)
    if later:
        world.settle(
            minutes=5, until=lambda: any("partial_replies" in one for one in world.items())
        )
        api.inject(later)
    world.settle(minutes=240)
    return world


def missing(first=1):
    return Fault(kind="missing", items=MISSING, first=first)


def failed_records(world):
    return [number for number, code in enumerate(codes(world)) if code]


@pytest.mark.parametrize("first", [1, 2, 3])
def test_missing_items_are_asked_for_again(start, api, first):
    world = run(start, api, missing(first))

    assert [line.get("result") for line in world.lines()] == [
        expected_result(M2M, record) for record in RECORDS
    ]
    assert len(api.accepted) == 1


@pytest.mark.parametrize(
    ("fault", "code"),
    [(LOST_ID, "expired"), (FAILED, "missing_response"), (NO_MODEL, "expired")],
    ids=["id lost", "failed", "model refused"],
)
def test_incomplete_reply_is_kept(start, api, fault, code):
    """What was paid for counts, and nothing is paid for again."""
    world = run(start, api, missing(0), later=fault, BATCH_DEADLINE_HOURS=1)

    assert failed_records(world) == list(MISSING)
    assert {codes(world)[number] for number in MISSING} == {code}
    assert len(world.lines("retry.jsonl")) == len(MISSING)
    assert len(api.accepted) == 1


def test_records_without_answer_end_within_minutes(start, api):
    began = time.time()
    world = run(start, api, missing(0))

    assert {codes(world)[number] for number in MISSING} == {"missing_response"}
    assert len(api.accepted) == 1
    assert time.time() - began < 6 * 60
    assert sum(collect.MISSING_ITEM_WAITS) > 120


def test_records_that_failed_for_capacity_are_in_retry_file(start, api):
    world = run(start, api, Fault(kind="item_fails", items=MISSING, code=3040, times=0))

    assert failed_records(world) == list(MISSING)
    assert {codes(world)[number] for number in MISSING} == {"inference_failed"}
    assert len(world.lines("retry.jsonl")) == len(MISSING)
    assert len(api.accepted) == 1


@pytest.mark.parametrize("form", ["items", "whole"])
def test_batch_that_failed_whole_for_capacity_is_submitted_three_times(start, api, form):
    """A fourth time might be good."""
    whole = {"kind": "batch_fails", "code": 3040}
    items = {"kind": "item_fails", "share": 1.0, "code": 3040}
    world = run(start, api, Fault(**(items if form == "items" else whole), times=3))

    assert set(codes(world)) == {"inference_failed"}
    assert len(api.accepted) == 3
    assert world.manifest()["given_up_ids"] == 2


def test_failures_for_capacity_do_not_count_for_the_failure_limit(start, api):
    records = [{"text": f"hello {number}", "target_lang": "es"} for number in range(240)]
    world = start(MAX_REQUESTS_PER_BATCH=80)
    api.inject(Fault(kind="item_fails", share=0.6, code=3040, times=0))
    world.upload_records("a.jsonl", records, model=M2M, **{"max-failed-fraction": "0.1"})

    world.settle()

    assert world.manifest()["state"] == "completed"

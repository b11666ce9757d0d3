"""A reply lacks items.

What it holds counts, and only what is missing is asked for, or submitted, again.
"""

import pytest

from functions.poll.batch import collect
from local.workers_ai import Fault, expected_result
from tests.support.translations import M2M, codes

RECORDS = [
    {"text": f"hello {number}", "target_lang": "es", "external_reference": f"r{number}"}
    for number in range(20)
]
MISSING = (3, 11)


def second_poll_on(code, status):
    """What the API says from the second poll on.

    Of the first round's batch, since no missing record holds the text.
    """
    return Fault(
        kind="error", on="poll", code=code, status=status, contains="hello 0", nth=2, times=0
    )


LOST_ID, FAILED, NO_MODEL = (
    second_poll_on(10404, 404),
    second_poll_on(3030, 500),
    second_poll_on(5007, 400),
)


def run(start, api, *faults, first=1, **settings):
    """An upload to its end, whose first reply lacks items."""
    world = start(**settings)
    api.inject(Fault(kind="missing", items=MISSING, first=first), *faults)
    world.upload_records("a.jsonl", RECORDS, model=M2M)
    world.settle(minutes=240)
    return world


def billed(api):
    return [batch["count"] for batch in api.accepted]


def assert_complete(world):
    assert [line.get("result") for line in world.lines()] == [
        expected_result(M2M, record) for record in RECORDS
    ]
    assert [line["external_reference"] for line in world.lines()] == [
        record["external_reference"] for record in RECORDS
    ]


@pytest.mark.parametrize("fault", [LOST_ID, FAILED], ids=["id lost", "failed"])
def test_only_missing_records_are_resubmitted(start, api, fault):
    world = run(start, api, fault)

    assert_complete(world)
    assert billed(api) == [len(RECORDS), len(MISSING)]
    (batch,) = world.manifest()["batches"]
    assert batch["attempts"] == 2


def test_missing_in_every_round_ends(start, api):
    world = run(start, api, LOST_ID, Fault(kind="missing", marker="hello 3", times=0), first=0)

    assert codes(world) == [
        None if number != 3 else "missing_response" for number in range(len(RECORDS))
    ]
    assert billed(api) == [len(RECORDS), len(MISSING)]


def test_retryable_records_join_missing_ones(start, api):
    world = run(
        start, api, LOST_ID, Fault(kind="item_fails", marker="hello 7", code=3040, times=0, first=1)
    )

    assert_complete(world)
    assert billed(api) == [len(RECORDS), len(MISSING) + 1]


def test_early_end_keeps_incomplete_reply(start, api):
    """The model is refused for good from the next poll on.

    What was paid for counts when the deadline is over.
    """
    world = run(start, api, NO_MODEL, BATCH_DEADLINE_HOURS=1, AMBIGUOUS_SUBMIT="fail")

    lines = world.lines()
    assert [line["id"] for line in lines if not line["success"]] == list(MISSING)
    assert billed(api) == [len(RECORDS)]


def test_missing_items_delay_job_below_90_seconds():
    assert sum(collect.MISSING_ITEM_WAITS) < 80  # and ten for two polls


def test_incomplete_replies_are_bounded():
    assert len(collect.MISSING_ITEM_WAITS) * (1 + collect.MAX_RETRIES) <= 6

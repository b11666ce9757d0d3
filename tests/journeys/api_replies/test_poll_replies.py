"""What becomes of each reply to a poll without an answer."""

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, codes, only_slowly, referenced


@pytest.mark.parametrize(
    "kind",
    [
        *("html", "truncated_body", "json_500"),
        *only_slowly("reset", "hang", "truncated_json", "slow_body", "refuse"),
    ],
)
def test_unanswered_poll_is_repeated_and_billed_once(world, api, kind):
    api.inject(Fault(kind=kind, on="poll", times=2))
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1


@pytest.mark.parametrize("polls", [6, *only_slowly(1, 4)])
def test_completed_batch_without_answers_is_polled(world, api, polls):
    """The answers are paid for: they may come ten minutes after the word."""
    api.inject(Fault(kind="no_answers", times=polls))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    began = world.now()

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.now() - began < 900


def test_batch_without_answers_ends_after_a_quarter_of_an_hour(world, api):
    api.inject(Fault(kind="no_answers", times=0))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    began = world.now()

    world.settle()

    assert codes(world) == ["missing_response"] * 3
    assert len(api.accepted) == 1
    assert 15 * 60 < world.now() - began < 20 * 60
    assert len(world.lines("retry.jsonl")) == 3


@pytest.mark.parametrize(
    "switch", [{"request_id_form": "integer"}, {"result_list": True}], ids=["integer", "list"]
)
def test_unusual_but_clear_reply_is_billed_once(world, api, switch):
    api.switch(**switch)
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert [batch["unknowable_submits"] for batch in world.manifest()["batches"]] == [0]


@pytest.mark.parametrize("code", ["5001", *only_slowly("3030", "5006")])
def test_minutes_of_server_errors_end_no_running_batch(start, api, code):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    api.switch(latency=60.0)
    api.inject(Fault(kind=code, on="poll", status=500, times=24))
    world.upload_records("a.jsonl", referenced(6), model=M2M)

    world.settle(minutes=30)

    assert all_good(world, 6)
    assert len(api.accepted) == 3


def test_one_server_error_ends_no_piece(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=8)
    api.inject(Fault(kind="batch_fails", contains="hello 1", times=0, code=5001, status=400))
    api.inject(Fault(kind="5001", on="poll", status=500, contains='[{"text": "hello 7'))
    world.upload_records("a.jsonl", referenced(8), model=M2M)

    world.settle(minutes=60)

    assert codes(world) == [None, "rejected", *[None] * 6]


@pytest.mark.parametrize("code", [5006, *only_slowly(8007)])
def test_refusal_of_another_batch_ends_no_running_one(start, api, code):
    """All records of the second batch are refused one by one."""
    api.switch(latency=1_200.0)
    world = start(MAX_REQUESTS_PER_BATCH=8)
    records = referenced(16)
    for record in records[8:]:
        record["text"] += " (bad)"
    api.inject(Fault(kind=str(code), status=400, on="submit", contains="(bad)", times=0))
    world.upload_records("a.jsonl", records, model=M2M)
    began = world.now()
    world.settle(until=lambda: world.now() - began > 600)
    api.inject(Fault(kind=str(code), status=400, on="poll"))

    world.settle()

    assert codes(world) == [None] * 8 + ["rejected"] * 8
    assert len(api.accepted) == 1


def test_codes_of_an_outage_and_one_refusal_divide_no_running_batch(start, api):
    """The API fails for every id for four minutes."""
    api.switch(latency=1_200.0)
    world = start(MAX_REQUESTS_PER_BATCH=8)
    api.inject(Fault(kind="5006", status=500, on="poll", times=0))
    world.upload_records("a.jsonl", referenced(32), model=M2M)
    began = world.now()
    world.settle(until=lambda: world.now() - began > 240)
    api.clear_faults()
    api.inject(Fault(kind="5006", status=400, on="poll", times=4))

    world.settle()

    assert all_good(world, 32)
    assert len(api.accepted) == 4

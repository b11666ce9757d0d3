"""Replies that lack items or are too large, doubtful ones, unknown ids, and batches sent again."""

import time

import pytest

from functions.poll import collect
from local.workers_ai import Fault
from local.workers_ai.replies import page
from shared.workers_ai import client as workers_ai
from tests.support.translations import M2M, all_good, codes, greetings, referenced, submits

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
    world.upload_records("a.jsonl", referenced(20), model=M2M)
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
    world = start(MAX_REQUESTS_PER_BATCH=80)
    api.inject(Fault(kind="item_fails", share=0.6, code=3040, times=0))
    world.run("a.jsonl", greetings(240), model=M2M, **{"max-failed-fraction": "0.1"})

    assert world.manifest()["state"] == "completed"


def checks(api):
    """Free calls, and nothing else: polls and submits are counted apart."""
    return sum(api.calls.get("search", {}).values())


def test_unknown_id_is_believed_only_from_api_itself(world, api):
    faults = [
        Fault(kind="error", on="poll", code=10404, status=404),
        Fault(kind="html", on="poll", status=404),
    ]
    api.inject(*(fault for _ in range(4) for fault in faults))
    world.run("a.jsonl", greetings(3), model=M2M)

    assert all_good(world, 3)
    assert len(api.accepted) == 1


def test_firewall_block_costs_one_record(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    api.inject(Fault(kind="html", on="submit", status=403, contains="hello 5", times=0))
    world.upload_records("a.jsonl", greetings(8), model=M2M)
    for name in ("b", "c"):
        world.upload_records(f"{name}.jsonl", greetings(4, name), model=M2M)
    began, over = time.time(), {}

    def seen():
        for folder in world.manifests():
            over.setdefault(folder.split("/")[-2], time.time() - began)
        assert world.pauses() == []
        return world.all_over()

    world.settle(until=seen)

    (folder,) = [folder for folder in world.manifests() if "/a.jsonl/" in folder]
    assert codes(world, folder) == [None] * 5 + ["rejected"] + [None] * 2
    (line,) = [line for line in world.lines(folder=folder) if not line["success"]]
    assert "blocked by Cloudflare's firewall" in line["error"]["message"]
    assert max(over["b.jsonl"], over["c.jsonl"]) <= 180
    assert checks(api) <= 3


def test_403_page_without_free_call_is_retried_later(world, api, monkeypatch):
    """While the free call gets no answer either, the batch is tried later, without a pause."""
    real = api.handle

    def blocked(method, path, query, headers, body):
        return (
            page(403)
            if path.endswith("/models/search")
            else real(method, path, query, headers, body)
        )

    monkeypatch.setattr(api, "handle", blocked)
    api.inject(Fault(kind="html", on="submit", status=403, times=3))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    assert world.pauses() == []

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1


MINUTE = 60


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
    world.run("a.jsonl", greetings(2), model=M2M, minutes=90)

    assert all_good(world, 2)
    assert len(api.accepted) == 2


HOUR = 3_600.0


@pytest.fixture
def world(start):
    """A Dropbatch that submits again after an hour."""
    return start(BATCH_DEADLINE_HOURS=1)


def test_overdue_batch_is_submitted_again(start, api):
    api.inject(Fault(kind="stuck", seconds=1.5 * HOUR))
    world = start(BATCH_DEADLINE_HOURS=1)
    world.run("a.jsonl", referenced(3), model=M2M, minutes=180)

    assert all_good(world, 3)
    assert submits(api) == 2
    (batch,) = world.manifest()["batches"]
    assert (world.manifest()["given_up_ids"], batch["given_up_ids"], batch["attempts"]) == (1, 1, 2)


BGE = "@cf/baai/bge-small-en-v1.5"
VECTOR = 4_000
"""Bytes that the local API's vector of 384 numbers has at least."""


@pytest.fixture
def small_limit(monkeypatch):
    """Two vectors fit in a reply, three do not."""
    monkeypatch.setattr(workers_ai, "MAX_REPLY_BYTES", 5 * VECTOR)


@pytest.mark.parametrize("at_once", [False, True], ids=["polled", "answered at once"])
def test_too_large_answer_fails_its_record(start, api, small_limit, at_once):
    if at_once:
        api.inject(Fault(kind="sync_answer", times=0))
    world = start()
    world.run("a.jsonl", [{"text": "one"}, {"text": ["a"] * 9}, {"text": "two"}], model=BGE)

    good, bad, other = world.lines()
    assert good["success"]
    assert other["success"]
    assert bad["error"]["code"] == "rejected"
    assert (
        "its answer has over 20,000 bytes, more than Dropbatch can hold" in bad["error"]["message"]
    )
    assert "None" not in bad["error"]["message"]
    assert len(world.lines("retry.jsonl")) == 1


def test_answer_that_no_reader_follows_fails_its_record(start, api):
    """It makes the whole reply unreadable, in every poll."""
    api.inject(Fault(kind="deep", marker="two", times=0))
    world = start()
    world.run("a.jsonl", [{"text": text} for text in ("one", "two", "three", "four")], model=BGE)

    assert [line["success"] for line in world.lines()] == [True, False, True, True]
    error = world.lines()[1]["error"]
    assert error["code"] == "rejected"
    assert "its answer cannot be read as JSON" in error["message"]
    assert len(world.lines("retry.jsonl")) == 1

"""Replies larger than can be held.

The batch is split, and only a record whose own answer is too large fails.
"""

import pytest

from dropbatch.core import models as limits
from local.workers_ai import Fault
from shared.workers_ai import client as workers_ai

BGE = "@cf/baai/bge-small-en-v1.5"
VECTOR = 4_000
"""Bytes that the local API's vector of 384 numbers has at least."""


@pytest.fixture
def small_limit(monkeypatch):
    """Two vectors fit in a reply, three do not."""
    monkeypatch.setattr(workers_ai, "MAX_REPLY_BYTES", 5 * VECTOR)


def test_too_large_reply_is_bisected(start, api, small_limit):
    world = start()
    world.upload_records("a.jsonl", [{"text": f"text {number}"} for number in range(8)], model=BGE)

    world.settle()

    assert world.manifest()["counts"] == {"total": 8, "succeeded": 8, "failed": 0}
    assert [line["id"] for line in world.lines()] == list(range(8))
    assert all("." in entry["number"] for entry in world.manifest()["batches"])


@pytest.mark.parametrize("at_once", [False, True], ids=["polled", "answered at once"])
def test_too_large_answer_fails_its_record(start, api, small_limit, at_once):
    if at_once:
        api.inject(Fault(kind="sync_answer", times=0))
    world = start()
    world.upload_records(
        "a.jsonl", [{"text": "one"}, {"text": ["a"] * 9}, {"text": "two"}], model=BGE
    )

    world.settle()

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
    world.upload_records(
        "a.jsonl", [{"text": text} for text in ("one", "two", "three", "four")], model=BGE
    )

    world.settle()

    assert [line["success"] for line in world.lines()] == [True, False, True, True]
    error = world.lines()[1]["error"]
    assert error["code"] == "rejected"
    assert "its answer cannot be read as JSON" in error["message"]
    assert len(world.lines("retry.jsonl")) == 1


def test_answer_at_once_that_no_reader_follows_is_paid_and_unknown(start, api):
    """It may have been cut off on its way, and cannot be asked for again."""
    api.inject(Fault(kind="sync_answer", times=0))
    api.inject(Fault(kind="deep", marker="two", times=0))
    world = start(AMBIGUOUS_SUBMIT="fail")
    world.upload_records("a.jsonl", [{"text": text} for text in ("one", "two")], model=BGE)

    world.settle()

    assert [line["error"]["code"] for line in world.lines()] == ["submit_unknown"] * 2
    assert [entry["unknowable_submits"] for entry in world.manifest()["batches"]] == [1]


def test_answers_of_model_limit_batch_size(start, api, monkeypatch):
    monkeypatch.setattr(limits, "REPLY_TARGET_BYTES", 3 * 24_000)
    world = start(MAX_REQUESTS_PER_BATCH=100_000)
    world.upload_records("a.jsonl", [{"text": f"text {number}"} for number in range(7)], model=BGE)

    world.settle()

    assert [entry["requests"] for entry in world.manifest()["batches"]] == [3, 3, 1]

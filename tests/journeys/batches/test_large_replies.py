"""Replies larger than can be held.

The batch is split, and only a record whose own answer is too large fails.
"""

import pytest

from local.workers_ai import Fault
from shared.workers_ai import client as workers_ai

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

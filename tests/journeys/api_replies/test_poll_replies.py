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


def test_batch_without_answers_is_sent_three_times(world, api):
    api.inject(Fault(kind="no_answers", times=0))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    began = world.now()

    world.settle()

    assert codes(world) == ["missing_response"] * 3
    assert len(api.accepted) == 3
    assert world.now() - began < 60 * 60, "not until the deadline of 24 hours"
    assert len(world.lines("retry.jsonl")) == 3


@pytest.mark.parametrize("switch", [{"request_id_form": "integer"}, {"result_list": True}], ids=["integer", "list"])
def test_unusual_but_clear_reply_is_billed_once(world, api, switch):
    api.switch(**switch)
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert [batch["unknowable_submits"] for batch in world.manifest()["batches"]] == [0]

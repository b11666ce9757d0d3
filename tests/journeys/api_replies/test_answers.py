"""Answers in every form, with items that are odd, missing, contradicting or failed."""

import json

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, codes, only_slowly, referenced


@pytest.mark.parametrize(
    "switches",
    [
        {"shapes": {"*": "A"}},
        {"shapes": {"*": "B"}},
        {"envelope": False},
        {"pending_empty": True},
        *only_slowly(
            {"submit_status": 202, "pending_status": 202},
            {"empty_array": "responses"},
            {"empty_array": "results", "envelope": False},
            {"queued_word": "waiting", "running_word": "cooking"},
            {"missing_reference": "absent"},
            {"completed_status": "completed"},
            {"compress": True},
            {"error_result": "absent"},
        ),
    ],
    ids=str,
)
def test_every_form_of_reply_is_understood(world, api, switches):
    api.switch(**switches)
    world.upload_records("a.jsonl", referenced(7), model=M2M)

    world.settle()

    assert all_good(world, 7)


def test_items_missing_for_good_fail_alone(world, api):
    api.inject(Fault(kind="missing", items=(1, 3)))
    world.upload_records("a.jsonl", referenced(5), model=M2M)
    began = world.now()

    world.settle()

    assert codes(world) == [None, "missing_response", None, "missing_response", None]
    assert [error["request"]["text"] for error in world.lines("errors.jsonl")] == [
        "hello 1",
        "hello 3",
    ]
    assert world.now() - began <= 300, "195 seconds, with what it takes without them, and a tick"
    assert api.calls["poll"]["200"] <= 7


@pytest.mark.parametrize("kind", ["contradicting", "swapped_reference"])
def test_contradicting_answers_are_never_guessed(world, api, kind):
    api.inject(Fault(kind=kind, items=(1, 3)))
    world.upload_records("a.jsonl", referenced(5), model=M2M)

    world.settle()

    assert codes(world) == [None, "missing_response", None, "missing_response", None]


@pytest.mark.parametrize(
    "form", ["object", "none", *only_slowly("message", "string", "errors", "text")]
)
def test_failed_item_fails_its_record_with_api_message(world, api, form):
    api.switch(item_error=form)
    api.inject(Fault(kind="item_fails", items=(2,), code=5001, message="model says no"))
    world.upload_records("a.jsonl", referenced(4), model=M2M)

    world.settle()

    assert codes(world) == [None, None, "inference_failed", None]
    words = world.lines()[2]["error"]["message"]
    assert "model says no" in words or form == "none"
    assert json.loads(world.read(f"{world.only_folder()}/retry.jsonl"))["text"] == "hello 2"


@pytest.mark.slow
def test_capacity_failures_end_after_two_retries(world, api):
    api.inject(Fault(kind="item_fails", marker="hello 3", code=3040, times=0, share=0))
    world.upload_records("a.jsonl", referenced(5), model=M2M)

    world.settle()

    assert codes(world) == [None, None, None, "inference_failed", None]
    assert "3040" in world.lines()[3]["error"]["message"]
    assert [one["count"] for one in api.accepted] == [5, 1, 1]
    assert world.manifest()["usage"]["total_tokens"] > 0


def test_retry_that_is_refused_leaves_first_answers(world, api):
    api.inject(
        Fault(kind="item_fails", items=(1,), code=3040),
        Fault(kind="5006", on="submit", nth=2, times=0),
    )
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle()

    assert codes(world) == [None, "inference_failed", None]
    assert "3040" in world.lines()[1]["error"]["message"]


@pytest.mark.parametrize("nested", [False, True])
def test_embedding_of_nulls_is_failure(world, api, nested):
    api.switch(nested_result=nested)
    api.inject(Fault(kind="null_vectors", items=(1,)))
    world.upload_records(
        "a.jsonl", [{"text": f"u{number}"} for number in range(3)], model="@cf/baai/bge-m3"
    )

    world.settle()

    assert codes(world) == [None, "inference_failed", None]
    (error,) = world.lines("errors.jsonl")
    assert error["error"]["message"] == "Workers AI's embedding has null in place of numbers."
    assert world.lines("retry.jsonl") == [{"text": "u1"}]

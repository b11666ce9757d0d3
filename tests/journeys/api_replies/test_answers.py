"""Answers in every shape, odd ones, and those that come in parts."""

import json

import pytest

from functions.poll import collect
from local.workers_ai import Fault
from shared.aws.object_store import ObjectStore
from shared.errors import StorageError
from tests.support.translations import M2M, all_good, codes, only_slowly, referenced, submits

# ── answers in every form, with items that are odd, missing, contradicting or failed ──────────────


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
    world.run("a.jsonl", referenced(7), model=M2M)

    assert all_good(world, 7)


@pytest.mark.parametrize("kind", ["contradicting", "swapped_reference"])
def test_contradicting_answers_are_never_guessed(world, api, kind):
    api.inject(Fault(kind=kind, items=(1, 3)))
    world.run("a.jsonl", referenced(5), model=M2M)

    assert codes(world) == [None, "missing_response", None, "missing_response", None]


@pytest.mark.parametrize(
    "form", ["object", "none", *only_slowly("message", "string", "errors", "text")]
)
def test_failed_item_fails_its_record_with_api_message(world, api, form):
    api.switch(item_error=form)
    api.inject(Fault(kind="item_fails", items=(2,), code=5001, message="model says no"))
    world.run("a.jsonl", referenced(4), model=M2M)

    assert codes(world) == [None, None, "inference_failed", None]
    words = world.lines()[2]["error"]["message"]
    assert "model says no" in words or form == "none"
    assert json.loads(world.read(f"{world.only_folder()}/retry.jsonl"))["text"] == "hello 2"


@pytest.mark.parametrize("nested", [False, True])
def test_embedding_of_nulls_is_failure(world, api, nested):
    api.switch(nested_result=nested)
    api.inject(Fault(kind="null_vectors", items=(1,)))
    world.run("a.jsonl", [{"text": f"u{number}"} for number in range(3)], model="@cf/baai/bge-m3")

    assert codes(world) == [None, "inference_failed", None]
    (error,) = world.lines("errors.jsonl")
    assert error["error"]["message"] == "Workers AI's embedding has null in place of numbers."
    assert world.lines("retry.jsonl") == [{"text": "u1"}]


# ── answers in forms that nobody documents ────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "switches",
    [
        {"item_ids": "opaque"},
        {"item_success": "null"},
        {"answers_refused": True},
        *only_slowly(
            {"item_ids": "float"},
            {"item_ids": "opaque", "shapes": {"*": "B"}},
            {"item_success": "text"},
            {"item_success": "one"},
            {"item_success": "absent"},
        ),
    ],
    ids=str,
)
def test_answers_in_odd_forms_are_used(world, api, switches):
    api.switch(**switches)
    world.run("a.jsonl", referenced(5), model=M2M, minutes=5)

    assert all_good(world, 5)
    assert submits(api) == 1


def test_answer_under_a_refusal_counts_only_if_it_is_whole(world, api):
    api.switch(answers_refused=True)
    api.inject(Fault(kind="missing", items=(1,), first=4))
    world.run("a.jsonl", referenced(3), model=M2M, minutes=30)

    assert all_good(world, 3)
    assert submits(api) == 1


@pytest.mark.parametrize("form", ["queued", *only_slowly("bare", "null")])
@pytest.mark.parametrize("status", ["", *only_slowly("running")])
def test_placeholders_are_asked_for_again(world, api, form, status):
    api.switch(completed_status=status)
    api.inject(Fault(kind="placeholder", items=(0, 2), message=form, first=2))
    world.run("a.jsonl", referenced(3), model=M2M, minutes=10)

    assert all_good(world, 3)
    assert submits(api) == 1


@pytest.mark.parametrize("status", ["", "running"])
def test_answer_that_is_given_once_survives_a_failure_of_s3(world, api, monkeypatch, status):
    api.switch(answers_per_batch=1, completed_status=status)
    failed = []

    def fails_once(real):
        def call(*arguments, **named):
            if real not in failed:
                failed.append(real)
                raise StorageError("S3: 503")
            return real(*arguments, **named)

        return call

    store = ObjectStore.put_if_absent
    raw = fails_once(store)
    monkeypatch.setattr(
        ObjectStore,
        "put_if_absent",
        lambda of, key, *more, **named: (raw if "/raw-" in key else store)(of, key, *more, **named),
    )
    monkeypatch.setattr(collect, "decode_index", fails_once(collect.decode_index))
    world.run("a.jsonl", referenced(3), model=M2M, minutes=60)

    assert all_good(world, 3)
    assert submits(api) == 1
    assert len(failed) == 2


# ── items beside a status that says that the batch still runs, items without numbers ──────────────


@pytest.mark.parametrize(
    ("metadata", "settings"),
    [({"deadline-hours": "1"}, {}), ({}, {"BATCH_DEADLINE_HOURS": 1})],
    ids=["of the job", "of the batch"],
)
def test_items_that_are_there_at_the_end_count(start, api, metadata, settings):
    api.inject(Fault(kind="stuck"), Fault(kind="partial"))
    world = start(**settings)
    world.run("a.jsonl", referenced(5), model=M2M, **metadata, minutes=90)

    assert codes(world) == [None, None, None, None, "expired"]
    assert submits(api) == 1


@pytest.mark.parametrize("shape", ["A", "B"])
def test_items_with_only_a_reference_are_placed(world, api, shape):
    api.switch(item_ids="absent", shapes={"*": shape})
    records = [*referenced(5), {"text": "hello 5", "target_lang": "es", "external_reference": "r1"}]
    world.run("a.jsonl", records, model=M2M)

    twice = [None, "missing_response", None, None, None, "missing_response"]
    assert codes(world) == twice, "two records have the reference r1"

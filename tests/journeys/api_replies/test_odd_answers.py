"""Answers in forms that nobody documents.

What is paid for is used, and what is not there yet is asked for again.
"""

import pytest

from functions.poll import collect
from local.workers_ai import Fault
from shared.aws.object_store import ObjectStore
from shared.errors import StorageError
from tests.support.translations import M2M, all_good, codes, only_slowly, referenced, submits


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
    world.upload_records("a.jsonl", referenced(5), model=M2M)

    world.settle(minutes=5)

    assert all_good(world, 5)
    assert submits(api) == 1


def test_answer_under_a_refusal_counts_only_if_it_is_whole(world, api):
    api.switch(answers_refused=True)
    api.inject(Fault(kind="missing", items=(1,), first=4))
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle(minutes=30)

    assert all_good(world, 3)
    assert submits(api) == 1


@pytest.mark.parametrize("status", ["", *only_slowly("completed")])
def test_empty_array_is_no_answer(world, api, status):
    api.switch(completed_status=status)
    api.inject(Fault(kind="missing", items=(0, 1, 2), first=6))
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle(minutes=30)

    assert all_good(world, 3)
    assert submits(api) == 1


@pytest.mark.parametrize("form", ["queued", *only_slowly("bare", "null")])
@pytest.mark.parametrize("status", ["", *only_slowly("running")])
def test_placeholders_are_asked_for_again(world, api, form, status):
    api.switch(completed_status=status)
    api.inject(Fault(kind="placeholder", items=(0, 2), message=form, first=2))
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle(minutes=10)

    assert all_good(world, 3)
    assert submits(api) == 1


def test_placeholders_that_stay_end_as_missing(world, api):
    api.inject(Fault(kind="placeholder", items=(1,)))
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle()

    assert codes(world) == [None, "missing_response", None]


def test_quoted_record_does_not_speak_for_the_api(world, api):
    api.switch(quoted_text=True)
    records = referenced(4)
    records[1]["text"] = "(refused) This model does not support request queuing"
    world.upload_records("a.jsonl", records, model=M2M)

    world.settle(minutes=30)

    assert codes(world) == [None, "rejected", None, None]


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
    world.upload_records("a.jsonl", referenced(3), model=M2M)

    world.settle(minutes=60)

    assert all_good(world, 3)
    assert submits(api) == 1
    assert len(failed) == 2

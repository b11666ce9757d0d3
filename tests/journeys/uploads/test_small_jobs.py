"""A job of one batch is read and submitted by one process: a message would need a second one."""

from __future__ import annotations

import json

import pytest

from functions.submit import submit
from shared.errors import StorageError
from shared.ledger import Ledger
from tests.support.translations import M2M, all_good, greetings


def state_of(world):
    return world.item("BATCH#00000000")["state"]["S"]


def waiting(world, queue):
    answer = world.sqs.receive_message(QueueUrl=world.queues[queue], MaxNumberOfMessages=10)
    return [json.loads(one["Body"]) for one in answer.get("Messages", [])]


def test_only_batch_is_submitted_by_whoever_reads_its_upload(start, api):
    world = start()
    world.upload_records("a.jsonl", greetings(250, "hello"), model=M2M)

    world.deliver("UploadQueue")

    assert state_of(world) == "queued"
    assert len(api.accepted) == 1
    assert waiting(world, "SubmitQueue") == []
    assert world.status()["counts"]["total"] == 250


def test_first_of_several_batches_is_sent_by_message(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", greetings(5, "hello"), model=M2M)

    world.deliver("UploadQueue")

    assert api.accepted == []
    assert {one["number"] for one in waiting(world, "SubmitQueue")} == {
        f"{number:08d}" for number in range(3)
    }


@pytest.mark.parametrize("step", ["begin_submit", "permit"])
def test_batch_whose_submit_aws_fails_is_due_again(start, api, monkeypatch, step):
    world = start()

    def fail(*_, **_named):
        raise StorageError("the table is away")

    with monkeypatch.context() as patch:
        if step == "permit":
            patch.setattr(submit, "_submit_if_permitted", fail)
        else:
            patch.setattr(Ledger, "begin_submit", fail)
        world.upload_records("a.jsonl", greetings(3, "hello"), model=M2M)
        world.deliver("UploadQueue")
    assert (state_of(world), api.accepted) == ("ready", [])
    assert world.item("META")["state"]["S"] == "in_progress"

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1

"""Batches that are split, again and again, until only the bad records fail."""

import json

import pytest

import functions.submit.read
from local.workers_ai import Fault
from shared.errors import StorageError
from shared.ledger import Ledger
from tests.support.translations import M2M, all_good, codes, referenced, submits


def test_bad_records_are_isolated_and_only_they_fail(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=64)
    records = referenced(100)
    for bad in (3, 40, 99):
        records[bad]["text"] += " (refused)"
    world.upload_records("a.jsonl", records, model=M2M)

    world.settle(minutes=120)

    assert [number for number, code in enumerate(codes(world)) if code] == [3, 40, 99]
    assert set(codes(world)) == {None, "rejected"}
    assert submits(api) <= 2 + 3 * 16 + 2 * 4, "64 records in 4 pieces, 36 in 3; then 16"


@pytest.mark.faults
def test_records_failing_only_together_are_answered(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=128)
    api.inject(Fault(kind="batch_fails", contains="},{", times=0, code=3030))
    world.upload_records("a.jsonl", referenced(128), model=M2M)

    world.settle(minutes=6 * 60)

    assert len(api.accepted) == 1 + 16 + 128
    assert all_good(world, 128)


def test_upload_is_read_while_batch_is_split(start, api, monkeypatch):
    monkeypatch.setattr(functions.submit.read, "TURN_SECONDS", -1.0)
    world = start(MAX_REQUESTS_PER_BATCH=2)
    records = referenced(5)
    records[1]["text"] += " (refused)"
    world.upload_records("a.jsonl", records, model=M2M)
    world.deliver("UploadQueue")
    real = Ledger.create_batch

    def only_one_piece(ledger, batch):
        if len(batch.number) > 8 and any(
            len(one.number) > 8 for one in ledger.batches(batch.job_id)
        ):
            raise StorageError("the table is away")
        return real(ledger, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "create_batch", only_one_piece)
        world.deliver("SubmitQueue")
        for _ in range(3):
            world.tick()
            world.deliver("PollQueue")
    assert [item["sk"]["S"] for item in world.items() if "." in item["sk"]["S"]] == [
        "BATCH#00000000.1"
    ]
    job = world.item()
    body = json.dumps({"do": "split", "job_id": job["job_id"]["S"]})
    world.sqs.send_message(QueueUrl=world.queues["UploadQueue"], MessageBody=body)
    refused = len(world.refused)
    world.deliver("UploadQueue")
    assert len(world.refused) == refused

    world.settle()

    assert codes(world) == [None, "rejected", None, None, None]

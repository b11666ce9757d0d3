"""Finishing a job of many batches.

Marks, segments, files joined by server-side copy, and what must never finish.
"""

import hashlib

import pytest

from functions.poll import files as segments
from local.workers_ai import expected_result
from shared.keys import segment
from tests.support.translations import M2M, greetings


@pytest.fixture
def small_segments(monkeypatch):
    """Segments of a few parts each, and copies of any size allowed."""
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1_000)
    monkeypatch.setattr(segments, "MIN_COPY_BYTES", 800)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


@pytest.mark.slow
def test_large_output_is_joined_from_segments(start, api, small_segments):
    world = start(MAX_REQUESTS_PER_BATCH=5)
    records = greetings(120)
    records[7]["target_lang"] = records[99]["target_lang"] = 7
    world.upload_records("a.jsonl", records, model=M2M)

    world.settle(minutes=120)

    folder, manifest = world.only_folder(), world.manifest()
    job_id = manifest["job_id"]
    assert segment(job_id, "output", 5) in world.objects("staging/")
    lines = world.lines()
    assert [line["id"] for line in lines] == list(range(120))
    assert [line["id"] for line in lines if not line["success"]] == [7, 99]
    assert all(
        line["result"] == expected_result(M2M, record)
        for line, record in zip(lines, records, strict=True)
        if line["success"]
    )
    for file in manifest["files"]:
        content = world.read(f"{folder}/{file['name']}")
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            file["bytes"],
            file["sha256"],
        )
    assert [error["id"] for error in world.lines("errors.jsonl")] == [7, 99]


def test_unreadable_item_holds_up_no_other(start):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.upload_records("a.jsonl", greetings(1), model=M2M)
    world.deliver("UploadQueue")
    batch = world.item("BATCH#")
    broken = {**batch, "pk": {"S": "JOB#broken"}, "records": {"S": "many"}, "due_at": {"N": "1"}}
    for work in ("v2#submit", "v2#poll"):
        world.dynamodb.put_item(
            TableName="ledger", Item={**broken, "sk": {"S": f"BATCH#{work}"}, "work": {"S": work}}
        )
    world.dynamodb.put_item(
        TableName="ledger", Item={**broken, "sk": {"S": "META"}, "work": {"S": "v2#routine"}}
    )

    world.settle(until=lambda: bool(world.manifests()))

    assert world.manifest()["counts"]["succeeded"] == 1

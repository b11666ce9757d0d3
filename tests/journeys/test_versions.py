"""What another version of Dropbatch wrote down is understood, or left alone: a deploy may meet jobs in flight."""

import json
from pathlib import Path

import pytest

import functions.poll.handler
from shared.aws.attribute_values import read
from shared.aws.queues import PollMessage, SplitMessage, SubmitMessage, decode_message
from shared.models import CONVERTED_SCHEMA, SCHEMA, Batch, BatchState, DueKind, Job, JobState, Submission

RECORDED = json.loads((Path(__file__).parents[1] / "recorded/first-version.json").read_text())
M2M = "@cf/meta/m2m100-1.2b"


def test_items_of_first_version_are_read():
    job, batch = read(RECORDED["job"], Job), read(RECORDED["batch"], Batch)

    assert (job.state, job.total, job.due_at) == (JobState.IN_PROGRESS, 700, 1795235410.0)
    assert (batch.state, batch.work, batch.due_at) == (BatchState.QUEUED, DueKind.POLL, 1795235431.5)
    submission = Submission("0191f3f4-5c0e-7b0c-9d7e-6d1f0a2b3c4d", 1, 1795235403.125)
    assert batch.submissions == batch.pollable == (submission,)


@pytest.mark.parametrize(
    ("body", "kind"), list(zip(RECORDED["messages"], (SplitMessage, SubmitMessage, PollMessage), strict=True))
)
def test_messages_of_first_version_are_read(body, kind):
    assert isinstance(decode_message(body), kind)
    assert isinstance(decode_message(body.replace("{", '{"later":1,', 1)), kind)


def test_items_name_version_of_their_schema():
    assert {work.value for work in DueKind} == {
        f"{SCHEMA}#{work}" for work in ("first", "submit", "poll", "work", "job", "cleanup")
    }
    assert RECORDED["job"]["work"] == {"S": "v1#job"}


def test_job_of_first_version_is_finished(start):
    """Each item loses the attributes that version did not know and gains one of a later version."""
    world = start(MAX_REQUESTS_PER_BATCH=2)
    records = [{"text": f"hello {number}", "target_lang": "es"} for number in range(5)]
    world.upload_records("a.jsonl", records, model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue", most=2)
    states = set()
    for item in world.items():
        if item["pk"]["S"].startswith("JOB#"):
            known = RECORDED["job" if item["sk"]["S"] == "META" else "batch"]
            older = {name: value for name, value in item.items() if name in known} | {"later": {"S": "something"}}
            states.add(older["state"]["S"])
            world.dynamodb.put_item(TableName="ledger", Item=older)
    assert states == {"in_progress", "queued", "ready"}

    world.settle()

    assert world.manifest()["counts"] == {"total": 5, "succeeded": 5, "failed": 0}
    assert [batch["attempts"] for batch in world.manifest()["batches"]] == [1, 1, 1]


def test_items_of_later_schema_are_left_alone(world):
    ledger = functions.poll.handler.services().ledger
    for schema in (SCHEMA, CONVERTED_SCHEMA, "v3"):
        key = {"pk": {"S": f"JOB#{schema}"}, "sk": {"S": "BATCH#00000000"}}
        due_at = {"N": "5" if schema == SCHEMA else "4"}
        world.dynamodb.put_item(TableName="ledger", Item={**key, "work": {"S": f"{schema}#poll"}, "due_at": due_at})

    due, following = ledger.due(DueKind.POLL, 6.0, 10)

    assert [entry.job_id for entry in due] == [CONVERTED_SCHEMA, SCHEMA]
    assert following is None
    assert ledger.due(DueKind.POLL, 6.0, 1) == (due[:1], 5.0)
    assert ledger.due(DueKind.POLL, 4.5, 10) == (due[:1], 5.0)
    assert ledger.count_open(DueKind.POLL, 100) == 2
    assert ledger.count_by_job(DueKind.POLL, 100) == {SCHEMA: 1, CONVERTED_SCHEMA: 1}

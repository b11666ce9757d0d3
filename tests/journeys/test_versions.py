"""What another version of Dropbatch wrote is read, or left alone.

A deployment may meet jobs in progress.
"""

import msgspec
import pytest

import functions.poll.handler
from local.workers_ai import Fault
from shared.aws.attribute_values import attributes, read
from shared.aws.queues import PollMessage, SplitMessage, SubmitMessage, decode_message
from shared.errors import UnreadableItemError
from shared.models import SCHEMA, Batch, DueKind
from tests.support.doubles.ledger_items import BATCH, JOB
from tests.support.doubles.other_versions import Version, item_by

M2M = "@cf/meta/m2m100-1.2b"
OTHERS = ["v0", "v2"]


@pytest.mark.parametrize(
    "message",
    [SplitMessage("job"), SubmitMessage("job", "00000000"), PollMessage((("job", "00000000"),))],
)
def test_messages_of_later_version_are_read(message):
    body = msgspec.json.encode(message).decode()

    assert decode_message(body.replace("{", '{"later":1,', 1)) == message


def test_kinds_of_work_name_schema():
    assert {work.value for work in DueKind} == {f"{SCHEMA}#{work.name.lower()}" for work in DueKind}


@pytest.mark.slow
@pytest.mark.parametrize("version", Version)
def test_items_of_another_version_are_finished(start, api, version):
    """Whatever was just written was written by the other version.

    Jobs, batches, pauses, and every map in them.
    """
    world = start(MAX_REQUESTS_PER_BATCH=3)
    met: set[tuple[str, ...]] = set()

    def rewrite():
        for item in world.items():
            world.dynamodb.put_item(TableName="ledger", Item=item_by(version, item))
            kind = "control" if item["pk"]["S"] == "CONTROL" else item["sk"]["S"].partition("#")[0]
            met.update((kind, name) for name, wire in item.items() if {"M", "L"} & set(wire))
            met.add((kind, item["sk"]["S"]))

    def pass_minutes(until):
        for _ in range(30):
            for step in (world.deliver_all, world.tick):
                rewrite()
                step()
            if until():
                return
            world.pass_time(60)
        raise AssertionError("never")

    api.inject(Fault(kind="3036", on="submit", times=1))
    api.inject(Fault(kind="5006", on="submit", contains="hello 0", times=0))
    records = [{"text": f"hello {number}", "target_lang": "es"} for number in range(5)]
    world.upload_records("a.jsonl", records, model=M2M)
    pass_minutes(world.pauses)
    for name, command, done in (
        (world.job_id(), "pause", lambda: world.item()["control"]["M"].get("held_since")),
        (world.job_id(), "run", lambda: world.item()["control"]["M"].get("resumed_at")),
        ("stack", "run", world.manifests),
    ):
        world.control(name, command)
        pass_minutes(done)

    assert world.manifest()["counts"] == {"total": 5, "succeeded": 4, "failed": 1}
    assert {
        ("control", "PAUSE"),
        ("control", "STACK"),
        ("META", "control"),
        ("META", "isolation"),
    } <= met
    world.pass_time(4 * 86_400)
    pass_minutes(lambda: not world.objects("staging/"))


def test_items_of_another_schema_are_left_alone(world):
    ledger = functions.poll.handler.services().ledger
    for schema in (SCHEMA, *OTHERS):
        key = {"pk": {"S": f"JOB#{schema}"}, "sk": {"S": "BATCH#00000000"}}
        world.dynamodb.put_item(
            TableName="ledger", Item={**key, "work": {"S": f"{schema}#poll"}, "due_at": {"N": "5"}}
        )

    due, following = ledger.due(DueKind.POLL, 6.0, 10)

    assert [entry.job_id for entry in due] == [SCHEMA]
    assert following is None
    assert ledger.count_open(DueKind.POLL, 100) == 1
    assert ledger.count_by_job(DueKind.POLL, 100) == {SCHEMA: 1}


@pytest.mark.parametrize("schema", OTHERS)
def test_batch_of_another_schema_is_unreadable(schema):
    item = attributes(BATCH) | {"work": {"S": f"{schema}#poll"}}

    with pytest.raises(UnreadableItemError):
        read(item, Batch)


@pytest.mark.parametrize("schema", OTHERS)
def test_job_of_another_schema_is_unreadable(world, schema):
    """One that a message or a batch names, not the index."""
    ledger = functions.poll.handler.services().ledger
    key = {"pk": {"S": f"JOB#{JOB.job_id}"}, "sk": {"S": "META"}}
    world.dynamodb.put_item(
        TableName="ledger", Item={**key, **attributes(JOB), "work": {"S": f"{SCHEMA}#job"}}
    )
    assert ledger.job(JOB.job_id) == JOB
    world.dynamodb.put_item(
        TableName="ledger", Item={**key, **attributes(JOB), "work": {"S": f"{schema}#work"}}
    )

    with pytest.raises(UnreadableItemError, match=f"{schema}#work"):
        ledger.job(JOB.job_id)

"""What another version of Dropbatch wrote is left alone, if its schema is another one."""

import msgspec
import pytest

import functions.poll.handler
from dropbatch.core.names import SCHEMA
from shared.aws.attribute_values import attributes, read
from shared.aws.queues import PollMessage, SplitMessage, SubmitMessage, decode_message
from shared.errors import UnreadableItemError
from shared.models import Batch, DueKind
from tests.support.doubles.ledger_items import BATCH, JOB

OTHERS = ["v1", "v3"]


@pytest.mark.parametrize(
    "message",
    [
        SplitMessage("job"),
        SubmitMessage("job", "00000000", 1.5),
        PollMessage((("job", "00000000", 1.5),)),
    ],
)
def test_messages_of_later_version_are_read(message):
    body = msgspec.json.encode(message).decode()

    assert decode_message(body.replace("{", '{"later":1,', 1)) == message


def test_kinds_of_work_name_schema():
    assert {work.value for work in DueKind} == {f"{SCHEMA}#{work.name.lower()}" for work in DueKind}


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

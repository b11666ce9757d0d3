"""A conditional write that the SDK sent twice.

Is what stands in the table its own first delivery, or somebody else's?

DynamoDB itself is botocore's stub, which answers what a test says and refuses a call that it did
not expect.
"""

from dataclasses import dataclass

import pytest

from shared.aws.attribute_values import attribute
from shared.aws.dynamodb import Table
from tests.support.aws.stubs import stubbed

KEY = {"pk": {"S": "JOB#1"}, "sk": {"S": "META"}}
ITEM = {**KEY, "claims": {"N": "2"}, "due_at": {"N": "9.5"}}
NESTED = {"claims": 2, "usage": {"tokens": 5}, "parts": [{"size": 7}]}


@dataclass(frozen=True)
class Turn:
    """Some item of a table."""

    claims: int
    due_at: float = 0.0


@pytest.fixture
def dynamodb():
    with stubbed("dynamodb") as stub:
        yield stub


@pytest.fixture
def table(dynamodb):
    return Table(dynamodb.client, "table")


def fails_its_condition(dynamodb, operation, *, tries):
    code = "ConditionalCheckFailedException"
    dynamodb.add_client_error(
        operation, code, "The request failed", 400, response_meta={"RetryAttempts": tries - 1}
    )


def holds(dynamodb, item):
    dynamodb.add_response("get_item", {"Item": item} if item else {})


def as_item(values):
    return {**KEY, **{name: attribute(value) for name, value in values.items()}}


@pytest.mark.parametrize(
    ("held", "is_own"),
    [
        (ITEM, True),
        ({**ITEM, "due_at": {"N": "9.50"}, "added_later": {"S": ""}}, True),
        ({**ITEM, "claims": {"N": "3"}}, False),
        ({**KEY, "claims": {"N": "2"}}, False),
        (None, False),
    ],
    ids=[
        "as it was sent",
        "a number written otherwise",
        "another value",
        "an attribute is absent",
        "gone",
    ],
)
def test_repeated_create_recognizes_its_item(table, dynamodb, held, is_own):
    fails_its_condition(dynamodb, "put_item", tries=2)
    holds(dynamodb, held)

    assert table.create(ITEM) is is_own


@pytest.mark.parametrize(
    "held",
    [{"usage": {"tokens": 5, "added_later": 1}}, {"parts": [{"size": 7, "added_later": 1}]}],
    ids=["in a map", "in a map of a list"],
)
def test_repeated_create_recognizes_its_item_beside_members_of_newer_version(table, dynamodb, held):
    fails_its_condition(dynamodb, "put_item", tries=2)
    holds(dynamodb, as_item(NESTED | held))

    assert table.create(as_item(NESTED))


@pytest.mark.parametrize(
    "held",
    [
        {"usage": {"tokens": 6}},
        {"usage": {"added_later": 1}},
        {"usage": 5},
        {"claims": {"tokens": 2}},
        {"parts": [{"size": 8}]},
        {"parts": [{"size": 7}, {"size": 7}]},
        {"parts": 7},
        {"claims": [2]},
    ],
    ids=[
        "another value in a map",
        "a member is absent",
        "no map",
        "a map for a number",
        "another value in a list",
        "a longer list",
        "no list",
        "a list for a number",
    ],
)
def test_repeated_create_does_not_take_other_members_for_its_own(table, dynamodb, held):
    fails_its_condition(dynamodb, "put_item", tries=2)
    holds(dynamodb, as_item(NESTED | held))

    assert not table.create(as_item(NESTED))


@pytest.mark.parametrize(
    ("held", "found"),
    [
        (ITEM, Turn(2, 9.5)),
        ({**ITEM, "claims": {"N": "3"}}, None),
        ({**ITEM, "error": {"S": "still there"}}, None),
        (None, None),
    ],
    ids=["as it was sent", "another value", "what it removed is there", "gone"],
)
@pytest.mark.parametrize("removing", ["by name", "by None"])
def test_repeated_change_recognizes_its_item(table, dynamodb, held, found, removing):
    fails_its_condition(dynamodb, "update_item", tries=2)
    holds(dynamodb, held)
    changes = {"claims": 2, "due_at": 9.5} | ({"error": None} if removing == "by None" else {})

    assert (
        table.update(KEY, {"claims": 1}, changes, Turn, ["error"] if removing == "by name" else [])
        == found
    )


def test_removing_change_is_not_recognized(table, dynamodb):
    fails_its_condition(dynamodb, "update_item", tries=2)
    holds(dynamodb, ITEM)

    assert table.update(KEY, {"claims": 2}, {"error": None}, Turn) is None


def test_new_item_is_told(dynamodb):
    told = []
    dynamodb.add_response("put_item", {})

    Table(dynamodb.client, "table", lambda *given: told.append(given)).create(ITEM)

    assert told == [(ITEM, ITEM)]


def test_item_that_existed_is_not_its_own(table, dynamodb):
    fails_its_condition(dynamodb, "put_item", tries=1)

    assert not table.create(ITEM)

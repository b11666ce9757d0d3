"""A conditional write that the SDK sent twice: does it find its own delivery, or another's?"""

from dataclasses import dataclass
from decimal import Decimal
from http import HTTPStatus

import pytest
from boto3.dynamodb.types import DYNAMODB_CONTEXT
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.plan import Checkpoint, SplitPlan
from shared.aws.attribute_values import attribute, attributes, plain, read
from shared.aws.dynamodb import Table
from shared.errors import InvariantError
from shared.models import (
    Batch,
    ErrorDetail,
    Job,
    JobTotals,
    Part,
    ResultFileProgress,
    Submission,
    Upload,
)
from shared.workers_ai.usage import Usage
from tests.support.aws.resources import stubbed

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
)
def test_repeated_create_recognizes_its_item(table, dynamodb, held, is_own):
    fails_its_condition(dynamodb, "put_item", tries=2)
    holds(dynamodb, held)

    assert table.create(ITEM) is is_own


@pytest.mark.parametrize(
    ("held", "is_own"),
    [
        ({"usage": {"tokens": 5, "added_later": 1}}, True),
        ({"parts": [{"size": 7, "added_later": 1}]}, True),
        ({"usage": {"tokens": 6}}, False),
        ({"usage": {"added_later": 1}}, False),
        ({"usage": 5}, False),
        ({"claims": {"tokens": 2}}, False),
        ({"parts": [{"size": 8}]}, False),
        ({"parts": [{"size": 7}, {"size": 7}]}, False),
        ({"parts": 7}, False),
        ({"claims": [2]}, False),
    ],
)
def test_repeated_create_recognizes_members_but_for_those_of_newer_version(
    table, dynamodb, held, is_own
):
    fails_its_condition(dynamodb, "put_item", tries=2)
    holds(dynamodb, as_item(NESTED | held))

    assert table.create(as_item(NESTED)) is is_own


@pytest.mark.parametrize(
    ("held", "found"),
    [
        (ITEM, Turn(2, 9.5)),
        ({**ITEM, "claims": {"N": "3"}}, None),
        ({**ITEM, "error": {"S": "still there"}}, None),
        (None, None),
    ],
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


times = st.one_of(st.just(0.0), st.integers(0, 2**33).map(float), st.floats(1e-9, 1e11))
numbers = st.integers(0, 2**53)
texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)

st.register_type_strategy(float, times)
st.register_type_strategy(int, numbers)
st.register_type_strategy(str, texts)

KINDS = (
    *(Job, Batch, Upload, SplitPlan, Checkpoint, ResultFileProgress, JobTotals, Part),
    *(Submission, ErrorDetail, Usage),
)


def through_dynamodb(wire):
    """As DynamoDB gives an item back: numbers are normalised, the order of sets is its own."""
    ((kind, value),) = wire.items()
    match kind:
        case "N":
            number = Decimal(value).normalize()
            return {"N": f"{number:f}" if abs(number.adjusted()) < 20 else str(number)}
        case "SS":
            return {"SS": value[::-1]}
        case "L":
            return {"L": [through_dynamodb(member) for member in value]}
        case "M":
            return {"M": {name: through_dynamodb(member) for name, member in value.items()}}
    return wire


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_every_value_of_ledger_comes_back_as_it_was(kind, data):
    value = data.draw(st.builds(kind))
    item = attributes(value)
    assert read(item, kind) == value
    assert read(through_dynamodb({"M": item})["M"], kind) == value


def test_unknown_attributes_are_ignored():
    later = {"pk": {"S": "JOB#1"}, "later": {"M": {"a": {"BOOL": True}}}}
    item = later | {"code": {"S": "a"}, "message": {"S": "b"}}
    assert read(item, ErrorDetail) == ErrorDetail("a", "b")


def test_item_that_breaks_its_promise_is_refused():
    with pytest.raises(InvariantError):
        read({"code": {"N": "1"}, "message": {"S": "b"}}, ErrorDetail)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (True, {"BOOL": True}),
        (False, {"BOOL": False}),
        ("", {"S": ""}),
        (0, {"N": "0"}),
        (1.5, {"N": "1.5"}),
        (HTTPStatus.UNAUTHORIZED, {"N": "401"}),
        ((1, "a"), {"L": [{"N": "1"}, {"S": "a"}]}),
        ({"a": 1, "b": None}, {"M": {"a": {"N": "1"}}}),
        (Usage(1), {"M": {"prompt_tokens": {"N": "1"}}}),
    ],
)
def test_value_has_one_wire_form(value, wire):
    assert attribute(value) == wire


@given(value=st.one_of(st.floats(allow_nan=False), st.integers(), st.integers(-(10**60), 10**60)))
def test_every_number_is_one_that_dynamodb_stores(value):
    stored = DYNAMODB_CONTEXT.create_decimal(attribute(value)["N"])

    assert float(stored) == pytest.approx(min(max(value, -1e38), 1e38), abs=1e-130)


@pytest.mark.parametrize("value", [None, b"bytes", object(), Decimal(1), {1}])
def test_type_that_ledger_does_not_use_is_refused(value):
    with pytest.raises(TypeError):
        attribute(value)


@pytest.mark.parametrize(
    ("wire", "value"), [("1", 1), ("1.0", 1.0), ("1E+3", 1000.0), ("-7", -7), ("1e-7", 1e-7)]
)
def test_number_is_int_unless_fraction(wire, value):
    read_back = plain({"N": wire})
    assert read_back == value
    assert type(read_back) is type(value)

"""Data classes to DynamoDB's wire form and back: nothing is lost, nothing changes its type."""

from decimal import Decimal
from http import HTTPStatus

import pytest
from boto3.dynamodb.types import DYNAMODB_CONTEXT
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.plan import Checkpoint, SplitPlan
from shared.aws.attribute_values import attribute, attributes, plain, read
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

times = st.one_of(st.just(0.0), st.integers(0, 2**33).map(float), st.floats(1e-9, 1e11))
numbers = st.integers(0, 2**53)
texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=20)

st.register_type_strategy(float, times)
st.register_type_strategy(int, numbers)
st.register_type_strategy(str, texts)

KINDS = (
    Job,
    Batch,
    Upload,
    SplitPlan,
    Checkpoint,
    ResultFileProgress,
    JobTotals,
    Part,
    Submission,
    ErrorDetail,
    Usage,
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
    item = {
        "pk": {"S": "JOB#1"},
        "later": {"M": {"a": {"BOOL": True}}},
        "code": {"S": "a"},
        "message": {"S": "b"},
    }
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

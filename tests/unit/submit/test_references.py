"""Bodies without `external_reference`: every other byte stays."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.staged_batch import without_references
from shared.workers_ai.error_codes import is_refused_for_references
from shared.workers_ai.replies import Rejected

CASES = {
    '{"external_reference":"a","text":"x"}': '{"text":"x"}',
    '{"text": "x", "external_reference": 7 }': '{"text": "x"}',
    '{ "text":"x" ,"external_reference":"}],{" , "b":[{"external_reference":1}]}': (
        '{ "text":"x" , "b":[{"external_reference":1}]}'
    ),
    '{"external\\u005freference":null}': "{}",
    '{"external_reference":{"a":[1,2]},"external_reference":2,"z":1.0e5}': '{"z":1.0e5}',
    '{"text":"external_reference"}': '{"text":"external_reference"}',
    "{}": "{}",
}


@pytest.mark.parametrize("record", CASES)
def test_only_the_reference_goes(record):
    body = f'{{"requests":[{record}, {record}]}}'.encode()
    assert without_references(body).decode() == f'{{"requests":[{CASES[record]}, {CASES[record]}]}}'


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(st.lists(st.dictionaries(st.text(max_size=3) | st.just("external_reference"), values)))
def test_any_record_keeps_all_else(records):
    body = msgspec.json.encode({"requests": records})
    left = msgspec.json.decode(without_references(body))["requests"]
    for record in records:
        record.pop("external_reference", None)
    assert left == records


@pytest.mark.parametrize(
    ("code", "message", "is_refused"),
    [
        (
            5006,
            "Bad input: Additional or unevaluated properties '/external_reference' not allowed",
            True,
        ),
        (5006, "Additional properties '/seed' at '/requests/0' not allowed", False),
        (3003, "Additional or unevaluated properties '/external_reference'", False),
    ],
)
def test_refusal_for_references_is_known(code, message, is_refused):
    assert is_refused_for_references(Rejected(400, code, message, enveloped=True)) is is_refused

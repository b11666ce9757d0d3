"""The staged object, a body without references, and the waits around its POST."""

import json
from itertools import accumulate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.read.index import WRAPPER_BYTES, RecordEntry, build_body, index_of, record_spans
from functions.poll import poll as ask
from functions.submit import submit as send
from local.template import template
from shared.bootstrap import BUSY_WAITS, OBJECT_CALLS, QUICK_CALLS
from shared.staged_batch import decode_index, encode_index, without_references
from shared.workers_ai import client as workers_ai


def written(value):
    return msgspec.Raw(msgspec.json.encode(value))


values = st.one_of(st.none(), st.text(), st.lists(st.booleans())).map(written)
sendable = st.builds(
    RecordEntry, line=st.integers(1, 50), length=st.integers(1, 300), reference=values
)
faulty = st.builds(
    RecordEntry,
    line=st.integers(1, 50),
    length=st.just(0),
    code=st.sampled_from(["invalid_json", "too_large"]),
    message=st.text(),
    request=st.text().map(written),
)


@st.composite
def batches(draw):
    """Rows of a batch: lines ascending, some with blank ones between; a document's have none."""
    rows = draw(st.lists(st.one_of(sendable, faulty), max_size=10))
    if draw(st.booleans()):
        return [msgspec.structs.replace(row, line=None) for row in rows]
    steps = accumulate(draw(st.sampled_from([1, 1, 1, 2, 8])) for _ in rows)
    pairs = zip(rows, steps, strict=True)
    return [msgspec.structs.replace(row, line=4 + step) for row, step in pairs]


def told(row):
    return row.line, row.length, bytes(row.reference), row.code, row.message, bytes(row.request)


@given(rows=batches())
def test_rows_are_read_back_as_they_were(rows):
    assert list(map(told, decode_index(encode_index(index_of(rows))))) == list(map(told, rows))


def test_plain_records_cost_only_lengths():
    assert encode_index(index_of([RecordEntry(number, 1_000) for number in range(7, 10)])) == (
        b'{"lengths":[1000,1000,1000],"lines":[[0,7]]}'
    )


@given(records=st.lists(st.one_of(st.none(), st.binary(min_size=1, max_size=40)), max_size=12))
def test_spans_find_each_record_in_body(records):
    rows = index_of(
        RecordEntry(number, len(record or b"")) for number, record in enumerate(records, 1)
    )
    body = build_body([record for record in records if record])
    places = record_spans(rows)
    assert [body[start : start + length] or None for start, length in places] == records


@given(records=st.lists(st.dictionaries(st.text(), st.text(), max_size=3), min_size=1, max_size=4))
def test_body_is_requests_and_nothing_else(records):
    written = [json.dumps(record).encode() for record in records]
    body = build_body(written)
    assert json.loads(body) == {"requests": records}
    assert len(body) == WRAPPER_BYTES + sum(map(len, written)) + len(written) - 1


def test_no_records_have_no_body():
    assert build_body([]) == b""


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'[["x"]]', b"[[1]", b'{"lengths":["x"]}'])
def test_what_is_not_index_is_refused(content):
    with pytest.raises(msgspec.MsgspecError):
        decode_index(content)


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


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


names = st.text(max_size=3) | st.just("external_reference")


@given(st.lists(st.dictionaries(names, json_values, max_size=4), max_size=4))
def test_any_record_keeps_all_else(records):
    body = msgspec.json.encode({"requests": records})
    left = msgspec.json.decode(without_references(body))["requests"]
    for record in records:
        record.pop("external_reference", None)
    assert left == records


LAMBDA_SECONDS = template()["Globals"]["Function"]["Timeout"]


def longest(calls):
    """Seconds after which a call without an answer fails; botocore waits 1, 2, 4 … between."""
    between = (1 << calls.tries - 1) - 1
    most_jittered = 1.2 * sum(BUSY_WAITS)
    return calls.tries * (calls.connect + calls.read) + between + most_jittered


def test_services_that_hang_leave_time():
    """For the receipt, for a rejection after the token's check, for the POST, and for a reply."""
    assert longest(QUICK_CALLS) + longest(OBJECT_CALLS) < send.SETTLE_SECONDS
    assert workers_ai.TOKEN_CHECK_SECONDS + longest(QUICK_CALLS) < send.SETTLE_SECONDS
    assert longest(QUICK_CALLS) + send.POST_SECONDS + send.SETTLE_SECONDS < LAMBDA_SECONDS
    assert longest(OBJECT_CALLS) < ask.COLLECT_SECONDS


def test_longest_wait_counts_tries_and_pauses():
    """Tries of 2 + 3 seconds, pauses up to 1 and 2, after a busy answer up to 0.12, 0.24, 0.48."""
    assert (QUICK_CALLS.connect, QUICK_CALLS.read, QUICK_CALLS.tries) == (2, 3, 3)
    assert longest(QUICK_CALLS) == pytest.approx(18.84)

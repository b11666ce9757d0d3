"""The staged object: body and index of one batch, which must never disagree."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.plan import Checkpoint
from dropbatch.core.read.index import (
    WRAPPER_BYTES,
    RecordEntry,
    build_body,
    index_of,
    record_spans,
)
from shared.staged_batch import StagedInfo, decode_index, encode_index


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
    """Rows of a batch: lines ascending, now and then with blank ones between.

    Or a document's, that have none.
    """
    rows = draw(st.lists(st.one_of(sendable, faulty), max_size=10))
    if draw(st.booleans()):
        return [msgspec.structs.replace(row, line=None) for row in rows]
    blank = draw(st.lists(st.sampled_from([0, 0, 0, 1, 7]), min_size=len(rows), max_size=len(rows)))
    return [
        msgspec.structs.replace(row, line=5 + index + sum(blank[: index + 1]))
        for index, row in enumerate(rows)
    ]


def told(row):
    return row.line, row.length, bytes(row.reference), row.code, row.message, bytes(row.request)


@given(rows=batches())
def test_rows_are_read_back_as_they_were(rows):
    assert list(map(told, decode_index(encode_index(index_of(rows))))) == list(map(told, rows))


@given(rows=batches(), begin=st.integers(0, 10), more=st.integers(0, 10))
def test_section_is_those_rows(rows, begin, more):
    begin = min(begin, len(rows))
    end = min(begin + more, len(rows))
    assert list(map(told, index_of(rows).section(begin, end))) == list(map(told, rows[begin:end]))


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


@given(records=st.lists(st.dictionaries(st.text(), st.text()), min_size=1))
def test_body_is_requests_and_nothing_else(records):
    written = [json.dumps(record).encode() for record in records]
    body = build_body(written)
    assert json.loads(body) == {"requests": records}
    assert len(body) == WRAPPER_BYTES + sum(map(len, written)) + len(written) - 1


def test_no_records_have_no_body():
    assert build_body([]) == b""


@given(
    requests=st.integers(0, 10**6),
    sendable=st.integers(0, 10**6),
    size=st.integers(0, 10**7),
    end=st.one_of(
        st.none(),
        st.builds(Checkpoint, st.integers(0, 2**50), st.integers(0, 2**40), st.integers(0, 2**40)),
    ),
)
def test_metadata_is_read_back(requests, sendable, size, end):
    staged = StagedInfo(requests, sendable, size, end)
    metadata = staged.metadata()
    assert all(type(value) is str and name == name.lower() for name, value in metadata.items())
    assert StagedInfo.of(metadata) == staged


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'[["x"]]', b"[[1]", b'{"lengths":["x"]}'])
def test_what_is_not_index_is_refused(content):
    with pytest.raises(msgspec.MsgspecError):
        decode_index(content)

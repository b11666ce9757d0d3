"""The staged object: body and sidecar of one batch, which must never disagree."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.sidecar import WRAPPING, Row, Staged, body_of, decode_rows, encode_rows, spans
from shared.words import Place


def written(value):
    return msgspec.Raw(msgspec.json.encode(value))


rows = st.lists(
    st.builds(
        Row,
        line=st.one_of(st.none(), st.integers(1, 10**9)),
        length=st.integers(0, 300),
        reference=st.one_of(st.none(), st.text(), st.lists(st.booleans())).map(written),
        code=st.sampled_from(["", "invalid_json", "too_large"]),
        message=st.text(),
        request=st.text().map(written),
    ),
    max_size=10,
)


def told(row):
    return row.line, row.length, bytes(row.reference), row.code, row.message, bytes(row.request)


@given(rows=rows)
def test_rows_come_back_as_they_were(rows):
    assert list(map(told, decode_rows(encode_rows(rows)))) == list(map(told, rows))


@given(records=st.lists(st.one_of(st.none(), st.binary(min_size=1, max_size=40)), max_size=12))
def test_spans_find_each_record_in_the_body(records):
    rows = [Row(number, len(record or b"")) for number, record in enumerate(records, 1)]
    body = body_of([record for record in records if record])
    places = spans(rows)
    assert [body[start : start + length] or None for start, length in places] == records


@given(records=st.lists(st.dictionaries(st.text(), st.text()), min_size=1))
def test_a_body_is_the_requests_and_nothing_else(records):
    written = [json.dumps(record).encode() for record in records]
    body = body_of(written)
    assert json.loads(body) == {"requests": records}
    assert len(body) == WRAPPING + sum(map(len, written)) + len(written) - 1


def test_no_records_have_no_body():
    assert body_of([]) == b""


@given(
    requests=st.integers(0, 10**6),
    sendable=st.integers(0, 10**6),
    size=st.integers(0, 10**7),
    end=st.one_of(st.none(), st.builds(Place, st.integers(0, 2**50), st.integers(0, 2**40), st.integers(0, 2**40))),
)
def test_what_the_metadata_tells_comes_back(requests, sendable, size, end):
    staged = Staged(requests, sendable, size, end)
    metadata = staged.metadata()
    assert all(type(value) is str and name == name.lower() for name, value in metadata.items())
    assert Staged.of(metadata) == staged


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'[["x"]]', b"[[1]"])
def test_what_is_no_sidecar_is_refused(content):
    with pytest.raises(msgspec.MsgspecError):
        decode_rows(content)

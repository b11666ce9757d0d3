"""Rows of CSV: where each begins and ends, however the stream is cut into blocks."""

import csv
import io

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dropbatch.core.read import rows
from dropbatch.core.read.rows import OverlongRecord, read_rows, split_row
from dropbatch.errors import UploadRefused
from tests.support.uploads import in_blocks

LIMIT = 60


@pytest.fixture(autouse=True, scope="module")
def _small_limits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "API_BODY_LIMIT", LIMIT)
        patch.setattr(rows, "EXCERPT_BYTES", 8)
        patch.setattr(rows, "ROWS_WINDOW_BYTES", 20)
        yield


def rows_of(data, size=1 << 20, delimiter=b","):
    found = []
    for window in read_rows(in_blocks(data, size), delimiter):
        for row, lines in zip(window.records, window.lines, strict=True):
            # an empty row stands for consecutive empty lines
            found += [row] * (1 if row else lines)
    return found


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_each_row_says_how_far_next_is(size):
    data = b'a\r\n"b\nb",c\n\nd'
    windows = list(read_rows(in_blocks(data, size), b","))
    assert [step for window in windows for step in window.steps] == [3, 8, 1, 1]
    assert [line for window in windows for line in window.lines] == [1, 2, 1, 1]


def test_long_stretch_of_empty_rows_is_one():
    for row in (b"a", b'"\n"'):
        windows = read_rows([row + b"\n" * 21 + b"b"], b",")
        assert [record for window in windows for record in window.records] == [row, b"", b"b"]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b'"a', 1),
        (b'a\nb,"c\nd', 2),
        (b'a\n"b\nc","d\n\n', 3),
        (b'a\n"' + b"x\n" * 100, 2),
        (b'"' + b"x" * 99 + b'","\n', 1),
    ],
)
def test_unclosed_quote_is_named_with_line(data, line, size):
    with pytest.raises(UploadRefused) as raised:
        rows_of(data, size)
    assert raised.value.code == "broken_document"
    assert f"line {line} " in raised.value.message


@pytest.mark.parametrize("size", [1, 9, 1000])
@pytest.mark.parametrize(
    "long",
    [
        b"x" * 200,
        b'"' + b"x,\n" * 60 + b'",y',
        b'a,"' + b'""' * 80 + b'"',
        b"x" * (LIMIT + 1),
        b'5"' + b"x" * 100,
    ],
)
def test_row_that_no_request_can_hold_is_passed_over(long, size):
    assert rows_of(b"a\n" + long + b"\nb,c\n", size) == [
        b"a",
        OverlongRecord(long[:8], len(long)),
        b"b,c",
    ]
    lines = [
        line for window in read_rows(in_blocks(b"a\n" + long, size), b",") for line in window.lines
    ]
    assert lines == [1, 1 + long.count(b"\n")]


@pytest.mark.parametrize("size", [1, 9, 1000])
def test_row_without_end_ends_the_reading(size):
    with pytest.raises(UploadRefused, match="begins in line 2 has more than") as raised:
        rows_of(b'a\n"' + b"x\n" * 4 * LIMIT, size)
    assert raised.value.code == "broken_document"


@pytest.mark.parametrize(("limit", "kept"), [(5, b"x" * 5), (4, OverlongRecord(b"xxxxx", 5))])
def test_row_has_as_many_bytes_as_its_caller_allows(limit, kept):
    (window,) = read_rows([b"xxxxx", b"\n"], b",", limit=limit)
    assert window.records == [kept]
    (window,) = read_rows([b"x" * 4 * limit, b"\n"], b",", limit=limit)
    assert window.steps == [4 * limit + 1]


def test_fields_after_a_quote_that_is_never_closed_are_part_of_it():
    assert split_row(b'a,"b,c', b",") == [b"a", b'"b,c']


tables = st.text(st.sampled_from('ab",\n\r\té'), max_size=80).map(str.encode)


@given(data=tables, size=st.integers(1, 30))
@example(data=b'"""",\n"', size=1)
def test_blocks_make_no_difference(data, size):
    def read(size):
        try:
            return rows_of(data, size)
        except UploadRefused as error:
            return error.message

    assert read(size) == read(1 << 20)


@given(
    data=st.text(st.sampled_from('ab",\né'), max_size=50).map(str.encode), size=st.integers(1, 30)
)
def test_rows_are_those_of_pythons_csv(data, size):
    try:
        rows = rows_of(data, size)
    except UploadRefused:
        with pytest.raises(csv.Error):
            list(csv.reader(io.StringIO(data.decode(), newline=""), strict=True))
        return
    expected = list(csv.reader(io.StringIO(data.decode(), newline="")))
    assert [next(csv.reader([row.decode()]), []) if row else [] for row in rows] == expected
    assert b"\n".join(rows) == data.removesuffix(b"\n")

"""The cut of JSON Lines."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.read import cut as module
from dropbatch.core.read import lines as windows
from dropbatch.core.read import records
from dropbatch.core.read.form import detect_form
from tests.support.examples import examples
from tests.support.uploads import (
    EXCERPT,
    LIMIT,
    WRAPPING,
    blocks_of,
    check_law,
    cuts_of,
    limits,
    plan_of,
    record_of,
    records_in,
    seen,
    small_limits,
    sound,
    uploads,
)


@pytest.fixture(autouse=True, scope="module")
def _small_limits():
    with small_limits():
        yield


def joined(upload, *, last_line_ends):
    data = b"".join(content + ending for (content, _), ending in upload)
    return data if last_line_ends or not upload else data.removesuffix(upload[-1][1])


@given(upload=uploads, last_line_ends=st.booleans(), limits=limits, size=blocks_of)
@examples(150)
def test_lines_become_rows_as_written(upload, last_line_ends, limits, size):
    data = joined(upload, last_line_ends=last_line_ends)
    plan = plan_of(limits)
    cuts = cuts_of(plan, data, size)
    check_law(cuts, plan)
    expected = [
        (number, code, content if not code else None)
        for number, ((content, code), _) in enumerate(upload, 1)
        if code != "blank"
    ]
    rows = [pair for one in cuts for pair in records_in(one)]
    assert [(row.line, row.code, record) for row, record in rows] == expected


@given(upload=uploads, last_line_ends=st.booleans(), limits=limits, size=blocks_of)
def test_cuts_ignore_blocks_and_resume_at_any_line_end(upload, last_line_ends, limits, size):
    data = joined(upload, last_line_ends=last_line_ends)
    plan = plan_of(limits)
    cuts = cuts_of(plan, data)
    assert seen(cuts_of(plan, data, size)) == seen(cuts)
    for done, one in enumerate(cuts, 1):
        assert seen(cuts_of(plan, data, size, one.end, done)) == seen(cuts[done:])


@given(first=sound, rest=st.lists(sound, max_size=3))
def test_byte_order_mark_belongs_to_no_record(first, rest):
    data = b"\xef\xbb\xbf" + b"\n".join([first, *rest])
    form, start = detect_form(data, complete=True)
    (one,) = cuts_of(plan_of((100, LIMIT * 9), form, start), data)
    assert [record for _, record in records_in(one)] == [first, *rest]


@pytest.mark.parametrize("block", [1, 5, 59, 61, LIMIT, LIMIT + 5, 1 << 20])
@pytest.mark.parametrize(
    "size", [LIMIT - WRAPPING, LIMIT, LIMIT + 1, LIMIT + EXCERPT, LIMIT + EXCERPT + 1, 5 * LIMIT]
)
def test_beginning_of_huge_line_is_kept(size, block):
    data = record_of(30) + b"\n" + record_of(size) + b"\n" + record_of(30)
    rows = [row for one in cuts_of(plan_of((10, 300)), data, block) for row in one.rows]
    assert [row.code for row in rows] == ["", "too_large", ""]
    assert json.loads(bytes(rows[1].request)) == record_of(size)[:EXCERPT].decode()
    assert f"{size:,} bytes" in rows[1].message


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"[" * 900 + b"]" * 900, ""),
        (b"[" * 5_000 + b"]" * 5_000, "invalid_json"),
        (b"[" * 200_000 + b"]" * 200_000, "invalid_json"),
        (b"7" * 6_000, ""),
    ],
    ids=["900 deep", "5,000 deep", "200,000 deep", "6,000 digits"],
)
def test_deep_nesting_and_thousands_of_digits_are_no_crash(value, code, monkeypatch):
    for one in (module, records, windows):
        monkeypatch.setattr(one, "API_BODY_LIMIT", 10_000_000)
    (one,) = cuts_of(plan_of((10, 9_500_000)), b'{"a":%b}\n{}\n' % value)
    assert [row.code for row in one.rows] == [code, ""]


@pytest.mark.parametrize(
    "key",
    [b"external_reference", b"external\\u005freference", b"\\u0065xternal\\u005Freferenc\\u0065"],
)
def test_external_reference_is_found_in_any_spelling(key):
    (one,) = cuts_of(plan_of((10, 300)), b'{"text":"x"}\n{"%b":"row-2"}\n' % key)
    assert [bytes(row.reference) for row in one.rows] == [b"null", b'"row-2"']


def test_upload_without_records_has_no_batches():
    assert cuts_of(plan_of((10, 300)), b"") == []
    assert cuts_of(plan_of((10, 300)), b"\n \n\r\n\t") == []

"""The cut of JSON Lines: every record is in exactly one batch, in order, as the user wrote it, within the limits."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.records import cut as module
from dropbatch.records import framing as windows
from dropbatch.records.detect_form import detect_form
from dropbatch.records.plan import max_records
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


@given(upload=uploads, limits=limits, size=blocks_of)
def test_cuts_do_not_depend_on_blocks(upload, limits, size):
    data = joined(upload, last_line_ends=True)
    plan = plan_of(limits)
    assert seen(cuts_of(plan, data, size)) == seen(cuts_of(plan, data))


@given(upload=uploads, last_line_ends=st.booleans(), limits=limits, size=blocks_of)
def test_cutting_resumes_at_any_line_end(upload, last_line_ends, limits, size):
    data = joined(upload, last_line_ends=last_line_ends)
    plan = plan_of(limits)
    cuts = cuts_of(plan, data)
    for done, one in enumerate(cuts, 1):
        assert seen(cuts_of(plan, data, size, one.end, done)) == seen(cuts[done:])


@given(first=sound, rest=st.lists(sound, max_size=3))
def test_byte_order_mark_belongs_to_no_record(first, rest):
    data = b"\xef\xbb\xbf" + b"\n".join([first, *rest])
    form, start = detect_form(data, complete=True)
    (one,) = cuts_of(plan_of((100, LIMIT * 9), form, start), data)
    assert [record for _, record in records_in(one)] == [first, *rest]


@given(upload=uploads, limits=limits)
def test_batch_is_filled_as_far_as_limits_allow(upload, limits):
    plan = plan_of(limits)
    cuts = cuts_of(plan, joined(upload, last_line_ends=True))
    for number, (one, following) in enumerate(pairwise(cuts)):
        if not one.body or any(row.code for row in (*one.rows, *following.rows)):
            continue
        full = len(one.rows) == max_records(plan, number)
        assert full or len(one.body) + 1 + following.rows[0].length > plan.max_bytes


def test_batches_grow_up_to_plans_maximum():
    data = b"\n".join([record_of(11)] * 50)
    assert [len(one.rows) for one in cuts_of(plan_of((5, 399, 1)), data)] == [1] * 4 + [2] * 4 + [4] * 4 + [5] * 4 + [2]


def test_beginning_of_unreadable_line_is_kept_as_text():
    (one,) = cuts_of(plan_of((10, 300)), b'{"a":"\xff' + b"b" * 300)
    assert json.loads(bytes(one.rows[0].request)) == '{"a":"�' + "b" * (EXCERPT - 7)


@pytest.mark.parametrize("block", [1, 5, 59, 61, LIMIT, LIMIT + 5, 1 << 20])
@pytest.mark.parametrize("size", [LIMIT - WRAPPING, LIMIT, LIMIT + 1, LIMIT + EXCERPT, LIMIT + EXCERPT + 1, 5 * LIMIT])
def test_beginning_of_huge_line_is_kept(size, block):
    data = record_of(30) + b"\n" + record_of(size) + b"\n" + record_of(30)
    rows = [row for one in cuts_of(plan_of((10, 300)), data, block) for row in one.rows]
    assert [row.code for row in rows] == ["", "too_large", ""]
    assert json.loads(bytes(rows[1].request)) == record_of(size)[:EXCERPT].decode()
    assert f"{size:,} bytes" in rows[1].message


@pytest.mark.parametrize("depth", [900, 5_000, 200_000])
def test_deep_nesting_is_answer_and_no_crash(depth):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "API_BODY_LIMIT", 10_000_000)
        patch.setattr(windows, "API_BODY_LIMIT", 10_000_000)
        line = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        (one,) = cuts_of(plan_of((10, 9_500_000)), line + b"\n{}\n")
    assert [row.code for row in one.rows] == ["" if depth < 1_000 else "invalid_json", ""]


def test_thousands_of_digits_are_one_bad_record():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "API_BODY_LIMIT", 10_000_000)
        patch.setattr(windows, "API_BODY_LIMIT", 10_000_000)
        (one,) = cuts_of(plan_of((10, 9_500_000)), b'{"a":%b}\n{}\n' % (b"7" * 6_000))
    assert [row.code for row in one.rows] == ["invalid_json", ""]


@pytest.mark.parametrize(
    "key", [b"external_reference", b"external\\u005freference", b"\\u0065xternal\\u005Freferenc\\u0065"]
)
def test_external_reference_is_found_in_any_spelling(key):
    (one,) = cuts_of(plan_of((10, 300)), b'{"text":"x"}\n{"%b":"row-2"}\n' % key)
    assert [bytes(row.reference) for row in one.rows] == [b"null", b'"row-2"']


def test_upload_without_records_has_no_batches():
    assert cuts_of(plan_of((10, 300)), b"") == []
    assert cuts_of(plan_of((10, 300)), b"\n \n\r\n\t") == []

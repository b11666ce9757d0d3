"""The cut at its bounds."""

from dataclasses import replace

import msgspec
import pytest

from dropbatch.core.models import Model, facts_of
from dropbatch.core.read.cut import validate_record
from dropbatch.core.read.index import build_body
from dropbatch.core.read.inputs import Inputs
from dropbatch.core.read.rows import OverlongRecord
from tests.support.uploads import (
    LARGEST,
    LIMIT,
    WRAPPING,
    cuts_of,
    plan_of,
    record_of,
    small_limits,
)


@pytest.fixture(autouse=True, scope="module")
def _small_limits():
    with small_limits():
        yield


def lines_of(*sizes, ending=b"\n"):
    return b"".join(record_of(size) + ending for size in sizes)


# ── where a batch ends ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("block", [1 << 20, 21], ids=["found together", "found one by one"])
@pytest.mark.parametrize(
    ("sizes", "spare", "records"),
    [
        ((20, 20), 0, [2]),
        ((20, 20), -1, [1, 1]),
        ((20, 20, 20), 0, [3]),
        ((20, 20, 20), -1, [2, 1]),
        ((20, 20, 20, 20, 20), -1, [4, 1]),
        ((20, 20, 20, 20, 20), -22, [3, 2]),
    ],
)
def test_batch_is_filled_to_last_byte(block, sizes, spare, records):
    whole = WRAPPING + sum(sizes) + len(sizes) - 1
    cuts = cuts_of(plan_of((10, whole + spare)), lines_of(*sizes), block)
    assert [len(one.rows) for one in cuts] == records


@pytest.mark.parametrize("block", [1 << 20, 21], ids=["found together", "found one by one"])
@pytest.mark.parametrize(
    ("sizes", "records"),
    [
        ((60,), [1]),
        ((60, 20), [1, 1]),
        ((20, 60), [1, 1]),
        ((20, 60, 20, 20), [1, 1, 2]),
        ((60, 60), [1, 1]),
    ],
)
@pytest.mark.parametrize("limit", [59, 58, 40])
def test_record_larger_than_batch_travels_alone(block, sizes, records, limit):
    cuts = cuts_of(plan_of((10, WRAPPING + limit)), lines_of(*sizes), block)
    assert [len(one.rows) for one in cuts] == ([1] * len(sizes) if limit == 40 else records)
    assert sum(one.sendable for one in cuts) == len(sizes)


@pytest.mark.parametrize("block", [1 << 20, 21], ids=["found together", "found one by one"])
@pytest.mark.parametrize(("most", "records"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3]), (4, [3])])
def test_batch_holds_as_many_records_as_it_may(block, most, records):
    assert [
        len(one.rows) for one in cuts_of(plan_of((most, LIMIT)), lines_of(20, 20, 20), block)
    ] == records


# ── what is said of each record ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ending", [b"", b"\r"])
@pytest.mark.parametrize(
    ("size", "is_sent"), [(LARGEST - 1, True), (LARGEST, True), (LARGEST + 1, False)]
)
def test_record_is_sent_below_body_limit(size, is_sent, ending):
    judged = validate_record(record_of(size) + ending, 1)
    assert getattr(judged, "code", "") == ("" if is_sent else "too_large")
    ((row,),) = [
        one.rows for one in cuts_of(plan_of((10, LIMIT - 1)), record_of(size) + ending + b"\n")
    ]
    assert row.code == ("" if is_sent else "too_large")


def test_beginning_of_huge_record_is_reported():
    judged = validate_record(OverlongRecord(b'{"text":', 7 * LIMIT), 3)
    assert judged.message == (
        "Line 3: The record has 2,800 bytes; a request body must stay under 400. Shorten it."
    )
    assert msgspec.json.decode(judged.request) == '{"text":'


FILLING = b"x" * 3 * LIMIT


REFERENCES = {
    b'{"external_reference":"a-1","text":"%b"}': b'"a-1"',
    b'{ "n" : [1, {"b": "]"}] , "external_reference" : {"a": 1} , "text" : "%b"}': b'{"a": 1}',
    b'{"external\\u005freference":7,"text":"%b"}': b"7",
    b'{"text":"%b","external_reference":"a-1"}': b"null",
    b'{"text":{"external_reference":"a-1","a":"%b"}}': b"null",
    b'{"external_reference":"a-1%b"}': b"null",
    b'{"external_reference":"\\ud800","text":"%b"}': b"null",
    b'{"external_reference":[1 2],"text":"%b"}': b"null",
    b'{"external_reference" "a-1","text":"%b"}': b"null",
    b"[%b]": b"null",
}
NO_JSON = list(REFERENCES)[-3:]
"""Of a document with these, nothing can be read."""
FORMS = [(record, "jsonl") for record in REFERENCES] + [
    (record, "array") for record in REFERENCES if record not in NO_JSON
]


@pytest.mark.parametrize("block", [1 << 20, 21])
def test_too_large_record_keeps_early_reference(subtests, block):
    for record, form in FORMS:
        records = [b'{"text":"a"}', record % FILLING, b'{"external_reference":"b"}']
        data = b"\n".join(records) if form == "jsonl" else b"[" + b",\n".join(records) + b"]"
        cuts = cuts_of(plan_of((10, LIMIT - 1), form), data, block)
        rows = [(row.code, bytes(row.reference)) for one in cuts for row in one.rows]
        with subtests.test(record=record, form=form):
            assert rows == [("", b"null"), ("too_large", REFERENCES[record]), ("", b'"b"')]


@pytest.mark.parametrize(
    "raw", [b"", b" ", b"\t", b"\r", b" \t\r", b" " * LIMIT, OverlongRecord(b"", 7 * LIMIT)]
)
def test_blank_line_is_not_record(raw):
    assert validate_record(raw, 1) is None


@pytest.mark.parametrize(
    ("raw", "code", "message", "excerpt"),
    [
        (
            b"[1,\r2]",
            "not_an_object",
            "Line 5: The record is JSON, but not an object. Write one request object.",
            [1, 2],
        ),
        (
            b"null",
            "not_an_object",
            "Line 5: The record is JSON, but not an object. Write one request object.",
            None,
        ),
        (
            b"{\xff\r",
            "invalid_utf8",
            "Line 5: Byte 2 of the record is not UTF-8. Save the file as UTF-8.",
            "{\ufffd",
        ),
    ],
)
def test_unsendable_is_reported_with_line(raw, code, message, excerpt):
    judged = validate_record(raw, 5)
    assert (judged.code, judged.message, msgspec.json.decode(judged.request)) == (
        code,
        message,
        excerpt,
    )


# ── references ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b'"\\u00dc"', '"\u00dc"'.encode()),
        (b"1.50", b"1.50"),
        (b"[1,\r2]", b"[1,2]"),
        (b"[1,\n2]", b"[1,2]"),
        (b"[1, 2]", b"[1, 2]"),
    ],
)
def test_reference_is_kept_as_written_on_one_line(written, kept):
    """A text is kept in its shortest form, everything else as written."""
    judged = validate_record(b'{"external_reference":%b}' % written, None)
    assert bytes(judged.reference) == kept


OUT_OF_RANGE = [b"1e999", b"-1e400", b"1" + b"0" * 309 + b".5"]


@pytest.mark.parametrize("number", OUT_OF_RANGE)
@pytest.mark.parametrize("among", [b"", b"\xff\n"], ids=["alone", "beside a faulty record"])
@pytest.mark.parametrize("schema", ["", "bge"])
def test_number_out_of_range_is_sent_as_written(number, among, schema):
    record = b'{"text":"a","n":%b}' % number
    (one,) = cuts_of(
        replace(plan_of((10, LIMIT * 9)), facts=facts_of(Model(schema=schema))), among + record
    )
    assert one.body == build_body([record])


@pytest.mark.parametrize("number", OUT_OF_RANGE)
def test_reference_out_of_range_is_no_json(number):
    """Each result line has it, and every reader must be able to read these."""
    judged = validate_record(
        b'{"text":"a","external_reference":%b}' % number, 1, Inputs(Model(schema="bge"))
    )
    assert judged.code == "invalid_json"


@pytest.mark.parametrize("number", OUT_OF_RANGE)
def test_request_out_of_range_is_text_in_errors(number):
    record = b'{"n":%b}' % number
    judged = validate_record(record, 1, Inputs(Model(schema="bge")))
    assert (judged.code, msgspec.json.decode(judged.request)) == ("bad_record", record.decode())


@pytest.mark.parametrize("number", OUT_OF_RANGE)
def test_record_that_is_to_be_converted_has_no_number_out_of_range(number):
    """Who converts it must be able to read it."""
    judged = validate_record(b'{"text":"a","n":%b}' % number, 1)
    assert (judged.code, "out of range" in judged.message) == ("invalid_json", True)


def test_half_of_a_surrogate_pair_is_named_beside_a_number_out_of_range():
    judged = validate_record(rb'{"body":{"n":1e999},"x":"\ud800"}', 7, Inputs(Model(schema="bge")))
    assert judged.message.startswith(
        r"Line 7: The record: It has half of a surrogate pair (\ud800)"
    )


def test_records_that_cannot_be_sent_count_towards_the_limit():
    """A batch's index holds them until they are written to the errors."""
    record = b'"%b"' % (b"a" * 60)
    cuts = cuts_of(plan_of((10, 100)), b"\n".join([record] * 3))
    assert [len(one.rows) for one in cuts] == [1, 1, 1]

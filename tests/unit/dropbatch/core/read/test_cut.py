"""Where a batch ends, what is said of each record, and that any upload is cut alike everywhere."""

import json
from dataclasses import replace
from itertools import product

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dropbatch.core.formats.table import Form, reader_of
from dropbatch.core.models import Model, facts_of
from dropbatch.core.plan import Checkpoint
from dropbatch.core.read import cut as module
from dropbatch.core.read import lines as windows
from dropbatch.core.read import records
from dropbatch.core.read.cut import read_batches, validate_record
from dropbatch.core.read.form import detect_form
from dropbatch.core.read.index import build_body
from dropbatch.core.read.inputs import Inputs
from dropbatch.errors import UploadRefused
from tests.support.converted import BGE, target_of
from tests.support.examples import examples
from tests.support.uploads import (
    EXCERPT,
    LARGEST,
    LIMIT,
    WRAPPING,
    blocks_of,
    check_law,
    cuts_of,
    in_blocks,
    limits,
    members,
    plan_of,
    record_of,
    records_in,
    seen,
    seen_rows,
    small_limits,
    sound,
    too_large,
    uploads,
)


@pytest.fixture(autouse=True, scope="module")
def _small_limits():
    with small_limits():
        yield


def lines_of(*sizes, ending=b"\n"):
    return b"".join(record_of(size) + ending for size in sizes)


CUTS = [
    # records' sizes, most records, most bytes, records of each batch: filled to the last byte
    ((20, 20), 10, 41, [2]),
    ((20, 20), 10, 40, [1, 1]),
    ((20, 20, 20), 10, 62, [3]),
    ((20, 20, 20), 10, 61, [2, 1]),
    ((20, 20, 20, 20, 20), 10, 103, [4, 1]),
    ((20, 20, 20, 20, 20), 10, 82, [3, 2]),
    # one that is larger than a batch travels alone
    *((sizes, 10, 40, [1] * len(sizes)) for sizes in ((60,), (60, 20), (20, 60), (60, 60))),
    *(((20, 60), 10, most, [1, 1]) for most in (58, 59)),
    *(((60, 20), 10, most, [1, 1]) for most in (58, 59)),
    *(((20, 60, 20, 20), 10, most, [1, 1, 2]) for most in (58, 59)),
    # as many as there may be
    ((20, 20, 20), 1, LIMIT, [1, 1, 1]),
    ((20, 20, 20), 2, LIMIT, [2, 1]),
    ((20, 20, 20), 3, LIMIT, [3]),
    ((20, 20, 20), 4, LIMIT, [3]),
    # some that are read together, of which the first go into the batch before
    ((20,) * 19, 12, LIMIT, [12, 7]),
]


@pytest.mark.parametrize("block", [1 << 20, 21])
@pytest.mark.parametrize(("sizes", "most", "size", "records"), CUTS)
def test_batch_ends_at_its_limits(block, sizes, most, size, records):
    cuts = cuts_of(plan_of((most, WRAPPING + size)), lines_of(*sizes), block)
    assert [len(one.rows) for one in cuts] == records
    assert sum(one.sendable for one in cuts) == len(sizes)
    assert cuts[-1].end.offset == len(lines_of(*sizes))


def test_what_is_kept_of_records_that_cannot_be_sent_takes_room():
    cuts = cuts_of(plan_of((99, WRAPPING + 100)), (b'{"text":"' + b"x" * 20 + b"\n") * 9)
    assert [len(one.rows) for one in cuts] == [2, 2, 2, 2, 1]


MANY = records.OverlongRecord(b'{"custom_id":"a","body":{"x', 99)
ROW, LATE = records.OverlongRecord(b'1,"a",bc', 99), records.OverlongRecord(b"", 99)


@pytest.mark.parametrize(
    ("format_", "code", "raw", "kept"),
    [
        ("csv", "too_large", ROW, b'1,"a"'),
        ("csv", "too_large", b'1,"a",bc', b'1,"a"'),
        ("csv", "invalid_utf8", b"1,a\xff", b""),
        ("openai", "too_large", MANY, b'{"custom_id":"a"}'),
        ("openai", "invalid_json", b'{"custom_id":"a",', b""),
        ("openai", "bad_record", MANY, b""),
        ("openai", "bad_record", b'{"a":1}\r', b'{"a":1}'),
        ("text", "too_large", MANY, b""),
    ],
)
def test_beginning_of_record_that_is_too_large_is_kept(format_, code, raw, kept):
    plan = replace(plan_of((9, 99)), format=format_)
    plan = replace(plan, form="rows", delimiter=",") if format_ == "csv" else plan
    fault = records.UnsendableRecord(code, "", msgspec.Raw(b"null"))
    assert records.kept_of(plan, fault, raw)[0] == kept
    if raw is ROW or format_ == "text":
        assert records.judge_of(plan)(raw, 1).code == "too_large"
        assert (records.judge_of(plan)(LATE, 1) is None) == (format_ == "text")


@pytest.mark.parametrize("ending", [b"", b"\r"])
@pytest.mark.parametrize(
    ("size", "is_sent"), [(LARGEST - 1, True), (LARGEST, True), (LARGEST + 1, False)]
)
def test_record_is_sent_below_body_limit(size, is_sent, ending):
    judged = validate_record(record_of(size) + ending, 1)
    assert getattr(judged, "code", "") == ("" if is_sent else "too_large")
    plan, text = plan_of((10, LIMIT - 1)), record_of(size)[len(b'{"text":"') : -len(b'"}')]
    as_text = [replace(plan, format="text"), Checkpoint(), 0, [text + ending + b"\n"]]
    made = read_batches(*as_text, reader_of(Form("text"), target_of(BGE)))
    for (one,) in (cuts_of(plan, record_of(size) + ending + b"\n"), list(made)):
        assert [row.code for row in one.rows] == ["" if is_sent else "too_large"]


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
"""Of a document with one of the last three, nothing can be read."""
FORMS = [*product(REFERENCES, ["jsonl"]), *product([*REFERENCES][:-3], ["array"])]


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
def test_reference_out_of_range_is_no_json(number):
    """Each result line has it, and every reader must be able to read these."""
    record = b'{"text":"a","external_reference":%b}' % number
    assert validate_record(record, 1, Inputs(Model(schema="bge"))).code == "invalid_json"


space = st.text(alphabet=" \t\r\n", max_size=3).map(str.encode)
wide = st.sampled_from([b" " * (LIMIT + EXCERPT + 1), b"\n" * (3 * LIMIT)])
broad = st.one_of(space, space, space, wide)


@st.composite
def pretty(draw):
    """A sound record over several lines."""
    return json.dumps(
        draw(members), indent=draw(st.integers(0, 3)), ensure_ascii=draw(st.booleans())
    ).encode()


good = st.tuples((sound | pretty()).filter(lambda one: len(one) <= LARGEST), st.just(""))
large = [
    b'["%b"]' % (b'\\"]\\\\' * LIMIT),
    b'"%b"' % (b"[\\\\" * LIMIT),
    b"1" * (3 * LIMIT),
    b'{"a":[%b{}]}' % (b"[{}]," * LIMIT),
]
element_kinds = st.one_of(
    good,
    good,
    st.tuples(too_large | st.sampled_from(large), st.just("too_large")),
    st.tuples(st.just(b'{"a":"\\ud800"}'), st.just("bad_record")),
    st.tuples(st.sampled_from([b"1", b'"]"', b"null", b"[]", b"-0.5"]), st.just("not_an_object")),
    st.tuples(st.just(b'{"a":"\xff"}'), st.just("invalid_utf8")),
)
others = st.sampled_from(
    [
        b"",
        b'"queueRequest":true',
        b'"a":{"b":[1,"]}\\"",{}]}',
        b'"x":"\\\\"',
        b'"model" : "@cf/a/b" , "n":null',
        b'"%b":[[]]' % (b"\\\\" * LIMIT),
    ]
)


@st.composite
def documents(draw):
    """A document, what its elements are, and its form."""
    elements = draw(st.lists(element_kinds, max_size=12))
    # Only a first element that is an object makes a lone array a document.
    may_be_alone = not elements or elements[0][0][:1] == b"{"
    form = draw(st.sampled_from(["object", "array"])) if may_be_alone else "object"
    array = b",".join(draw(broad) + content + draw(broad) for content, _ in elements) or draw(space)
    data = b"[" + array + b"]"
    if form == "object":
        before, after = draw(others), draw(others)
        head = before + b"," if before else b""
        tail = b"," + after if after else b""
        parts = [b"{", head, b'"requests"', b":", data, tail, b"}"]
        data = b"".join(draw(space) + part for part in parts)
    return data + draw(space), elements, form


@given(document=documents(), limits=limits, size=blocks_of)
@examples(150)
def test_elements_become_rows_byte_for_byte(document, limits, size):
    data, elements, form = document
    plan = plan_of(limits, form)
    cuts = cuts_of(plan, data, size)
    check_law(cuts, plan)
    rows = [pair for one in cuts for pair in records_in(one)]
    expected = [(None, code, content if not code else None) for content, code in elements]
    assert [(row.line, row.code, record) for row, record in rows] == expected


def told(plan, data, size):
    """The records before a document's fault, and the fault."""
    rows, blocks = [], in_blocks(data[plan.start :], size)
    try:
        for one in read_batches(plan, Checkpoint(offset=plan.start), 0, blocks):
            rows += seen_rows(one.rows)
    except UploadRefused as error:
        return rows, (error.code, error.message)
    return rows, None


ARRAY = b'[ {"text":"a]\\"}"} , {"text":"b","n":[1,{}]},\n{"text":"c"} ]'
OBJECT = b'{"queueRequest": true, "requests": %b , "more":{"x":"]}" } }' % ARRAY
DOCUMENTS = {"object": OBJECT, "array": ARRAY}


@pytest.mark.parametrize("form", DOCUMENTS)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_truncated_document_is_broken(form, size):
    data = DOCUMENTS[form]
    assert detect_form(data, complete=True) == (form, 0)
    plan = plan_of((2, 390), form)
    whole, problem = told(plan, data, size)
    assert len(whole) == 3
    assert problem is None
    for end in range(len(data)):
        rows, problem = told(plan, data[:end], size)
        assert rows == []
        assert problem[0] == "broken_document"


@given(
    content=st.binary(max_size=60),
    size=st.integers(1, 9),
    form=st.sampled_from(["jsonl", "array", "object"]),
)
@example(content=b'"\\', size=1, form="array")
@examples(200)
def test_any_bytes_are_cut_or_reported_as_broken(content, size, form):
    plan = plan_of((3, 300), form)
    assert told(plan, content, size) == told(plan, content, 1 << 20)


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
)
def test_deep_nesting_and_thousands_of_digits_are_no_crash(value, code, monkeypatch):
    for one in (module, records, windows):
        monkeypatch.setattr(one, "API_BODY_LIMIT", 10_000_000)
    (one,) = cuts_of(plan_of((10, 9_500_000)), b'{"a":%b}\n{}\n' % value)
    assert [row.code for row in one.rows] == [code, ""]


@pytest.mark.parametrize("number", OUT_OF_RANGE)
@pytest.mark.parametrize("among", [b"", b"\xff\n"])
@pytest.mark.parametrize("schema", ["", "bge"])
def test_number_out_of_range_is_sent_as_written(number, among, schema):
    record = b'{"text":"a","n":%b}' % number
    plan = replace(plan_of((10, LIMIT * 9)), facts=facts_of(Model(schema=schema)))
    (one,) = cuts_of(plan, among + record)
    assert one.body == build_body([record])


NO_OBJECT = "The record is JSON, but not an object. Write one request object."
NO_UTF8 = "Byte 2 of the record is not UTF-8. Save the file as UTF-8."


@pytest.mark.parametrize(
    ("raw", "code", "message", "excerpt"),
    [
        (b"[1,\r2]", "not_an_object", NO_OBJECT, [1, 2]),
        (b"null", "not_an_object", NO_OBJECT, None),
        (b"{\xff\r", "invalid_utf8", NO_UTF8, "{\ufffd"),
    ],
)
def test_unsendable_is_reported_with_line(raw, code, message, excerpt):
    judged = validate_record(raw, 5)
    assert (judged.code, judged.message) == (code, f"Line 5: {message}")
    assert msgspec.json.decode(judged.request) == excerpt


@pytest.mark.parametrize("number", OUT_OF_RANGE)
def test_record_out_of_range_is_text_in_errors_and_is_not_converted(number):
    """Who converts it must be able to read it."""
    record, inputs = b'{"n":%b}' % number, Inputs(Model(schema="bge"))
    judged = validate_record(record, 1, inputs)
    assert (judged.code, msgspec.json.decode(judged.request)) == ("bad_record", record.decode())
    judged = validate_record(b'{"text":"a","n":%b}' % number, 1)
    assert (judged.code, "out of range" in judged.message) == ("invalid_json", True)
    judged = validate_record(rb'{"body":{"n":%b},"x":"\ud800"}' % number, 7, inputs)
    assert judged.message.startswith(r"Line 7: The record: It has half of a surrogate pair (\ud80")

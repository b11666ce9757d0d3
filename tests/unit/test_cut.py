"""The cut: every record of an upload is in exactly one batch, in order, as the user wrote it, within the limits."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from functions.submit.batch_limits import max_records
from functions.submit.records import cut as module
from functions.submit.records import framing as windows
from functions.submit.records.cut import cut
from functions.submit.records.detect_form import detect_form
from shared.errors import UploadError
from shared.models import Checkpoint, SplitPlan
from shared.staged_batch import StagedInfo, decode_index, encode_index, record_spans

LIMIT = 400
"""Stands for the API's 10,000,000 bytes here, so that examples stay small."""
WRAPPING = len(b'{"requests":[]}')
LARGEST = LIMIT - 1 - WRAPPING
EXCERPT = 60


@pytest.fixture(autouse=True, scope="module")
def _small_limits():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "API_BODY_LIMIT", LIMIT)
        patch.setattr(windows, "API_BODY_LIMIT", LIMIT)
        patch.setattr(module, "EXCERPT_BYTES", EXCERPT)
        patch.setattr(windows, "EXCERPT_BYTES", EXCERPT)
        patch.setattr(windows, "WINDOW_BYTES", 200)
        patch.setattr(module, "MIN_RECORDS", 2)
        patch.setattr(windows, "MIN_ELEMENTS", 2)
        yield


# ── what uploads are made of ─────────────────────────────────────────────────────────────────────────────────────────


def record_of(size):
    """A sound record of exactly so many bytes."""
    frame = b'{"text":""}'
    return b'{"text":"%b"}' % (b"x" * (size - len(frame)))


sizes = st.one_of(st.integers(11, 60), st.integers(11, LARGEST), st.sampled_from([LARGEST - 1, LARGEST]))
texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
members = st.dictionaries(
    st.one_of(st.sampled_from(["text", "external_reference", "prompt"]), texts),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-(10**18), 10**18), st.floats(-1e9, 1e9), texts),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
        max_leaves=5,
    ),
    max_size=4,
)


@st.composite
def written(draw):
    """A sound record as somebody may write it: escaped or not, with more or less white space."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :  ")]))
    text = json.dumps(draw(members), ensure_ascii=draw(st.booleans()), separators=separators)
    return text.encode()


sound = st.one_of(sizes.map(record_of), written(), st.just(b'{"a":%b}' % (b"9" * 300))).filter(
    lambda record: len(record) <= LARGEST
)
too_large = st.integers(LARGEST + 1, 3 * LIMIT).map(record_of)
not_json = st.sampled_from(
    [
        b"{",
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e400}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\ud800 b"}',
        b'{"a":"\\udc00\\ud800"}',
        b"{'a':1}",
        b'{"a":1}{"a":2}',
        b'{"a":1,}',
        b'{"a":01}',
        b'{"a":"\x01"}',
        b"\xef\xbb\xbf{}",
        b"text",
        b"}",
    ]
)
not_text = st.sampled_from(
    [b'{"a":"\xff"}', b'{"a\xc0\xaf":1}', b'{"a":"\xed\xa0\x80"}', b"\xfe", b'{"a":"\xf4\x90\x80\x80"}']
)
not_object = st.sampled_from([b"1", b'"text"', b"null", b"true", b"[]", b'[{"a":1}]', b" 17 ", b"-0.5e3"])
blank = st.sampled_from([b"", b" ", b"\t", b"\r", b" \t \r", b" " * (2 * LIMIT)])

kinds = st.one_of(
    st.tuples(sound, st.just("")),
    st.tuples(sound, st.just("")),
    st.tuples(sound, st.just("")),
    st.tuples(too_large, st.just("too_large")),
    st.tuples(not_json, st.just("invalid_json")),
    st.tuples(not_text, st.just("invalid_utf8")),
    st.tuples(not_object, st.just("not_an_object")),
    st.tuples(blank, st.just("blank")),
)
endings = st.sampled_from([b"\n", b"\n", b"\r\n"])
uploads = st.lists(st.tuples(kinds, endings), max_size=25)
limits = st.tuples(
    st.integers(1, 12), st.one_of(st.integers(WRAPPING + 1, LIMIT - 1), st.just(LIMIT - 1)), st.integers(0, 2)
)
blocks_of = st.one_of(st.integers(1, 7), st.integers(8, 4 * LIMIT), st.just(1 << 20))


def plan_of(limits, form="jsonl", start=0):
    """Limits are records and bytes of a batch, and if batches grow the records of the first ones."""
    first = min(limits[2], limits[0]) if len(limits) > 2 else 0
    return SplitPlan("@cf/a/b", limits[0], limits[1], "account", form, "plain", start, first)


def in_blocks(data, size):
    return [data[at : at + size] for at in range(0, len(data), size)]


def cuts_of(plan, data, size=1 << 20, start=None, number=0):
    start = start or Checkpoint(offset=plan.start)
    return list(cut(plan, start, number, in_blocks(data[start.offset :], size)))


def seen(cuts):
    """All that a cut says, comparable."""
    return [(one.first_id, encode_index(one.rows), one.body, one.end, one.staged) for one in cuts]


def records_in(one):
    """Each row of a cut with the record its body holds for it, None for one that is not there."""
    pairs = zip(one.rows, record_spans(one.rows), strict=True)
    return [(row, one.body[at : at + length] if length else None) for row, (at, length) in pairs]


def check_law(cuts, plan):
    """What holds for every upload and every plan."""
    next_id = 0
    for number, one in enumerate(cuts):
        sent = [record for _, record in records_in(one) if record is not None]
        assert one.first_id == next_id
        assert len(one.rows) > 0
        next_id += len(one.rows)
        assert one.end.record == next_id
        assert len(one.rows) <= max_records(plan, number)
        assert one.body == (b'{"requests":[' + b",".join(sent) + b"]}" if sent else b"")
        assert len(one.body) <= plan.max_bytes or len(one.rows) == 1
        assert len(one.body) < LIMIT
        assert one.staged == StagedInfo(len(one.rows), len(sent), len(one.body), one.end)
        assert seen_rows(decode_index(encode_index(one.rows))) == seen_rows(one.rows)


def seen_rows(rows):
    return [
        (row.line, row.length, bytes(row.reference), row.code, row.message, bytes(row.request).strip()) for row in rows
    ]


# ── JSON Lines ───────────────────────────────────────────────────────────────────────────────────────────────────────


def joined(upload, *, last_line_ends):
    data = b"".join(content + ending for (content, _), ending in upload)
    return data if last_line_ends or not upload else data.removesuffix(upload[-1][1])


@given(upload=uploads, last_line_ends=st.booleans(), limits=limits, size=blocks_of)
@settings(max_examples=150)
def test_every_line_becomes_one_row_in_order_and_every_sound_one_is_sent_as_written(
    upload, last_line_ends, limits, size
):
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
def test_where_lines_are_cut_does_not_depend_on_the_blocks(upload, limits, size):
    data = joined(upload, last_line_ends=True)
    plan = plan_of(limits)
    assert seen(cuts_of(plan, data, size)) == seen(cuts_of(plan, data))


@given(upload=uploads, last_line_ends=st.booleans(), limits=limits, size=blocks_of)
def test_lines_cut_on_from_any_end_give_the_same_remaining_cuts(upload, last_line_ends, limits, size):
    data = joined(upload, last_line_ends=last_line_ends)
    plan = plan_of(limits)
    cuts = cuts_of(plan, data)
    for done, one in enumerate(cuts, 1):
        assert seen(cuts_of(plan, data, size, one.end, done)) == seen(cuts[done:])


@given(first=sound, rest=st.lists(sound, max_size=3))
def test_a_byte_order_mark_belongs_to_no_record(first, rest):
    data = b"\xef\xbb\xbf" + b"\n".join([first, *rest])
    form, start = detect_form(data, complete=True)
    (one,) = cuts_of(plan_of((100, LIMIT * 9), form, start), data)
    assert [record for _, record in records_in(one)] == [first, *rest]


@given(upload=uploads, limits=limits)
def test_a_batch_is_filled_as_far_as_the_limits_allow(upload, limits):
    plan = plan_of(limits)
    cuts = cuts_of(plan, joined(upload, last_line_ends=True))
    for number, (one, following) in enumerate(pairwise(cuts)):
        if not one.body or any(row.code for row in (*one.rows, *following.rows)):
            continue
        full = len(one.rows) == max_records(plan, number)
        assert full or len(one.body) + 1 + following.rows[0].length > plan.max_bytes


def test_batches_grow_with_their_number_up_to_the_most_that_the_plan_allows():
    data = b"\n".join([record_of(11)] * 50)
    assert [len(one.rows) for one in cuts_of(plan_of((5, 399, 1)), data)] == [1] * 4 + [2] * 4 + [4] * 4 + [5] * 4 + [2]


def test_batches_of_a_plan_from_before_they_grew_keep_their_size():
    data = b"\n".join([record_of(11)] * 50)
    assert [len(one.rows) for one in cuts_of(plan_of((5, 399)), data)] == [5] * 10


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b""])
@pytest.mark.parametrize(("size", "code"), [(LARGEST, ""), (LARGEST + 1, "too_large")])
@pytest.mark.parametrize("block", [1, 13, LARGEST, 1 << 20])
def test_a_record_is_too_large_exactly_when_its_body_would_reach_the_limit(size, code, ending, block):
    ((row,),) = [one.rows for one in cuts_of(plan_of((10, 200)), record_of(size) + ending, block)]
    assert row.code == code


def test_a_body_at_the_byte_limit_is_one_batch_and_one_byte_more_makes_two():
    data = record_of(40) + b"\n" + record_of(50)
    whole = WRAPPING + 40 + 1 + 50
    assert len(cuts_of(plan_of((10, whole)), data)) == 1
    assert len(cuts_of(plan_of((10, whole - 1)), data)) == 2


def test_a_record_above_the_batch_limit_travels_alone():
    cuts = cuts_of(plan_of((10, 100)), b"\n".join([record_of(20), record_of(200), record_of(20)]))
    assert [len(one.rows) for one in cuts] == [1, 1, 1]
    assert len(cuts[1].body) == 200 + WRAPPING


def test_the_beginning_of_an_unreadable_line_is_kept_as_text():
    (one,) = cuts_of(plan_of((10, 300)), b'{"a":"\xff' + b"b" * 300)
    assert json.loads(bytes(one.rows[0].request)) == '{"a":"�' + "b" * (EXCERPT - 7)


@pytest.mark.parametrize("block", [1, 5, 59, 61, LIMIT, LIMIT + 5, 1 << 20])
@pytest.mark.parametrize("size", [LIMIT - WRAPPING, LIMIT, LIMIT + 1, LIMIT + EXCERPT, LIMIT + EXCERPT + 1, 5 * LIMIT])
def test_the_beginning_of_a_line_too_large_is_kept_whatever_the_blocks(size, block):
    data = record_of(30) + b"\n" + record_of(size) + b"\n" + record_of(30)
    rows = [row for one in cuts_of(plan_of((10, 300)), data, block) for row in one.rows]
    assert [row.code for row in rows] == ["", "too_large", ""]
    assert json.loads(bytes(rows[1].request)) == record_of(size)[:EXCERPT].decode()
    assert f"{size:,} bytes" in rows[1].message


def test_a_message_names_the_line_counted_from_1_with_blank_ones():
    (one,) = cuts_of(plan_of((10, 300)), b"\n\r\n{}\nwrong\n")
    assert [row.line for row in one.rows] == [3, 4]
    assert one.rows[1].message.startswith("Line 4: ")


@pytest.mark.parametrize("depth", [900, 5_000, 200_000])
def test_deep_nesting_is_an_answer_and_no_crash(depth):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "API_BODY_LIMIT", 10_000_000)
        patch.setattr(windows, "API_BODY_LIMIT", 10_000_000)
        line = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        (one,) = cuts_of(plan_of((10, 9_500_000)), line + b"\n{}\n")
    assert [row.code for row in one.rows] == ["" if depth < 1_000 else "invalid_json", ""]


def test_thousands_of_digits_make_one_bad_record_and_no_crash():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "API_BODY_LIMIT", 10_000_000)
        patch.setattr(windows, "API_BODY_LIMIT", 10_000_000)
        (one,) = cuts_of(plan_of((10, 9_500_000)), b'{"a":%b}\n{}\n' % (b"7" * 6_000))
    assert [row.code for row in one.rows] == ["invalid_json", ""]


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b'"row-1"', b'"row-1"'),
        (b"null", b"null"),
        (b"17", b"17"),
        (b"1.50", b"1.50"),
        (b'{"b": 1}', b'{"b": 1}'),
        (b"[1,\r2]", b"[1,2]"),
        ('"Ü\\u00dc"'.encode(), '"ÜÜ"'.encode()),
    ],
)
def test_a_record_keeps_its_own_external_reference_on_one_line(written, kept):
    (one,) = cuts_of(plan_of((10, 300)), b'{"external_reference":%b,"text":"x"}' % written)
    assert bytes(one.rows[0].reference) == kept


@pytest.mark.parametrize(
    "key", [b"external_reference", b"external\\u005freference", b"\\u0065xternal\\u005Freferenc\\u0065"]
)
def test_an_external_reference_is_found_however_its_key_is_spelt(key):
    (one,) = cuts_of(plan_of((10, 300)), b'{"text":"x"}\n{"%b":"row-2"}\n' % key)
    assert [bytes(row.reference) for row in one.rows] == [b"null", b'"row-2"']


def test_an_upload_without_records_has_no_batches():
    assert cuts_of(plan_of((10, 300)), b"") == []
    assert cuts_of(plan_of((10, 300)), b"\n \n\r\n\t") == []


# ── documents ────────────────────────────────────────────────────────────────────────────────────────────────────────

space = st.text(alphabet=" \t\r\n", max_size=3).map(str.encode)
wide = st.sampled_from([b" " * (LIMIT + EXCERPT + 1), b"\n" * (3 * LIMIT)])
broad = st.one_of(space, space, space, wide)


@st.composite
def pretty(draw):
    """A sound record over several lines."""
    return json.dumps(draw(members), indent=draw(st.integers(0, 3)), ensure_ascii=draw(st.booleans())).encode()


element_kinds = st.one_of(
    st.tuples(st.one_of(sound, pretty()).filter(lambda record: len(record) <= LARGEST), st.just("")),
    st.tuples(st.one_of(sound, pretty()).filter(lambda record: len(record) <= LARGEST), st.just("")),
    st.tuples(
        st.one_of(
            too_large,
            st.just(b'["%b"]' % (b'\\"]\\\\' * LIMIT)),
            st.just(b'"%b"' % (b"[\\\\" * LIMIT)),
            st.just(b"1" * (3 * LIMIT)),
            st.just(b'{"a":[%b{}]}' % (b"[{}]," * LIMIT)),
        ),
        st.just("too_large"),
    ),
    st.tuples(
        st.sampled_from([b"NaN", b'{"a":"\n"}', b'{"a":1e400}', b'{"a":}', b"{'a':1}", b'{"a":"\\ud800"}', b"nul"]),
        st.just("invalid_json"),
    ),
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
    form = draw(st.sampled_from(["object", "array"])) if not elements or elements[0][0][:1] == b"{" else "object"
    array = b",".join(draw(broad) + content + draw(broad) for content, _ in elements) or draw(space)
    data = b"[" + array + b"]"
    if form == "object":
        before, after = draw(others), draw(others)
        head = before + b"," if before else b""
        tail = b"," + after if after else b""
        data = (
            draw(space)
            + b"{"
            + head
            + draw(space)
            + b'"requests"'
            + draw(space)
            + b":"
            + draw(space)
            + data
            + draw(space)
            + tail
            + b"}"
        )
    return data + draw(space), elements, form


def start_of(data, form):
    found, start = detect_form(data, complete=True)
    assert found == form
    return start


@given(document=documents(), limits=limits, size=blocks_of)
@settings(max_examples=150)
def test_every_element_becomes_one_row_in_order_and_every_sound_one_is_sent_byte_for_byte(document, limits, size):
    data, elements, form = document
    plan = plan_of(limits, form, data.index(b"[", data.find(b'"requests"') + 1 if form == "object" else 0) + 1)
    cuts = cuts_of(plan, data, size)
    check_law(cuts, plan)
    rows = [pair for one in cuts for pair in records_in(one)]
    assert [(row.line, row.code, record) for row, record in rows] == [
        (None, code, content if not code else None) for content, code in elements
    ]


@given(document=documents(), limits=limits, size=blocks_of)
def test_where_documents_are_cut_does_not_depend_on_the_blocks_and_every_end_can_be_gone_on_from(
    document, limits, size
):
    data, _, form = document
    plan = plan_of(limits, form, data.index(b"[", data.find(b'"requests"') + 1 if form == "object" else 0) + 1)
    cuts = cuts_of(plan, data)
    assert seen(cuts_of(plan, data, size)) == seen(cuts)
    for done, one in enumerate(cuts, 1):
        assert seen(cuts_of(plan, data, size, one.end, done)) == seen(cuts[done:])


@st.composite
def alike(draw):
    """A document as programs write it: elements and separators are mostly alike, now and then one is not."""
    texts = st.text(alphabet='ab {}[],"\\', max_size=12)
    like = st.builds(lambda text: json.dumps({"text": text}).encode(), texts)
    nested = st.builds(lambda text: json.dumps({"text": [{"text": text}, {"text": text}]}).encode(), texts)
    another = st.sampled_from(
        [b"1", b'{"a":}', b'{"text":"\xff"}', b'{"text":1e400}', b'{"text":"', b"}", b'{"text":[']
    )
    elements = draw(st.lists(st.one_of(like, like, like, nested, another), max_size=40))
    separator = draw(st.sampled_from([b",", b", ", b",\n", b"\n  , "]))
    spaces = draw(st.lists(st.sampled_from([b"", b"", b"", b"", b" "]), min_size=len(elements), max_size=len(elements)))
    array = separator.join(space + element for space, element in zip(spaces, elements, strict=True))
    return b"[" + array + draw(st.sampled_from([b"]", b" ]\n", b",]", b""]))


@given(data=alike(), limits=limits, size=blocks_of)
@settings(max_examples=200)
def test_elements_found_together_are_those_that_their_tokens_tell(data, limits, size):
    plan = plan_of(limits, "array", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "_elements_alike", lambda *_: None)
        expected = told(plan, data, 1 << 20)
    assert told(plan, data, size) == expected


def told(plan, data, size):
    """The records before a document's fault, and the fault."""
    rows = []
    try:
        for one in cut(plan, Checkpoint(offset=plan.start), 0, in_blocks(data[plan.start :], size)):
            rows += seen_rows(one.rows)
    except UploadError as error:
        return rows, (error.code, error.message)
    return rows, None


DOCUMENTS = {
    "object": b'{"queueRequest": true, "requests": [ {"text":"a]\\"}"} , {"text":"b","n":[1,{}]},\n{"text":"c"} ] '
    b', "more":{"x":"]}" } }',
    "array": b'[ {"text":"a]\\"}"} , {"text":"b","n":[1,{}]},\n{"text":"c"} ]',
}


@pytest.mark.parametrize("form", DOCUMENTS)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_document_cut_short_anywhere_is_broken_behind_the_records_before(form, size):
    data = DOCUMENTS[form]
    start = start_of(data, form)
    plan = plan_of((2, 390), form, start)
    whole, problem = told(plan, data, size)
    assert len(whole) == 3
    assert problem is None
    for end in range(start, len(data)):
        rows, problem = told(plan, data[:end], size)
        assert problem is not None, data[:end]
        assert problem[0] == "broken_document"
        assert rows == whole[: len(rows)]
        assert len(rows) == sum(data[:end].count(last) for last in (b'}"}', b"{}]}", b'"c"}'))


@pytest.mark.parametrize(
    ("data", "before"),
    [
        (b'[{"a":1} {"a":2}]', 1),
        (b'[{"a":1},,{"a":2}]', 1),
        (b'[{"a":1},]', 1),
        (b'[,{"a":1}]', 0),
        (b"[,]", 0),
        (b'[{"a":1}}', 1),
        (b'[{"a":1}:{"a":2}]', 1),
        (b'[{"a":1}] x', 1),
        (b'[{"a":1}]]', 1),
        (b'[{"a":1}] {"a":2}', 1),
        (b'[{"a":1},' + b" " * (3 * LIMIT), 1),
        (b'[{"a":1},{"a":"' + b"x" * (3 * LIMIT), 1),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1 << 20])
def test_a_broken_document_is_told_with_its_place_after_the_records_before_it(data, before, size):
    plan = plan_of((10, 390), "array", 1)
    rows, problem = told(plan, data, size)
    assert len(rows) == before
    assert problem is not None
    assert problem[0] == "broken_document"
    assert "byte" in problem[1]
    assert (rows, problem) == told(plan, data, 1 << 20)


@given(
    document=documents(),
    at=st.floats(0, 1),
    junk=st.sampled_from([b"", b",", b"]", b"}", b'"', b"{", b"\\", b"x"]),
    size=blocks_of,
)
def test_damage_anywhere_ends_and_never_depends_on_the_blocks(document, at, junk, size):
    data, _, form = document
    start = data.index(b"[", data.find(b'"requests"') + 1 if form == "object" else 0) + 1
    place = start + int(at * (len(data) - start))
    damaged = data[:place] + junk + data[place + 1 :]
    plan = plan_of((3, 300), form, start)
    assert told(plan, damaged, size) == told(plan, damaged, 1 << 20)


@given(content=st.binary(max_size=60), size=st.integers(1, 9), form=st.sampled_from(["jsonl", "array", "object"]))
@example(content=b'"\\', size=1, form="array")
@settings(max_examples=200)
def test_any_bytes_at_all_are_cut_or_told_broken(content, size, form):
    plan = plan_of((3, 300), form)
    assert told(plan, content, size) == told(plan, content, 1 << 20)

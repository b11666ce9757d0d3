"""The cut of JSON documents."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dropbatch.core.plan import Checkpoint
from dropbatch.core.read.cut import read_batches
from dropbatch.core.read.form import detect_form
from dropbatch.errors import UploadRefused
from tests.support.examples import examples
from tests.support.uploads import (
    EXCERPT,
    LARGEST,
    LIMIT,
    blocks_of,
    check_law,
    cuts_of,
    in_blocks,
    limits,
    members,
    plan_of,
    records_in,
    seen,
    seen_rows,
    small_limits,
    sound,
    too_large,
)


@pytest.fixture(autouse=True, scope="module")
def _small_limits():
    with small_limits():
        yield


space = st.text(alphabet=" \t\r\n", max_size=3).map(str.encode)
wide = st.sampled_from([b" " * (LIMIT + EXCERPT + 1), b"\n" * (3 * LIMIT)])
broad = st.one_of(space, space, space, wide)


@st.composite
def pretty(draw):
    """A sound record over several lines."""
    return json.dumps(
        draw(members), indent=draw(st.integers(0, 3)), ensure_ascii=draw(st.booleans())
    ).encode()


element_kinds = st.one_of(
    st.tuples(
        st.one_of(sound, pretty()).filter(lambda record: len(record) <= LARGEST), st.just("")
    ),
    st.tuples(
        st.one_of(sound, pretty()).filter(lambda record: len(record) <= LARGEST), st.just("")
    ),
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
    form = (
        draw(st.sampled_from(["object", "array"]))
        if not elements or elements[0][0][:1] == b"{"
        else "object"
    )
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
    assert [(row.line, row.code, record) for row, record in rows] == [
        (None, code, content if not code else None) for content, code in elements
    ]


@given(document=documents(), limits=limits, size=blocks_of)
def test_cutting_resumes_at_any_batch_end(document, limits, size):
    data, _, form = document
    plan = plan_of(limits, form)
    cuts = cuts_of(plan, data)
    assert seen(cuts_of(plan, data, size)) == seen(cuts)
    for done, one in enumerate(cuts, 1):
        assert seen(cuts_of(plan, data, size, one.end, done)) == seen(cuts[done:])


def told(plan, data, size):
    """The records before a document's fault, and the fault."""
    rows = []
    try:
        for one in read_batches(
            plan, Checkpoint(offset=plan.start), 0, in_blocks(data[plan.start :], size)
        ):
            rows += seen_rows(one.rows)
    except UploadRefused as error:
        return rows, (error.code, error.message)
    return rows, None


DOCUMENTS = {
    "object": b'{"queueRequest": true, "requests": [ {"text":"a]\\"}"} , '
    b'{"text":"b","n":[1,{}]},\n{"text":"c"} ] '
    b', "more":{"x":"]}" } }',
    "array": b'[ {"text":"a]\\"}"} , {"text":"b","n":[1,{}]},\n{"text":"c"} ]',
}


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

"""What is a document, and what is JSON Lines: detected from the content alone."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.read.form import detect_form, end_of_value
from dropbatch.errors import UploadRefused

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "text",
    [
        b'{"requests":[]}',
        b'{"requests":[{"text":"a"}]}',
        b'\n\n {"requests" : [ {"text":"a"} ] }\n\n',
        BOM + b'{"requests":[{"text":"a"}]}',
        b'{\n  "requests": [\n    {"text": "a"}\n  ]\n}\n',
        b'{"queueRequest":true,"requests":[{"text":"a"}],"n":1}',
        b'{"n":{"requests":[1]},\r\n"requests":[{"text":"a"}]}',
        b'{"s":"\\"requests\\":[",\n"requests":[{"text":"a"}]}',
        b'{"a":1,"b":null,"c":[1,[2]],"d":"x",\n"requests":[]}',
        b'{"requests":[1,2]}',
        b'{"requests":[{"text":"cut short"},',
    ],
)
def test_lone_requests_array_is_document(text):
    form, start = detect_form(text, complete=True)
    assert (form, start) == ("object", len(BOM) if text.startswith(BOM) else 0)


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"[ ]\n",
        b'[{"text":"a"}]',
        b'\n[\n {"text":"a"},\n {"text":"b"}\n]\n',
        BOM + b'[{"a":1},2]',
        b'[{"cut":"short"}',
    ],
)
def test_lone_array_of_objects_is_document(text):
    form, start = detect_form(text, complete=True)
    assert (form, start) == ("array", len(BOM) if text.startswith(BOM) else 0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" \n\t\r\n",
        b'{"text":"a"}',
        b'{"text":"a"}\n{"text":"b"}\n',
        b'{"requests":[{"text":"a"}]}\n{"requests":[{"text":"b"}]}\n',
        b'{"requests":[{"text":"a"}]} {"text":"b"}',
        b'{"requests":"none"}',
        b'{"requests":{"a":1}}',
        b'{"text":{"requests":[{"a":1}]}}',
        b'[{"a":1}]\n[{"a":2}]\n',
        b"[1,2]",
        b"[[1]]",
        b"[1,\n2]",
        b"17",
        b'"text"',
        b"null",
        b"wrong\n{}\n",
        b'{"text":"broken\n{"text":"b"}\n',
        b'{"text":"broken"\n{"requests":[{"text":"b"}]}\n',
        b'{\n"text":"a"\n}',
        b'{"requests"\n[]}',
        b"{}",
        b"{",
        b"[",
        b'{"a":[1,2}\n{"a":1}',
    ],
)
def test_everything_else_is_json_lines(text):
    assert detect_form(text, complete=True) == ("jsonl", 0)


@pytest.mark.parametrize(
    ("head", "form"),
    [
        (b'{"text":"a"}\n{"text":', "jsonl"),
        (b'{"requests":[{"text":"a"}]}\n{"requests":', "jsonl"),
        (b'{"text":"' + b"a" * 100, "jsonl"),
        (b'[{"a":1}]\n[{"a"', "jsonl"),
    ],
)
def test_form_is_detected_from_head(head, form):
    assert detect_form(head, complete=False)[0] == form


@pytest.mark.parametrize(
    "head",
    [
        b'{"requests":[' + b'{"text":"a"},' * 10,
        b'{"requests":[\n{"text":"a"},\n',
        b'[{"text":"a"},',
    ],
)
def test_large_document_is_refused_with_fix(head):
    with pytest.raises(UploadRefused, match="jq -c"):
        detect_form(head, complete=False)


def test_second_requests_member_is_refused():
    text = b'{"requests":[{"text":"a"}],"n":{"requests":1},"requests":[{"text":"b"}]}'
    with pytest.raises(UploadRefused, match="two members"):
        detect_form(text, complete=True)


values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    value=values,
    indent=st.sampled_from([None, 1]),
    behind=st.sampled_from([b",", b"]", b" ", b"}"]),
)
def test_value_ends_where_json_reader_says(value, indent, behind):
    text = json.dumps(value, indent=indent).encode()
    assert end_of_value(b" " + text + behind + b'{"a":1}', 1) == 1 + len(text)


@given(head=st.binary(max_size=40), complete=st.booleans())
def test_any_bytes_have_form(head, complete):
    try:
        form, start = detect_form(head, complete=complete)
    except UploadRefused:
        return
    assert form in {"jsonl", "object", "array"}
    assert 0 <= start <= len(head)

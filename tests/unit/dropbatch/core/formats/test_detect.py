"""Which format a file has."""

import json
import re

import pytest

from dropbatch.core.formats.detect import Head, check_named, detect_format, first_model
from dropbatch.errors import UploadRefused

OPENAI = b'{"custom_id":"a","body":{"model":"gpt-4o"}}\n'
BEDROCK = b'{"recordId":"a","modelInput":{}}\n'
ANTHROPIC = b'{"custom_id":"a","params":{}}\n'
GEMINI = b'{"key":"a","request":{"contents":[]}}\n'
NATIVE = b'{"text":"a"}\n'
OPENAI_OUTPUT = b'{"id":"b","custom_id":"a","response":{"status_code":200,"body":{}},"error":null}'
BGE = "@cf/baai/bge-m3"


def detect(head, key="inbox/a.jsonl", *, complete=True, form="jsonl", elements=None):
    return detect_format(key, Head(head, complete, form, elements))


def refusal(head, **arguments):
    with pytest.raises(UploadRefused) as raised:
        detect(head, **arguments)
    return raised.value


FORMAT_OF = {
    **dict.fromkeys((NATIVE, b"", b"\n \n", b"5\n", b"null\n"), "native"),
    b'{"custom_id":"a","body":"b"}': "native",
    b'{"modelInput":"x"}': "native",
    b'{"custom_id":"a"}': "native",
    b'{"model":"a","messages":[]}': "native",
    b'{"model":"a","input":"b"}\n' + NATIVE: "native",
    b'{"request":{"prompt":"a"}}': "native",
    BEDROCK: "bedrock",
    ANTHROPIC: "anthropic",
    **dict.fromkeys((OPENAI, b"\xef\xbb\xbf" + OPENAI, b"\n\r\n" + OPENAI), "openai"),
    b'{"broken\n5\n[1]\n' + OPENAI + NATIVE: "openai",
    NATIVE + OPENAI: "openai",
    b'{"url":"/v1/embeddings","body":{}}': "openai",
    b'{"body":{}}\n' + OPENAI: "openai",
}


def test_first_record_that_names_format_decides():
    assert {head: detect(head) for head in FORMAT_OF} == FORMAT_OF


def test_document_is_native_array_as_its_elements():
    assert detect(b'{"requests":[' + OPENAI + b"]}", form="object") == "native"
    for record, expected in ((BEDROCK, "bedrock"), (OPENAI, "openai"), (NATIVE, "native")):
        assert detect(b"[" + record + b"]", form="array", elements=[NATIVE, record]) == expected
    assert detect(b"[]", form="array", elements=[]) == "native"


RESULT, JQ, NONE = "Line 2 is a batch's result.*retry file", "`jq -c . FILE`", "the option format"
REFUSED = [
    (GEMINI, "Batch files of Gemini"),
    (b'{"request":{"content":{"parts":[]}}}', "Batch files of Gemini"),
    (NATIVE + b"\n" + OPENAI + ANTHROPIC, "Line 3 is of the format openai.*line 4 is.* anthropic"),
    (OPENAI + OPENAI_OUTPUT, "Line 1 is of the format openai.*line 2 is a result"),
    (NATIVE + OPENAI_OUTPUT, RESULT),
    (NATIVE + b'{"recordId":"a","modelInput":{},"modelOutput":{}}', RESULT),
    (NATIVE + b'{"recordId":"a","modelInput":{},"error":{}}', RESULT),
    (NATIVE + b'{"custom_id":"a","result":{"type":"succeeded"}}', RESULT),
    (NATIVE + b'{"id":0,"external_reference":null,"success":true,"result":{}}', RESULT),
    (b'{"model":"text-embedding-3-small","input":"a"}\n' * 3, '"body"'),
    (b"It was a dark night.\n", NONE),
    (b"id,text\n1,x\n", NONE),
    (b"ustar\x00\x00\n\xff\xfe\n", NONE),
    (b"{broken", NONE),
    (NATIVE.strip() * 3, JQ),  # as Firehose writes
    (b"\xef\xbb\xbf" + OPENAI.strip() + b" " + OPENAI, JQ),
    (b'{\n "text": "one"\n}\n{\n "text": "two"\n}\n', JQ),
]


@pytest.mark.parametrize(("head", "says"), REFUSED)
def test_file_that_is_no_upload_is_refused_with_way_out(head, says):
    error = refusal(head)
    assert error.code == "unknown_format"
    assert re.search(says, error.message)


def test_hundred_lines_without_json_are_enough():
    assert refusal(b"prose\n" * 100 + OPENAI).code == "unknown_format"
    assert detect(b"prose\n" * 99 + OPENAI) == "openai"


def test_first_model_id_in_body_counts():
    models = [{"body": {"model": model}} for model in ("gpt-4o", BGE, "@cf/a/b")]
    lines = [models[0], {"body": 5}, 7, *models[1:]]
    head = b"broken\n" + b"\n".join(json.dumps(line).encode() for line in lines)
    assert first_model("openai", Head(head)) == BGE
    assert first_model("csv", Head(head)) == ""
    assert first_model("openai", Head(OPENAI)) == ""
    cut_off = Head(json.dumps({"body": {"model": BGE}}).encode(), complete=False)
    assert first_model("openai", cut_off) == ""
    named = json.dumps({"params": {"model": f"workers-ai/{BGE}"}}).encode()
    array = Head(b"\n".join([NATIVE, named]), elements=[NATIVE, named])
    assert first_model("anthropic", array) == BGE


@pytest.mark.parametrize("model", [BGE, f"workers-ai/{BGE}"])
def test_native_record_names_model_itself(model):
    texts = [{"text": text} for text in ("a", '"model"')]
    lines = [*texts, *({"model": one} for one in ("gpt-4o", 5, model))]
    head = b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    assert first_model("native", Head(head)) == BGE
    assert first_model("native", Head(b'{"body":{"model":"@cf/a/b"},"text":"a"}\n')) == ""


BROKEN = b"not JSON\n" * 100


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("openai", BROKEN),
        ("openai", ANTHROPIC * 2),
        ("openai", NATIVE * 100 + OPENAI),
        ("anthropic", OPENAI),
        ("bedrock", BROKEN),
        ("native", BROKEN),
    ],
)
def test_named_format_needs_a_record_in_100_lines(name, head):
    with pytest.raises(UploadRefused, match=f"format {name}, which was named") as raised:
        check_named(name, Head(head))
    assert raised.value.code == "unknown_format"

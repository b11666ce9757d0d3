"""Which format a file has."""

import json

import pytest

from shared.errors import UploadError
from shared.formats.detect import detect_format, extension_format, first_model

OPENAI = b'{"custom_id":"a","body":{"model":"gpt-4o"}}\n'
BEDROCK = b'{"recordId":"a","modelInput":{}}\n'
ANTHROPIC = b'{"custom_id":"a","params":{}}\n'
NATIVE = b'{"text":"a"}\n'
BGE = "@cf/baai/bge-m3"


def detect(head, key="inbox/a.jsonl", *, complete=True, form="jsonl"):
    return detect_format(key, head, complete=complete, form=form)


def refusal(head, **arguments):
    with pytest.raises(UploadError) as raised:
        detect(head, **arguments)
    return raised.value


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (OPENAI, "openai"),
        (BEDROCK, "bedrock"),
        (NATIVE, "native"),
        (b'{"custom_id":"a","body":"b"}', "native"),
        (b'{"modelInput":"x"}', "native"),
        (b'{"custom_id":"a"}', "native"),
        (b"", "native"),
        (b"\n \n", "native"),
        (b"\xef\xbb\xbf" + OPENAI, "openai"),
        (b"\n\r\n" + OPENAI, "openai"),
        (b'{"broken\n5\n[1]\n' + OPENAI + NATIVE, "openai"),
        (NATIVE + OPENAI, "native"),
        (b"5\n", "native"),
        (b"null\n", "native"),
    ],
)
def test_the_first_object_decides_the_format(head, expected):
    assert detect(head) == expected


def test_a_document_is_native():
    assert detect(b'{"requests":[' + OPENAI + b"]}", form="object") == "native"
    assert detect(b"[" + BEDROCK + b"]", form="array") == "native"


def test_anthropics_batches_are_refused_with_the_way_out():
    error = refusal(ANTHROPIC)
    assert error.code == "unknown_format"
    assert "'body' in place of 'params'" in error.message


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("inbox/a.csv", "csv"),
        ("inbox/a.CSV", "csv"),
        ("inbox/a.tsv.gz", "tsv"),
        ("inbox/a.txt.zst", "text"),
        ("inbox/a.txt.GZ", "text"),
        ("inbox/csv", ""),
        ("inbox/a.csv/b", ""),
        ("inbox/a.csv.bak", ""),
    ],
)
def test_an_extension_decides_the_format(key, expected):
    assert extension_format(key) == expected


@pytest.mark.parametrize("head", [b"id,text\n1,x\n", b"", b"\xef\xbb\xbfid,text\n", b'"{",b\n'])
def test_a_table_is_known_by_its_extension(head):
    assert detect(head, key="inbox/a.csv") == "csv"


@pytest.mark.parametrize("head", [NATIVE, b" \n\t" + NATIVE, b"\xef\xbb\xbf[1]\n"])
def test_json_is_json_whatever_its_extension(head):
    assert detect(head, key="inbox/a.csv") == "native"
    assert detect(OPENAI, key="inbox/a.txt") == "openai"


@pytest.mark.parametrize(
    "head", [b"It was a dark night.\n", b"id,text\n1,x\n", b"ustar\x00\x00\n\xff\xfe\n", b"{broken"]
)
def test_a_file_of_none_of_them_is_refused(head):
    error = refusal(head)
    assert error.code == "unknown_format"
    assert "x-amz-meta-format" in error.message


def test_a_hundred_lines_without_json_are_enough():
    assert refusal(b"prose\n" * 100 + OPENAI).code == "unknown_format"
    assert detect(b"prose\n" * 99 + OPENAI) == "openai"


def test_an_unfinished_line_is_not_judged():
    assert detect(b'{"text":"' + b"x" * 1000, complete=False) == "native"
    assert detect(OPENAI + b'{"cust', complete=False) == "openai"


def test_the_first_model_id_in_a_body_counts():
    lines = [{"body": {"model": "gpt-4o"}}, {"body": 5}, 7, {"body": {"model": BGE}}, {"body": {"model": "@cf/a/b"}}]
    head = b"broken\n" + b"\n".join(json.dumps(line).encode() for line in lines)
    assert first_model(head, complete=True) == BGE
    assert first_model(OPENAI, complete=True) == ""
    assert first_model(json.dumps({"body": {"model": BGE}}).encode(), complete=False) == ""

"""A file's beginning is checked before it is sent."""

import gzip
import io
import json
import re
import sys
import time

import pytest

from dropbatch.client.check import check_beginning
from dropbatch.client.validate import check_file, validate
from dropbatch.core.options import metadata_of
from dropbatch.core.read.cut import RANGE_BYTES
from dropbatch.core.read.unpack import zstd_module
from dropbatch.errors import NoRecordFits, UploadRefused, UsageError

BGE, LLAMA = "@cf/baai/bge-m3", "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
LINE = b'{"text":"hello"}\n'
SCOUT, LONG_URL = (
    "@cf/meta/llama-4-scout-17b-16e-instruct",
    {"url": f"data:image/png;base64,{'A' * 600_000}"},
)


def check(content, path="a.jsonl", *, model=BGE, folder=None, default=None, **options):
    given = metadata_of({"model": model, **options} if model else options)
    return check_beginning([content], path, given, folder_options=folder, default_model=default)


@pytest.mark.parametrize(
    ("content", "path", "code"),
    [
        (b"prose", "a.jsonl", "unknown_format"),
        (b"PAR1" + bytes(100), "a.parquet", "unknown_format"),
        (gzip.compress(LINE * 900, mtime=0)[:-20], "a.gz", "broken_archive"),
        (b'[{"text":"x"},{"text":"y"}', "a.json", "broken_document"),
        (b'text\none\n"two', "a.csv", "broken_document"),
        (b'{"prompt":"a"}\n', "a.jsonl", "bad_record"),
        (b'{"prompt":"a"}\n' * 1_000 + LINE, "a.jsonl", "bad_record"),
        (b"text\n" + b'""\n' * 20, "a.csv", "bad_record"),
    ],
)
def test_file_that_stack_refuses(content, path, code):
    with pytest.raises(UploadRefused) as refused:
        check(content, path)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("content", "given", "words"),
    [
        (b"id,a\n1,x\n", {"path": "a.csv"}, "template: none is given"),
        (b"id,a\n1,x\n", {"path": "a.csv", "template": "{b}"}, "no column 'b'"),
        (LINE, {"template": "Say: {text}"}, "template: The upload's format is native"),
        (LINE, {"folder": b'{"modl":"x"}'}, "Did you mean model"),
        (LINE, {"model": "@cf/some/model", "max_cost": "1"}, "price"),
        (LINE, {"model": "bge"}, "not a model id"),
        (LINE, {"model": "", "default": ""}, "No model was named"),
        (LINE, {"path": "x" * 901}, "900 bytes"),
    ],
)
def test_options_that_stack_refuses(content, given, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        check(content, **given)


@pytest.mark.parametrize(
    ("content", "given"),
    [
        (LINE, {}),
        (b"", {"model": "", "default": ""}),
        (LINE, {"model": ""}),  # perhaps the stack has a default model
        (LINE, {"model": "", "folder": json.dumps({"model": BGE}).encode(), "default": ""}),
        (LINE, {"model": "", "path": f"{BGE}/a.jsonl", "default": ""}),
        (LINE, {"model": "", "default": BGE}),
        (b'[{"text":"' + b"x" * 100 + b'"}' + b',{"text":"y"}' * 500_000 + b"]", {}),
    ],
)
def test_file_that_stack_takes(content, given):
    assert check(content, **given) == []


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (
            3,
            (
                "None of the 3 records can be sent to @cf/baai/bge-m3. Line 1: text: It is "
                "missing. The model takes text"
            ),
        ),
        (2_000, "None of the first 1,000 records can be sent"),
    ],
)
def test_file_that_fits_no_model_says_why(count, says):
    with pytest.raises(NoRecordFits, match=re.escape(says)):
        check(b'{"prompt":"a"}\n' * count)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            LINE + b"x\n",
            (
                "1 of the 2 records cannot be sent and will fail alone. Line 2: The "
                "record is not valid JSON"
            ),
        ),
        (b'{"prompt":"a"}\n' * 999 + LINE, "999 of the first 1,000 records cannot be sent"),
        (
            b'[{"text":"a"},{"text":""}]',
            "1 of the 2 records cannot be sent and will fail alone. The first: text: It must",
        ),
        (
            (LINE * 9 + b'{"text":""}\n') * 500,
            "100 of the first 1,000 records cannot be sent and will fail alone. Line 10",
        ),
        (
            b'{"text":""}\n' + b'{"text":"%b"}\n' % (b"x" * 9_000_000) * 2,
            "1 of the first 2 records",
        ),
    ],
)
def test_records_that_cannot_be_sent_are_counted(content, says):
    (note,) = check(content)
    assert note.startswith(says)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (
            "@cf/baai/bge-m33",
            "Dropbatch does not know the model @cf/baai/bge-m33. Did you mean @cf/baai/bge-m3?",
        ),
        ("@cf/Meta/M2M100-1.2B", "Did you mean @cf/meta/m2m100-1.2b?"),
        ("@hf/zzz/qqq", "Dropbatch does not know the model @hf/zzz/qqq."),
        (
            "@cf/baai/bge-reranker-base",
            "@cf/baai/bge-reranker-base is not listed as a model that takes batches",
        ),
    ],
)
def test_odd_model_is_warned_of(model, says):
    (note,) = check(b'{"text":"a","query":"a","contexts":[]}\n', model=model)
    assert says in note
    report = validate([{"text": "hello"}], None, {"model": model})
    assert [says in one for one in report["warnings"]] == [True]


@pytest.mark.parametrize(
    ("model", "request_", "tokens"),
    [
        ("@cf/baai/bge-small-en-v1.5", {"text": "x" * 16_800}, "4,200"),
        ("@cf/baai/bge-small-en-v1.5", {"text": ["a", "x" * 16_800]}, "4,200"),
        ("@cf/baai/bge-small-en-v1.5", {"text": ["x" * 1_000] * 50}, None),
        (LLAMA, {"messages": [{"role": "user", "content": "x" * 90_000}]}, None),
        (LLAMA, {"messages": [{"role": "user", "content": "x" * 100_000}]}, "25,010"),
        (
            SCOUT,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": LONG_URL}]}
                ]
            },
            None,
        ),
        ("@cf/deepgram/aura-1", {"text": "x" * 16_800}, None),
    ],
)
def test_text_longer_than_context_window_is_told(model, request_, tokens):
    records = [
        {"messages": [{"role": "user", "content": "a"}]}
        if "messages" in request_
        else {"text": "a"},
        request_,
    ]
    report = validate([*records, request_], "a.jsonl", {"model": model})
    assert report["bad"] == 0
    if tokens is None:
        assert report["warnings"] == []
    else:
        (warning,) = report["warnings"]
        assert (
            "2 records are longer by an estimate of 4 bytes a token, the first with "
            f"{tokens} tokens"
        ) in warning
        assert "(line 2)" in warning


def test_only_beginning_is_read_within_a_second():
    """Processor seconds for 16 MB of each kind, on a machine that may have other work."""
    record = (
        json.dumps(
            {"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "x" * 300}}
        ).encode()
        + b"\n"
    )
    kinds = {
        "a.jsonl": record * 30_000,
        "a.csv": b"id,text\n" + b'1,"hello, %b"\n' % (b"x" * 300) * 30_000,
    }
    for path, text in kinds.items():
        read = []
        blocks = (read.append(at) or text[:RANGE_BYTES] for at in range(100))
        begun = time.process_time()
        check_beginning(blocks, path, metadata_of({"model": BGE}))
        assert time.process_time() - begun < 1, path
        assert len(read) == 2


def test_zstd_without_its_package(monkeypatch):
    """The stack can read it: the upload is not refused, and a whole check says what to install."""
    packed = zstd_module().compress(LINE)
    monkeypatch.setitem(sys.modules, "backports", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    check(packed)
    with pytest.raises(UsageError, match=r"pip install backports\.zstd"):
        check_file(io.BytesIO(packed), "inbox/a.zst", {})


def test_file_that_cannot_be_read():
    class Broken(io.BytesIO):
        def read(self, *_):
            raise OSError(5, "Input/output error")

    with pytest.raises(UsageError, match=r"a\.jsonl cannot be read: Input/output error"):
        check_file(Broken(), "inbox/a.jsonl", {})

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

BGE = "@cf/baai/bge-m3"
LINE = b'{"text":"hello"}\n'
EMPTY = b'{"text":""}\n'
OPENAI = b'{"custom_id":"a","url":"/v1/embeddings","body":{"input":"%b"}}\n' % (b"x" * 300)


def check(content, path="a.jsonl", *, model=BGE, folder=None, default=None, **options):
    given = metadata_of({"model": model, **options} if model else options)
    known = {"folder_options": folder, "default_model": default}
    return check_beginning([content], path, given, **known).notes


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
        *(
            (b"id,review\n1,x\n", {"path": "a.csv", "template": one}, "it names no column; the col")
            for one in ("review", "{{review}}", "@prompt.txt", " ")
        ),
        (b"one\n", {"path": "a.txt", "template": "text"}, "it names no column; the columns are 't"),
        (b"id\n1\n", {"path": "a.csv"}, "template: none is given"),
        (b",Custom_ID\n,x\n", {"path": "a.csv"}, "template: none is given"),
        (LINE, {"template": "Say: text"}, "it names no column"),
        (OPENAI, {"template": "Say: {text}"}, "The upload's format is openai; only objects, csv"),
        (b"query,text\na,b\n", {"path": "a.csv"}, "may be texts to rank, or to embed"),
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
        (b'[{"text":"' + b"x" * 100 + b'"}' + b',{"text":"y"}' * 200_000 + b"]", {}),
    ],
)
def test_file_that_stack_takes(content, given):
    assert check(content, **given) == []


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (3, f"None of the 3 records can be sent to {BGE}. Line 1: text: It is missing. The model"),
        (2_000, "None of the first 1,000 records can be sent"),
    ],
)
def test_file_that_fits_no_model_says_why(count, says):
    with pytest.raises(NoRecordFits, match=re.escape(says)):
        check(b'{"prompt":"a"}\n' * count)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (LINE + b"x\n", "1 of the 2 records cannot be sent and will fail alone. Line 2: The rec"),
        (b'{"prompt":"a"}\n' * 999 + LINE, "999 of the first 1,000 records cannot be sent"),
        (b'[{"text":"a"},{"text":""}]', "1 of the 2 records cannot be sent and will fail alone. T"),
        ((LINE * 9 + EMPTY) * 500, "100 of the first 1,000 records cannot be sent and will fail"),
        (EMPTY + b'{"text":"%b"}\n' % (b"x" * 5_000_000) * 3, "1 of the first 2 records"),
    ],
)
def test_records_that_cannot_be_sent_are_counted(content, says):
    assert check(content)[-1].startswith(says)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("@cf/baai/bge-m33", "does not know @cf/baai/bge-m33. Did you mean @cf/baai/bge-m3?"),
        ("@cf/Meta/M2M100-1.2B", "Did you mean @cf/meta/m2m100-1.2b?"),
        ("@cf/meta/gpt-oss-20b", "Did you mean @cf/openai/gpt-oss-20b?"),
        ("@hf/zzz/qqq", "Dropbatch does not know @hf/zzz/qqq."),
        ("bge-m3", "'bge-m3' is not a model id. Did you mean @cf/baai/bge-m3?"),
        ("workers-ai/@cf/baai/bge-m3", "Did you mean @cf/baai/bge-m3?"),
        ("openai/gpt-oss-120b", "Did you mean @cf/openai/gpt-oss-120b?"),
        ("gpt-4.1", "'gpt-4.1' is not a model id. Write it as @cf/<author>/<model>."),
    ],
)
def test_model_that_nobody_knows_is_refused(model, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        check(LINE, model=model)
    error = validate([{"text": "hello"}], None, {"model": model})["error"]
    assert (error["code"], says in error["message"]) == ("bad_model", True)


def test_new_model_is_sent_with_its_task():
    assert check(LINE, model="@cf/baai/bge-m9", task="embeddings") == []
    report = validate([{"text": "a"}], None, {"model": "@cf/baai/bge-m9", "task": "embeddings"})
    assert (report["error"], report["records"]) == (None, 1)


def test_put_warns_of_what_validate_warns_of():
    records = [{"query": "a", "contexts": [{"text": "a"}]}]
    model = "@cf/baai/bge-reranker-base"
    (note,) = check(json.dumps(records[0]).encode() + b"\n", model=model)
    assert f"{model} is not listed as a model that takes batches" in note
    assert validate(records, None, {"model": model})["warnings"] == [note]
    long = [{"text": "a"}, {"text": "x" * 40_000}]
    model = "@cf/baai/bge-small-en-v1.5"
    (note,) = check("".join(json.dumps(one) + "\n" for one in long).encode(), model=model)
    assert note.startswith(f"{model} has a context window of 512 tokens. 1 records are longer")
    assert validate(long, "a.jsonl", {"model": model})["warnings"] == [note]


def test_only_beginning_is_read_within_a_second():
    """Processor seconds for 16 MB of each kind, on a machine that may have other work."""
    kinds = {
        "a.jsonl": OPENAI * 30_000,
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

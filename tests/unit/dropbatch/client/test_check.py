"""A file's beginning is checked before it is sent: what the stack would refuse is refused at once."""

import gzip
import io
import json
import re
import sys
import time

import pytest

from dropbatch.client.check import check_beginning, check_file, check_source
from dropbatch.core.options import metadata_of
from dropbatch.core.records.decompress import zstd_module
from dropbatch.core.records.reading import RANGE_BYTES
from dropbatch.errors import UploadRefused, UsageError

BGE, LLAMA = "@cf/baai/bge-m3", "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
LINE = b'{"text":"hello"}\n'


def check(content, path="a.jsonl", *, model=BGE, folder=None, default=None, **options):
    given = metadata_of({"model": model, **options} if model else options)
    check_beginning([content], path, given, folder_options=folder, default_model=default)


@pytest.mark.parametrize(
    ("content", "path", "code"),
    [
        (b"prose", "a.jsonl", "unknown_format"),
        (b"PAR1" + bytes(100), "a.parquet", "unknown_format"),
        (gzip.compress(LINE * 900, mtime=0)[:-20], "a.gz", "broken_archive"),
        (b'[{"text":"x"},{"text":"y"}', "a.json", "broken_document"),
        (b'text\none\n"two', "a.csv", "broken_document"),
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
        (LINE + b"x\n", {}),  # a bad record fails alone
        (LINE, {"model": ""}),  # perhaps the stack has a default model
        (LINE, {"model": "", "folder": json.dumps({"model": BGE}).encode(), "default": ""}),
        (LINE, {"model": "", "path": f"{BGE}/a.jsonl", "default": ""}),
        (LINE, {"model": "", "default": BGE}),
        (b'[{"text":"' + b"x" * 100 + b'"}' + b',{"text":"y"}' * 1_500_000, {}),  # only the beginning is known
    ],
)
def test_file_that_stack_takes(content, given):
    check(content, **given)


def test_only_beginning_is_read_within_a_second():
    """Processor seconds for 16 MB of each kind, on a machine that may have other work."""
    record = json.dumps({"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "x" * 300}}).encode() + b"\n"
    kinds = {
        "a.jsonl": record * 30_000,
        "a.json": b"[" + record.replace(b"\n", b",") * 30_000,
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
        check_file(io.BytesIO(packed), "a.zst", {})


def test_file_that_cannot_be_read():
    class Broken(io.BytesIO):
        def read(self, *_):
            raise OSError(5, "Input/output error")

    with pytest.raises(UsageError, match=r"a\.jsonl cannot be read: Input/output error"):
        check_file(Broken(), "a.jsonl", {})


@pytest.mark.parametrize("count", [3, 30_000])
def test_stream_that_cannot_be_read_twice(count):
    """Its content is kept in a temporary file."""
    report = check_source(({"text": f"hello {number}"} for number in range(count)), "a/", {"model": BGE})

    assert (report["records"], report["bad"], report["estimated"]) == (count, 0, True)
    assert report["path"].startswith("a/")

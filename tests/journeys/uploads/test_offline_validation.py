"""A file that is checked on the user's machine gets the report that the stack's validation writes."""

import gzip
import json
import re

import pytest

from dropbatch.client.check import check_file
from dropbatch.core.options import metadata_of
from dropbatch.core.read.unpack import zstd_module
from tests.support.journeys.world import BUCKET
from tests.support.shipped import ROOT

WILD = ROOT / "tests/files/foreign"
BGE, LLAMA = "@cf/baai/bge-m3", "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
LINES = b"".join(
    b'{"text":"hello %d","external_reference":"r%d"}\n' % (n, n % 900) for n in range(1_200)
)
MANY = json.dumps({"text": ["hello"] * 101}).encode()
CHAT = (
    b'{"custom_id":"a","url":"/v1/chat/completions","body":{"model":"%b","messages":[]}}\n'
    % LLAMA.encode()
)


def sample(content, name="a.jsonl", **options):
    return name, content, options


SAMPLES = {
    "lines": sample(LINES, model=BGE),
    "gzip": sample(gzip.compress(LINES), "a.jsonl.gz", model=BGE),
    "zstd": sample(zstd_module().compress(LINES + b"\n" * 300 + b"x\n"), "a.zst", model=BGE),
    "document": sample(
        b'{"requests":[' + LINES.strip().replace(b"\n", b",") + b"]}", "a.json", model=BGE
    ),
    "broken document": sample(b'[{"text":"x"},{"text":"y"}', "a.json", model=BGE),
    "cut archive": sample(gzip.compress(LINES)[:-20], "a.gz", model=BGE),
    "empty": sample(b""),
    "blank": sample(b"\n \r\n" * 50, model=BGE),
    "bad lines": sample(
        b'\xef\xbb\xbf{"a":1}\r\nx\n[1]\n\xff\n{"text":"' + b"x" * 10_500_000 + b'"}', model=BGE
    ),
    "no model": sample(LINES),
    "bad model": sample(LINES, model="bge"),
    "model in path": sample(LINES, f"{BGE}/a.jsonl"),
    "model in file": sample(CHAT * 3),
    "long path": sample(LINES, "x" * 890 + "/" + "y" * 40, model=BGE),
    "zip": sample(b"PK\x03\x04" + bytes(100), model=BGE),
    "prose": sample(b"prose", model=BGE),
    "named, unreadable": sample(b"prose\n" * 200 + CHAT, format="openai", model=LLAMA),
    "crowded": sample(b'{"text":"x"}\n' + MANY + b"\nx\n" + MANY, model=BGE),
    "template": sample(
        b"id,text\n1,a\n2,b\n", "a.csv", model=LLAMA, template="Say: {text}", system="Be brief."
    ),
    "template elsewhere": sample(CHAT, template="{"),
    "table": sample(
        b'id;text\n1;a\n2;"b\nc"\n3\n', "a.csv", model=LLAMA, tags='{"team":"x"}', max_cost="1"
    ),
    "header alone": sample(b"id,text\n", "a.csv", model=LLAMA),
    "two delimiters": sample(b"id,text|x\n1,a\n", "a.csv", model=LLAMA),
    "open quote": sample(b'text\none\n"two', "a.csv", model=LLAMA),
    "text": sample(b"one\n\ntwo\n", "a.txt", model=LLAMA, defaults='{"max_tokens":9}'),
    "defaults": sample(LINES, model=BGE, defaults='{"pooling":"cls"}'),
    "no price": sample(LINES, model="@cf/some/model", max_cost="1"),
    **{
        path.name: sample(path.read_bytes(), path.name, model=LLAMA)
        for path in sorted(WILD.iterdir())
    },
    **{
        path.name: sample(path.read_bytes(), path.name, model=BGE)
        for path in sorted((ROOT / "examples").iterdir())
    },
}


def comparable(report):
    """A report without what only one of both knows."""
    return re.sub(
        rb'^ "(job_id|path|version|created_at|estimated)":.*\n', b"", report, flags=re.MULTILINE
    )


@pytest.fixture
def offline(tmp_path):
    def check(path, content, options):
        file = tmp_path / "file"
        file.write_bytes(content)
        with file.open("rb") as opened:
            return check_file(opened, path, metadata_of(options))

    return check


def test_offline_report_is_the_stacks(world, offline):
    """Byte for byte, for every sample."""
    for number, (path, content, options) in enumerate(SAMPLES.values()):
        upload = path if path.startswith("@cf/") else f"{number}/{path}"
        metadata = metadata_of(options)
        world.s3.put_object(
            Bucket=BUCKET, Key=f"validate/{upload}", Body=content, Metadata=metadata
        )
    world.settle(minutes=240)

    reports = {}
    for key in world.objects("results/_validate/"):
        if key.endswith("/report.json"):
            report = world.read(key)
            reports[json.loads(report)["path"]] = report
    assert len(reports) == len(SAMPLES)
    codes = set()
    for number, (name, (path, content, options)) in enumerate(SAMPLES.items()):
        upload = path if path.startswith("@cf/") else f"{number}/{path}"
        ours = offline(upload, content, options)
        assert comparable(ours).decode() == comparable(reports[upload]).decode(), name
        assert (json.loads(ours)["estimated"], json.loads(reports[upload])["estimated"]) == (
            True,
            False,
        )
        codes.add((json.loads(ours)["error"] or {"code": ""})["code"])
    assert codes > {
        "",
        "no_model",
        "bad_model",
        "bad_options",
        "unknown_format",
        "broken_document",
        "broken_archive",
    }


def test_more_texts_than_model_takes_are_bad(offline):
    _, content, options = SAMPLES["crowded"]
    report = json.loads(offline("a.jsonl", content, options))

    assert (report["bad"], report["warnings"]) == (3, [])
    assert report["bad_first"][0]["message"] == "Line 2: text: Expected `array` of length <= 100."

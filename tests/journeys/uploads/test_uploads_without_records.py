"""Uploads that go on and on without a request come to an end, however well they are packed."""

import gzip
import json

import pytest

M2M = "@cf/meta/m2m100-1.2b"
BLANKS = b"\n" * (9 << 20)
ENDLESS = b'{"text": "a record"}\n{"text": "' + b"a" * (9 << 20)


@pytest.fixture(autouse=True)
def small_bound(monkeypatch):
    """The bound of gigabytes, in megabytes."""
    monkeypatch.setattr("dropbatch.records.reading.MAX_BYTES_WITHOUT_BATCH", 5 << 20)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (BLANKS, "unknown_format"),
        (ENDLESS, "unknown_format"),
        pytest.param(gzip.compress(BLANKS), "broken_archive", marks=pytest.mark.slow),
        (gzip.compress(ENDLESS), "broken_archive"),
    ],
    ids=["blank lines", "one line", "packed blank lines", "one packed line"],
)
def test_it_fails_as_whole_and_says_what_to_do(world, content, code):
    world.upload("a.jsonl", content, model=M2M)

    world.settle()

    error = world.manifest()["error"]
    assert error["code"] == code
    assert "one request per line" in error["message"]


@pytest.mark.slow
def test_each_record_read_before_has_its_line(start, monkeypatch):
    monkeypatch.setattr("dropbatch.records.reading.MAX_BYTES_WITHOUT_BATCH", 24 << 20)
    world = start(MAX_REQUESTS_PER_BATCH=2)
    good = [json.dumps({"text": f"hello {number}", "target_lang": "es"}) for number in range(5)]
    blank = (b" " * 1_023 + b"\n") * (60 << 10)
    world.upload("a.jsonl", gzip.compress("\n".join(good).encode() + b"\n" + blank), model=M2M)

    world.settle()

    assert world.manifest()["state"] == "failed"
    assert [line["id"] for line in world.lines()] == list(range(5))

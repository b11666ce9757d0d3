"""Uploads that go on and on without a request come to an end, however well they are packed."""

import gzip

import pytest

from tests.support.translations import M2M

BLANKS = b"\n" * (9 << 20)
ENDLESS = b'{"text": "a record"}\n{"text": "' + b"a" * (9 << 20)


@pytest.fixture(autouse=True)
def small_bound(monkeypatch):
    """The bound of gigabytes, in megabytes."""
    monkeypatch.setattr("dropbatch.core.read.cut.MAX_BYTES_WITHOUT_BATCH", 5 << 20)


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

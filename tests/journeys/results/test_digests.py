"""Result files have their digest in the manifest although no running one can be kept.

No job fails for want of it.
"""

import hashlib

import pytest

from functions.poll import end
from functions.poll import files as segments

M2M = "@cf/meta/m2m100-1.2b"
RECORDS = [{"text": f"hello {number}", "target_lang": "es"} for number in range(8)]


@pytest.fixture
def small_steps(monkeypatch):
    """Each batch is a step of its own."""
    monkeypatch.setattr(segments, "MIN_STEP_BATCHES", 1)
    monkeypatch.setattr(segments, "MAX_STEP_BATCHES", 1)


def run(start):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.upload_records("a.jsonl", [*RECORDS, {}], model=M2M)
    world.settle()
    return world


def assert_digests(world):
    files = world.manifest()["files"]
    assert {file["name"] for file in files} >= {"output.jsonl", "errors.jsonl"}
    for file in files:
        content = world.read(f"{world.only_folder()}/{file['name']}")
        assert (file["sha256"], file["bytes"]) == (
            hashlib.sha256(content).hexdigest(),
            len(content),
        )


def test_without_library_files_are_read_once_more(start, small_steps, monkeypatch):
    monkeypatch.setattr(segments, "is_possible", lambda: False)

    assert_digests(run(start))


@pytest.mark.slow
def test_file_too_large_to_reread_has_no_digest(start, small_steps, monkeypatch):
    monkeypatch.setattr(segments, "is_possible", lambda: False)
    monkeypatch.setattr(end, "MAX_DIGEST_READ_BYTES", 300)

    world = run(start)

    manifest = world.manifest()
    assert manifest["state"] == "completed"
    assert {file["name"]: file["sha256"] is None for file in manifest["files"]}["output.jsonl"]

"""Archives that take longer to unpack than a function may run."""

import gzip
import json

import pytest

from dropbatch.core.read import form
from functions.submit import read as reading
from local.workers_ai import expected_result
from shared.aws.object_store import ObjectStore

M2M = "@cf/meta/m2m100-1.2b"
RECORDS = [{"text": f"hello {number}", "target_lang": "es"} for number in range(12)]
ARCHIVE = gzip.compress(
    b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS), compresslevel=0
)
PIECES = 12


@pytest.fixture
def slow(start, monkeypatch):
    """Makes reading the whole archive take so many seconds, and staging a batch some more."""
    read, put = ObjectStore.read_version, ObjectStore.put_if_absent

    def make(reading_it, staging=0.0):
        world = start(MAX_REQUESTS_PER_BATCH=1)
        monkeypatch.setattr(form, "HEAD_BYTES", 200)
        monkeypatch.setattr(reading, "RANGE_BYTES", -(-len(ARCHIVE) // PIECES))

        def slow_read(*arguments):
            world.pass_time(reading_it / PIECES)
            return read(*arguments)

        def slow_put(store, key, *arguments, **named):
            world.pass_time(staging if key.endswith("/request") else 0)
            return put(store, key, *arguments, **named)

        monkeypatch.setattr(ObjectStore, "read_version", slow_read)
        monkeypatch.setattr(ObjectStore, "put_if_absent", slow_put)
        return world

    return make


def test_endless_archive_fails_with_what_was_read(slow):
    world = slow(300)
    world.upload("a.jsonl", ARCHIVE, model=M2M)

    world.settle(minutes=240)

    manifest = world.manifest()
    done = manifest["counts"]["succeeded"]
    assert manifest["state"] == "failed"
    assert manifest["error"]["code"] == "broken_archive"
    assert f"Records from {done:,} on were not read" in manifest["error"]["message"]
    assert 0 < done < len(RECORDS)
    assert [line["result"] for line in world.lines()] == [
        expected_result(M2M, record) for record in RECORDS[:done]
    ]

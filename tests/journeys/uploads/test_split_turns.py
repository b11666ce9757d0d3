"""A run of split holds its job by a lease that is short while it gets on."""

import json

import pytest

from functions.submit.stage import LEASE_RENEWAL_SECONDS
from shared.aws.object_store import ObjectStore
from shared.errors import StorageError

M2M = "@cf/meta/m2m100-1.2b"
RECORDS = [{"text": f"hello {number}", "target_lang": "es"} for number in range(8)]
BODY = b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS)


@pytest.fixture
def slow(start, monkeypatch):
    """Makes staging a batch take six seconds, and something happen at one of them."""
    put = ObjectStore.put_if_absent

    def make(at, happens):
        world = start(MAX_REQUESTS_PER_BATCH=1)
        staged = []

        def slow_put(store, key, *arguments, **named):
            if key.endswith("/request"):
                staged.append(key)
                world.pass_time(6)
                if len(staged) == at:
                    happens(world, key.split("/")[1])
            return put(store, key, *arguments, **named)

        monkeypatch.setattr(ObjectStore, "put_if_absent", slow_put)
        return world

    return make


def break_off(_world, _job_id):
    raise StorageError("S3 broke off")


def test_dead_run_is_continued_within_a_minute(slow):
    world = slow(5, break_off)
    world.upload("a.jsonl", BODY, model=M2M)

    world.deliver("UploadQueue")

    assert world.item()["state"]["S"] == "splitting"
    assert float(world.item()["due_at"]["N"]) - world.now() <= LEASE_RENEWAL_SECONDS
    world.settle(minutes=10)
    assert [line["id"] for line in world.lines()] == list(range(len(RECORDS)))
    assert [batch["attempts"] for batch in world.manifest()["batches"]] == [1] * len(RECORDS)

"""A run of split holds its job by a lease that is short while it gets on: what dies is gone on with soon."""

import json

import pytest

from dropbatch.records import cut
from functions.submit import stream, turn
from functions.submit.split import LEASE_RENEWAL_SECONDS
from shared.aws.object_store import ObjectStore
from shared.errors import StorageError
from tests.support.aws.resources import BUCKET

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


def test_failed_turn_counts_once(start, monkeypatch):
    """Its lease counts it. S3's notification, delivered again, takes none: the item is due at its time."""
    turns = []

    def fails(*_):
        turns.append(world.ticks)
        raise StorageError("S3 broke off")

    world = start()
    monkeypatch.setattr(turn, "read_batches", fails)
    world.upload("a.jsonl", BODY, model=M2M)
    world.deliver("UploadQueue", times=3)
    assert len(turns) == 1

    for _ in range(4):
        world.pass_time(61)
        world.tick(41)
        world.deliver("SplitQueue", most=1)

    assert len(turns) == 5
    assert world.item()["claims"]["N"] == "5"


def test_batches_grow_over_several_turns_as_in_one(start, monkeypatch):
    monkeypatch.setattr("dropbatch.rules.plan.FIRST_BATCH_RECORDS", 1)
    world = start(MAX_REQUESTS_PER_BATCH=10)
    monkeypatch.setattr(turn, "TURN_SECONDS", -1.0)
    world.upload("a.jsonl", BODY, model=M2M)

    world.settle(minutes=60)

    assert [batch["requests"] for batch in world.manifest()["batches"]] == [1, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("folder", ["inbox", "validate"])
def test_turns_continue_among_blank_lines(start, monkeypatch, folder):
    monkeypatch.setattr(cut, "MAX_BLANK_BYTES", 100)
    monkeypatch.setattr(stream, "RANGE_BYTES", 64)
    monkeypatch.setattr(turn, "TURN_SECONDS", -1.0)  # each turn reads one batch or one stretch of blank lines
    world = start(MAX_REQUESTS_PER_BATCH=2)
    first, rest = BODY[: BODY.index(b"\n") + 1], BODY[BODY.index(b"\n") + 1 :]
    content = first + b"\n" * 1_000 + rest
    world.s3.put_object(Bucket=BUCKET, Key=f"{folder}/a.jsonl", Body=content, Metadata={"model": M2M})
    starts = []
    read = ObjectStore.read_version
    monkeypatch.setattr(ObjectStore, "read_version", lambda *given: starts.append(given[4]) or read(*given))

    world.settle(minutes=60)

    assert len(starts) < 3 * len(content) / 64
    if folder == "inbox":
        assert [line["id"] for line in world.lines()] == list(range(len(RECORDS)))
        assert [batch["requests"] for batch in world.manifest()["batches"]] == [1, 2, 2, 2, 1]
    else:
        (report,) = [key for key in world.objects() if key.endswith("report.json")]
        assert json.loads(world.s3.get_object(Bucket=BUCKET, Key=report)["Body"].read())["records"] == len(RECORDS)

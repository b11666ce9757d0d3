"""Jobs that end early: with an error, stopped, past their deadline, beyond their cost.

None waits for turns.
"""

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, codes, greetings

BGE = "@cf/baai/bge-small-en-v1.5"
MANY = 40
"""Batches of a job, of one record each. At two calls a minute, their turns take as many minutes."""


@pytest.fixture
def slow(start):
    """A Dropbatch that may submit one batch a minute, of one record."""
    return start(API_CALLS_PER_MINUTE=2, MAX_REQUESTS_PER_BATCH=1)


def upload(world, count=MANY, **metadata):
    records = [{"text": f"text {number}"} for number in range(count)]
    world.upload_records("a.jsonl", records, **{"model": BGE, **metadata})


def minutes_to_the_end(world, at_most=60):
    began = world.now()
    world.settle(minutes=at_most)
    return (world.now() - began) / 60


@pytest.mark.parametrize(
    ("count", "refused_at", "over_by", "code", "status"),
    [(4, 2, 63, 10000, 401), (1, 55, 78, 0, 429)],
    ids=["refused token", "rate limit"],
)
def test_deadline_waits_a_quarter_of_an_hour_for_refused_polls(
    start, api, count, refused_at, over_by, code, status
):
    """A refused token, or a rate limit that stays, kept such a job open for days."""
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind="stuck", seconds=86_400, times=0))
    upload(world, count, **{"deadline-hours": "1"})
    began = world.now()
    world.settle(minutes=refused_at + 5, until=lambda: world.now() > began + 60 * refused_at)
    api.inject(Fault(kind="error", code=code, status=status, times=0))

    world.settle(minutes=78)

    assert max(60, refused_at + 15) <= (world.now() - began) / 60 <= over_by
    assert codes(world) == ["expired"] * count
    assert len(api.accepted) == count


def test_job_whose_model_is_unknown_is_over_at_once(slow, api):
    upload(slow, model="@cf/none/none")
    slow.deliver_all()

    assert slow.manifest()["error"]["code"] == "unknown_model"
    assert codes(slow) == ["rejected"] * MANY
    assert slow.status()["error"]["code"] == "unknown_model"


def test_job_with_too_many_failures_is_over(start, api):
    world = start(API_CALLS_PER_MINUTE=6, MAX_REQUESTS_PER_BATCH=50)
    api.inject(Fault(kind="item_fails", times=0, code=5000, share=1.0))
    world.upload_records("a.jsonl", greetings(50 * 60), model=M2M, **{"max-failed-fraction": "0.1"})

    assert minutes_to_the_end(world, 20) < 12
    assert (world.manifest()["state"], world.manifest()["error"]["code"]) == (
        "failed",
        "too_many_failures",
    )
    assert world.manifest()["counts"]["total"] == 3_000


def test_batches_end_without_byte_of_their_bodies(start):
    """So 20,000 end in the same time, however large they are."""
    world = start(MAX_REQUESTS_PER_BATCH=1)
    upload(world, 60, **{"max-cost": "0.00000000001"})
    world.deliver("UploadQueue")
    bodies = {
        key: len(world.read(key)) for key in world.objects("staging/") if key.endswith("/request")
    }
    read, put, at_first_join = [], [], []

    def before(operation, arguments):
        if operation == "GetObject" and arguments["Key"] in bodies:
            start = int(arguments.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
            read.append(bodies[arguments["Key"]] - start)
        elif operation == "PutObject":
            put.append(arguments["Key"])
            if "output" in arguments["Key"] and not at_first_join:
                at_first_join.append((len(read), sum(read)))

    world.permissions.before = before
    world.settle(minutes=3)
    world.permissions.before = None

    assert codes(world) == ["cost_limit"] * 60
    ((reads, size),) = at_first_join
    assert reads == 60  # Once, for its output line.
    assert size < sum(bodies.values())
    assert [key for key in put if "part-" in key] == []
    assert [line["text"] for line in world.lines("retry.jsonl")] == [
        f"text {number}" for number in range(60)
    ]


@pytest.mark.parametrize(
    ("path", "body", "metadata", "code"),
    [
        ("a.jsonl", '{"text":"a"}\n', {}, "no_model"),
        ("a.jsonl", '{"text":"a"}\n', {"model": "gpt-4"}, "bad_model"),
        ("a.jsonl", '{"text":"a"}\n', {"model": BGE, "max-cost": "much"}, "bad_options"),
        ("a.csv", "a,b\n1,2\n", {"model": BGE}, "bad_options"),
        ("a.zip", b"PK\x03\x04" + bytes(100), {"model": BGE}, "unknown_format"),
        ("a.gz", b"\x1f\x8b\x08" + b"\xff" * 100, {"model": BGE}, "broken_archive"),
        ("a.jsonl", "", {}, None),
        ("a.jsonl", "{broken\n", {"model": BGE}, "unknown_format"),
    ],
)
def test_upload_without_submits_is_over_without_tick(start, path, body, metadata, code):
    world = start(DEFAULT_MODEL="")
    began = world.now()
    world.upload(path, body, **metadata)
    world.deliver_all()

    manifest = world.manifest()
    assert (manifest["error"] and manifest["error"]["code"]) == code
    assert manifest["state"] == ("failed" if code else "completed")
    assert code is None or manifest["error"]["message"].endswith(".")
    assert world.now() - began < 5
    assert world.ticks == 0

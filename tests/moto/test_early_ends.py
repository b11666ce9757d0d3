"""Jobs that end early: with an error, stopped, past their deadline, beyond their cost. None waits for turns."""

import json

import pytest

from functions.poll.advance_job import STATUS_SECONDS
from local.workers_ai import Fault
from shared.models import JobState
from shared.pacing.completion_times import CompletionTimes
from tests.support.translations import M2M, codes, greetings
from tests.support.world import BUCKET

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


def item(world):
    """The only job's item."""
    (job,) = [one for one in world.items() if one["sk"]["S"] == "META"]
    return job


# ── without a turn ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_job_past_its_deadline_ends_what_was_not_accepted_and_polls_the_rest_once_more(slow, api):
    api.inject(Fault(kind="stuck", seconds=86_400, times=0))
    upload(slow, **{"deadline-hours": "0.1"})

    assert minutes_to_the_end(slow) <= 6 + 5
    assert codes(slow) == ["expired"] * MANY
    assert 0 < len(api.accepted) < 10
    assert (slow.manifest()["state"], slow.manifest()["error"]) == ("completed", None)
    assert len(slow.lines("retry.jsonl")) == MANY


def test_answers_that_are_there_at_the_deadline_are_collected(slow, api):
    upload(slow, **{"deadline-hours": "0.1"})

    assert minutes_to_the_end(slow) <= 6 + 5
    assert slow.manifest()["counts"]["succeeded"] == len(api.accepted) > 0


def test_a_batch_is_polled_first_no_later_than_at_its_jobs_deadline(start, api, monkeypatch):
    monkeypatch.setattr(CompletionTimes, "first_poll", lambda *_given: 900.0)
    api.inject(Fault(kind="stuck", seconds=86_400, times=0))
    world = start(MAX_REQUESTS_PER_BATCH=1)
    upload(world, 30, **{"deadline-hours": "0.02"})
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")

    dues = [float(one["due_at"]["N"]) for one in world.items() if one.get("state", {}).get("S") == "queued"]
    assert len(dues) == 30
    assert max(dues) <= float(item(world)["deadline_at"]["N"]) + 10  # The seconds that a message may be late.


def test_a_job_whose_model_is_unknown_is_over_at_once(slow, api):
    upload(slow, model="@cf/none/none")
    slow.deliver_all()

    assert slow.manifest()["error"]["code"] == "unknown_model"
    assert codes(slow) == ["rejected"] * MANY
    assert slow.status()["error"]["code"] == "unknown_model"


def test_a_job_with_too_many_failures_is_over_as_soon_as_its_answers_tell(start, api):
    world = start(API_CALLS_PER_MINUTE=6, MAX_REQUESTS_PER_BATCH=50)
    api.inject(Fault(kind="item_fails", times=0, code=5000, share=1.0))
    world.upload_records("a.jsonl", greetings(50 * 60), model=M2M, **{"max-failed-fraction": "0.1"})

    assert minutes_to_the_end(world, 20) < 12
    assert (world.manifest()["state"], world.manifest()["error"]["code"]) == ("failed", "too_many_failures")
    assert world.manifest()["counts"]["total"] == 3_000


def test_batches_beyond_the_cost_limit_end_by_the_sweep(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    upload(world, 60, **{"max-cost": "0.00000000001"})
    world.deliver("UploadQueue")
    assert item(world)["has_endings"] == {"BOOL": True}
    world.deliver_all()
    world.tick()
    world.deliver_all()

    assert codes(world) == ["cost_limit"] * 60
    assert api.accepted == []


def test_batches_without_a_request_end_by_the_sweep(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.upload("a.jsonl", '{"text":"a"}\n' + "{broken\n" * 60, model=BGE)
    world.deliver("UploadQueue")
    assert item(world)["has_endings"] == {"BOOL": True}
    world.settle(minutes=3)

    assert codes(world) == [None, *["invalid_json"] * 60]
    assert len(api.accepted) == 1


def test_a_batch_that_is_being_submitted_at_the_deadline_ends_after_its_fence(slow, api):
    api.inject(Fault(kind="reset", on="submit", times=1))
    upload(slow, 3, **{"deadline-hours": "0.02"})

    assert minutes_to_the_end(slow) < 12
    assert set(codes(slow)) <= {"expired", None}


def test_a_record_that_failed_for_capacity_is_not_tried_again_by_a_job_that_has_ended(world, api):
    api.inject(Fault(kind="item_fails", times=0, share=1.0), Fault(kind="stuck", seconds=50, times=0))
    upload(world, 1, **{"deadline-hours": "0.02"})
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    world.pass_time(73)
    world.deliver_all()

    assert codes(world) == ["inference_failed"]
    assert len(api.accepted) == 1


# ── split ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_error_ends_split_at_its_next_batch(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", greetings(40), model="@cf/none/none")

    def before(operation, arguments):
        created = arguments.get("Item", {})
        if operation == "PutItem" and created.get("sk", {}).get("S", "").startswith("BATCH#"):
            world.pass_time(6)  # The lease is renewed every five seconds, and messages wait for one.
            world.deliver("SubmitQueue")

    world.permissions.before = before
    world.deliver("UploadQueue")
    world.permissions.before = None
    world.settle(minutes=5)

    assert len(world.lines()) < 10
    manifest = world.manifest()
    assert (manifest["state"], manifest["error"]["code"], manifest["read_to_end"]) == ("failed", "unknown_model", False)


def test_a_visit_while_the_upload_is_read_touches_neither_lease_nor_claims(start, monkeypatch):
    monkeypatch.setattr("functions.submit.split.TURN_SECONDS", -1.0)
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.upload_records("a.jsonl", greetings(5), model=M2M)
    world.deliver("UploadQueue", most=2)  # S3's test event, and one turn of one batch.
    world.deliver("SubmitQueue")
    world.pass_time(STATUS_SECONDS)
    seen = item(world)
    assert seen["state"]["S"] == JobState.SPLITTING
    world.deliver("PollQueue")

    found = item(world)
    assert {name for name in found if found[name] != seen.get(name)} <= {
        *("told_at", "told_succeeded", "told_failed", "status_sha", "seen_accepted")
    }
    assert world.status()["counts"]["succeeded"] == 1
    assert float(found["told_at"]["N"]) == pytest.approx(world.now(), abs=60)


# ── at once ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
def test_an_upload_of_which_nothing_is_submitted_is_over_without_a_tick(start, path, body, metadata, code):
    world = start(DEFAULT_MODEL="")
    began = world.now()
    world.upload(path, body, **metadata)
    world.deliver_all()

    error = world.manifest()["error"]
    assert (error and error["code"]) == code
    assert world.now() - began < 5
    assert world.ticks == 0


def test_the_status_always_has_an_error_or_null(start, api):
    world = start()
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.deliver("UploadQueue")
    assert world.status()["error"] is None
    world.settle(minutes=5)
    assert world.status()["error"] is None

    keys = [key for key in world.objects() if key.endswith("status.json")]
    assert all("error" in json.loads(world.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()) for key in keys)


def test_the_status_tells_the_error_while_accepted_batches_are_awaited(start, api):
    api.inject(Fault(kind="stuck", seconds=3_000, times=1))
    world = start(MAX_REQUESTS_PER_BATCH=1)
    upload(world, 30)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue", most=1)
    api.inject(Fault(kind="5007", on="submit", times=0))
    world.deliver("SubmitQueue", most=1)
    told = world.now()
    world.deliver("PollQueue")

    assert world.status()["state"] == "in_progress"
    assert world.status()["error"]["code"] == "unknown_model"
    assert world.now() - told < 15

"""Pause, resume and cancel: what users write under `control/`, and what becomes of their jobs."""

from __future__ import annotations

import pytest

import functions.poll.handler
import functions.poll.schedule.sweep
from local.workers_ai import Fault
from shared.ledger.batches import HELD_BATCH_SECONDS
from tests.support.journeys.controlled_jobs import batches, begun, command, minutes, states
from tests.support.journeys.world import BUCKET
from tests.support.translations import M2M, codes, greetings

DAY = 86_400


@pytest.fixture
def small(start):
    """A Dropbatch whose batches have two records."""
    return start(MAX_REQUESTS_PER_BATCH=2)


# ── one job ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_paused_job_resumes_where_it_was(small, api):
    job_id = begun(small)
    command(small, job_id, "pause\n")
    minutes(small, 3)

    assert api.accepted == []
    assert small.status()["state"] == "in_progress"
    assert small.status()["waiting_for"]["code"] == "paused"
    assert all(float(item["due_at"]["N"]) > small.now() + HELD_BATCH_SECONDS - 600 for item in batches(small))

    command(small, job_id, "run")
    small.settle(minutes=20)

    assert codes(small) == [None] * 6
    assert (small.manifest()["state"], small.manifest()["read_to_end"]) == ("completed", True)
    assert len(api.accepted) == 3


def test_what_was_accepted_before_pause_is_collected(small, api):
    job_id = begun(small)
    small.deliver("SubmitQueue", most=1)
    command(small, job_id, "pause")
    minutes(small, 4)

    assert states(small) == {"done": 1, "ready": 2}
    assert len(api.accepted) == 1


def test_pause_stops_clock_of_batch_that_waits(small):
    job_id = begun(small)
    command(small, job_id, "pause")
    for _ in range(10):
        small.pass_time(DAY)
        small.deliver_all()
        small.tick()
        small.deliver_all()
    command(small, job_id, "run")
    small.settle(minutes=60)

    assert codes(small) == [None] * 6


def test_resumed_batches_follow_submit_rate(start, monkeypatch):
    monkeypatch.setattr(functions.poll.schedule.sweep, "PAGE_BATCHES", 2)
    world = start(MAX_REQUESTS_PER_BATCH=1, API_CALLS_PER_MINUTE=60)
    job_id = begun(world)
    command(world, job_id, "pause")
    assert all("held" in item and item["held"]["BOOL"] for item in batches(world))

    command(world, job_id, "run")
    given = sorted(float(item["due_at"]["N"]) - world.now() for item in batches(world) if "held" not in item)

    assert [round(one) for one in given] == [0, 2]  # A page; the next follows when these have had their turns.
    world.pass_time(4)
    world.tick(41)
    world.deliver("VisitQueue")
    assert sum("held" not in item for item in batches(world)) > 2
    world.settle(minutes=30)
    assert codes(world) == [None] * 6


def test_second_pass_finds_late_batch(small):
    """A batch that a slow function postponed after the pause is found by the second pass."""
    job_id = begun(small)
    command(small, job_id, "pause")
    command(small, job_id, "run")
    ledger = functions.poll.handler.services().ledger
    late = ledger.hold(ledger.batch(job_id, "00000001"), small.now())

    assert late.due_at > small.now() + HELD_BATCH_SECONDS - 10
    small.settle(minutes=20)
    assert codes(small) == [None] * 6


def test_cancelled_job_ends_with_answers_it_has(small, api):
    job_id = begun(small)
    small.deliver("SubmitQueue", most=1)
    command(small, job_id, "cancel")

    assert states(small) == {"queued": 1, "done": 2}
    small.settle(minutes=20)
    assert codes(small) == [None, None, *["cancelled"] * 4]
    manifest = small.manifest()
    assert (manifest["state"], manifest["error"], manifest["read_to_end"]) == ("cancelled", None, True)
    assert manifest["counts"] == {"total": 6, "succeeded": 2, "failed": 4}
    assert small.status()["state"] == "cancelled"
    assert [event["detail"]["state"] for event in small.notices()] == ["cancelled"]
    assert len(small.lines("retry.jsonl")) == 4
    assert len(api.accepted) == 1


def test_cancel_now_waits_for_nothing(small, api):
    job_id = begun(small)
    small.deliver("SubmitQueue", most=1)
    command(small, job_id, "cancel now")

    assert codes(small) == ["cancelled"] * 6
    assert "may be billed" in small.lines()[0]["error"]["message"]
    assert "may be billed" not in small.lines()[5]["error"]["message"]
    assert len(api.accepted) == 1


def test_cancel_now_keeps_answer_that_is_in_s3(small, api):
    api.inject(Fault(kind="sync_answer", times=1))
    job_id = begun(small, 4)
    small.deliver("SubmitQueue", most=1)
    command(small, job_id, "cancel now")

    assert codes(small) == [None, None, "cancelled", "cancelled"]


def test_cancelled_job_resubmits_nothing(start, api):
    world = start(BATCH_DEADLINE_HOURS=0.1)
    api.inject(Fault(kind="stuck", seconds=10 * DAY, times=0))
    job_id = begun(world, 2)
    world.deliver("SubmitQueue", most=1)
    command(world, job_id, "cancel")
    world.settle(minutes=30)

    assert codes(world) == ["expired", "expired"]
    assert (world.manifest()["state"], len(api.accepted)) == ("cancelled", 1)


def test_batch_being_submitted_is_settled_first(small, api):
    job_id = begun(small, 4)
    ledger = functions.poll.handler.services().ledger
    ledger.begin_submit(ledger.batch(job_id, "00000000"), small.now() + 200)
    command(small, job_id, "cancel now")

    assert states(small) == {"submitting": 1, "done": 1}
    small.settle(minutes=30)
    assert codes(small) == ["cancelled"] * 4


def test_split_stops_and_unread_records_have_no_lines(start, monkeypatch):
    monkeypatch.setattr("functions.submit.turn.TURN_SECONDS", -1.0)
    world = start(MAX_REQUESTS_PER_BATCH=2)
    job_id = begun(world, 10)  # One batch a turn.
    command(world, job_id, "cancel")
    world.settle(minutes=20)

    assert codes(world) == ["cancelled"] * 2
    assert (world.manifest()["state"], world.manifest()["read_to_end"]) == ("cancelled", False)
    assert world.manifest()["counts"] == {"total": 2, "succeeded": 0, "failed": 2}


def test_split_stops_at_its_next_batch(start):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", greetings(40), model=M2M)

    def before(operation, arguments):
        item = arguments.get("Item", {})
        if operation == "PutItem" and item.get("sk") == {"S": "BATCH#00000001"}:
            world.control(item["job_id"]["S"], "cancel")
            world.deliver("ControlQueue")
            world.pass_time(6)  # The lease is renewed every five seconds.

    world.permissions.before = before
    world.deliver("UploadQueue")
    world.permissions.before = None
    world.settle(minutes=20)

    assert len(world.lines()) < 10
    assert (world.manifest()["state"], world.manifest()["read_to_end"]) == ("cancelled", False)


# ── events that repeat, are late or never come ───────────────────────────────────────────────────────────────────────


def test_visit_applies_command_without_event(small, api):
    job_id = begun(small)
    small.control(job_id, "cancel")
    small.sqs.purge_queue(QueueUrl=small.queues["ControlQueue"])
    small.tick()
    small.deliver("PollQueue")

    assert codes(small) == ["cancelled"] * 6
    assert api.accepted == []


def test_late_events_keep_last_command(small, api):
    job_id = begun(small)
    for word in ("pause", "run", "pause", "run", "pause"):
        small.control(job_id, word)
    small.deliver("ControlQueue", times=2)
    minutes(small, 2)
    assert api.accepted == []

    small.s3.delete_object(Bucket=BUCKET, Key=f"control/jobs/{job_id}")
    minutes(small, 2)
    assert api.accepted == []


@pytest.mark.parametrize(
    "key", ["control/jobs/", "control/jobs/../a", "control/other", "control/jobs/20261121T093000Z-5f3a9c1e"]
)
def test_object_that_names_no_job_is_left_alone(small, key):
    small.s3.put_object(Bucket=BUCKET, Key=key, Body=b"cancel")
    small.deliver("ControlQueue")

    assert small.refused == []


# ── nobody else is held up ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_large_paused_job_hides_nobody(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    paused = begun(world, 120, "large.jsonl")
    world.sqs.purge_queue(QueueUrl=world.queues["SubmitQueue"])
    world.pass_time(600)  # All of them are due now.
    command(world, paused, "pause")
    begun(world, 1, "small.jsonl", "other")
    world.sqs.purge_queue(QueueUrl=world.queues["SubmitQueue"])
    world.pass_time(61)
    world.tick(41)
    world.deliver("SubmitQueue")

    assert len(api.accepted) == 1
    assert all(item["held"]["BOOL"] for item in batches(world, paused))


@pytest.mark.slow
def test_large_job_is_cancelled_without_calls(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1, API_CALLS_PER_MINUTE=1)
    job_id = begun(world, 150)
    world.sqs.purge_queue(QueueUrl=world.queues["SubmitQueue"])
    began = world.now()
    command(world, job_id, "cancel")
    world.settle(minutes=5)

    assert codes(world) == ["cancelled"] * 150
    assert world.now() - began < 120
    assert api.accepted == []


# ── the stack ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_paused_stack_submits_nothing_and_polls_on(small, api):
    begun(small)
    small.deliver("SubmitQueue", most=1)
    command(small, "stack", "pause")
    minutes(small, 4)

    assert states(small) == {"done": 1, "ready": 2}
    assert small.status()["waiting_for"]["code"] == "paused"
    command(small, "stack", "run")
    small.settle(minutes=20)
    assert codes(small) == [None] * 6


def test_tick_applies_stack_command_without_event(small, api):
    begun(small)
    small.control("stack", "pause")
    small.sqs.purge_queue(QueueUrl=small.queues["ControlQueue"])
    small.tick()
    minutes(small, 2)

    assert api.accepted == []


def test_operators_pause_is_never_probed(small, api):
    command(small, "stack", "pause")
    begun(small)
    for _ in range(12):
        small.pass_time(3_600)
        small.deliver_all()
        small.tick()
        small.deliver_all()

    assert api.accepted == []

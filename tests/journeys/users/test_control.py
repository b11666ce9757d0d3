"""Pause, resume and cancel: what users write under `control/`, and what becomes of their jobs."""

from __future__ import annotations

import pytest

from shared.ledger.batches import HELD_BATCH_SECONDS
from tests.support.journeys.controlled_jobs import batches, begun, command, minutes, states
from tests.support.translations import M2M, codes, greetings


@pytest.fixture
def small(start):
    """A Dropbatch whose batches have two records."""
    return start(MAX_REQUESTS_PER_BATCH=2)


def test_paused_job_resumes_where_it_was(small, api):
    job_id = begun(small)
    command(small, job_id, "pause\n")
    minutes(small, 3)

    assert api.accepted == []
    assert small.status()["state"] == "in_progress"
    assert small.status()["waiting_for"]["code"] == "paused"
    assert all(
        float(item["due_at"]["N"]) > small.now() + HELD_BATCH_SECONDS - 600
        for item in batches(small)
    )

    command(small, job_id, "run")
    small.settle(minutes=20)

    assert codes(small) == [None] * 6
    assert (small.manifest()["state"], small.manifest()["read_to_end"]) == ("completed", True)
    assert len(api.accepted) == 3


def test_cancelled_job_ends_with_answers_it_has(small, api):
    job_id = begun(small)
    small.deliver("SubmitQueue", most=1)
    command(small, job_id, "cancel")

    assert states(small) == {"queued": 1, "done": 2}
    small.settle(minutes=20)
    assert codes(small) == [None, None, *["cancelled"] * 4]
    manifest = small.manifest()
    assert (manifest["state"], manifest["error"], manifest["read_to_end"]) == (
        "cancelled",
        None,
        True,
    )
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


def test_split_stops_at_its_next_batch(start):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", greetings(40), model=M2M)

    def before(operation, arguments):
        item = arguments.get("Item", {})
        if operation == "PutItem" and item.get("sk") == {"S": "BATCH#00000001"}:
            world.control(item["job_id"]["S"], "cancel")
            world.deliver("VisitQueue")
            world.pass_time(6)  # The lease is renewed every five seconds.

    world.permissions.before = before
    world.deliver("UploadQueue")
    world.permissions.before = None
    world.settle(minutes=20)

    assert len(world.lines()) < 10
    assert (world.manifest()["state"], world.manifest()["read_to_end"]) == ("cancelled", False)

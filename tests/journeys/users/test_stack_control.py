"""Commands for the whole stack: pause and run, and the pauses that Dropbatch began itself."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

import functions.poll.handler
import functions.poll.schedule.sweep
from local.workers_ai import Fault
from tests.support.journeys.controlled_jobs import begun, command, minutes, states
from tests.support.translations import codes


@pytest.fixture
def small(start):
    """A Dropbatch whose batches have two records."""
    return start(MAX_REQUESTS_PER_BATCH=2)


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


@pytest.mark.parametrize("older", [True, False])
def test_run_of_stack_ends_found_pause(small, api, older):
    """Also one that began after the command: S3's time of an object may be earlier than that of a pause before it."""
    api.inject(Fault(kind="3036", on="submit", times=1))
    begun(small)
    if not older:
        small.control("stack", "run")
        small.pass_time(2)
    small.deliver("SubmitQueue", most=1)
    small.pass_time(2)
    assert functions.poll.handler.services().budget.controls().pause
    if older:
        small.control("stack", "run")
    small.deliver("ControlQueue")

    assert functions.poll.handler.services().budget.controls().pause is None


def test_operators_pause_is_never_probed(small, api):
    command(small, "stack", "pause")
    begun(small)
    for _ in range(12):
        small.pass_time(3_600)
        small.deliver_all()
        small.tick()
        small.deliver_all()

    assert api.accepted == []


def test_s3_that_fails_holds_up_no_tick(small, api):
    begun(small)

    def before(operation, arguments):
        if arguments.get("Key") == "control/stack":
            raise ClientError({"Error": {"Code": "SlowDown", "Message": "slow down"}}, operation)

    small.permissions.before = before
    small.tick(41)
    small.permissions.before = None

    (job,) = [item for item in small.items() if item["sk"]["S"] == "META"]
    assert float(job["told_at"]["N"]) > 0

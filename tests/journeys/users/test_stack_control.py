"""Commands for the whole stack: pause and run, and the pauses that Dropbatch began itself."""

from __future__ import annotations

import pytest

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


def test_operators_pause_is_never_probed(small, api):
    command(small, "stack", "pause")
    begun(small)
    for _ in range(12):
        small.pass_time(3_600)
        small.deliver_all()
        small.tick()
        small.deliver_all()

    assert api.accepted == []

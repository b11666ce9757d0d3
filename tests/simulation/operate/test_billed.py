"""What a job is billed while it waits for its answers, on a stack that was idle.

(`bench/small_jobs.md`).
"""

import math

import pytest

from bench.small_jobs import Runs, measure
from functions.poll.schedule import tick

SEEDS = [1, 4]
"""With one of them an invocation that waits, and does not wake, waits for long."""


def billed(latency, batches, seeds, **settings):
    """Seconds that the functions run until one job is over, the mean of some worlds.

    And how late its polls were.
    """
    found = Runs()
    for seed in seeds:
        measure(latency, [batches], 0.0, seed, found, **settings)
    return found.seconds.total() / found.runs, max(found.overdue)


@pytest.mark.parametrize(("latency", "most"), [(120.0, 8.0), (300.0, 12.0)])
def test_waiting_job_is_not_billed(latency, most, monkeypatch):
    seconds, overdue = billed(latency, 1, SEEDS)
    monkeypatch.setattr(tick, "MAX_IDLE_SECONDS", math.inf)

    assert seconds <= most
    assert seconds < billed(latency, 1, SEEDS)[0]
    assert overdue <= 6.0  # What is due in the last seconds before a tick is left to it.


@pytest.mark.parametrize(("latency", "most"), [(120.0, 22.0), (300.0, 30.0)])
def test_nobody_waits_for_a_pull(latency, most):
    """Of a new model, the set-up included.

    Some 45 and 70 pulls, each by an invocation that a message called.
    """
    assert billed(latency, 1, SEEDS, COMPLETION_EVENTS="yes")[0] <= most


@pytest.mark.slow
def test_forty_batches_are_billed_while_they_work():
    assert billed(60.0, 40, range(1, 5))[0] <= 100.0

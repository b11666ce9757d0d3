"""Which sweep a job's state asks for, when it continues.

And how long one over 20,000 batches takes.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import functions.poll.sweep
from dropbatch.core.names import JobState
from functions.poll.sweep import PASSES, current_sweep, next_sweep, sweep
from shared.models import BatchState, JobControl, Reading, Sweep, SweepGoal
from shared.services import Invocation
from tests.support.doubles.ledger_items import JOB, READY, REASON, T
from tests.support.doubles.swept_jobs import (
    CANCELLED_JOB,
    CANCELLED_JOB_NOW,
    END,
    HOLD,
    PAUSED,
    RELEASE,
    RESUMED,
    RUNNING,
)


@pytest.mark.parametrize(
    ("changes", "goal", "since"),
    [
        ({}, None, 0),
        ({"control": JobControl("v")}, None, 0),
        ({"deadline_at": T + 1}, None, 0),
        (PAUSED, SweepGoal.HOLD, T - 9),
        (RESUMED, SweepGoal.RELEASE, T - 8),
        ({"control": JobControl("v", held_since=T - 9, resumed_at=T - 8)}, SweepGoal.HOLD, T - 9),
        ({"error": REASON}, SweepGoal.END, 0),
        ({"deadline_at": T}, SweepGoal.END, 0),
        (CANCELLED_JOB, SweepGoal.END, 0),
        ({"error": REASON, **PAUSED}, SweepGoal.END, 0),
        (CANCELLED_JOB_NOW, SweepGoal.END_ALL, 0),
        ({"error": REASON, **CANCELLED_JOB_NOW}, SweepGoal.END_ALL, 0),
        ({"reading": Reading(has_endings=True)}, SweepGoal.FINISH, 0),
        ({"reading": Reading(has_endings=True), **PAUSED}, SweepGoal.HOLD, T - 9),
    ],
)
def test_jobs_state_asks_for_sweep(changes, goal, since):
    asked = current_sweep(replace(RUNNING, **changes), T)

    assert asked == (None if goal is None else Sweep(goal, since, PASSES[goal]))


@pytest.mark.parametrize(
    ("changes", "sweep", "is_new"),
    [
        (PAUSED, replace(HOLD, passes=0), False),
        (PAUSED, replace(HOLD, since=T - 99, passes=0), True),
        (RESUMED, replace(HOLD, passes=0), True),
        (RESUMED, replace(RELEASE, after="00000007"), False),
        ({"error": REASON}, replace(RELEASE, passes=0), True),
        ({"error": REASON, "deadline_at": T}, replace(END, passes=0), False),
        (CANCELLED_JOB_NOW, replace(END, passes=0), True),
    ],
    ids=[
        *(
            "paused and swept",
            "paused again",
            "resumed",
            "resumed and being swept",
            "fails",
            "fails, then its deadline",
        ),
        "cancelled at once after it was cancelled",
    ],
)
def test_other_state_begins_new_sweep(changes, sweep, is_new):
    asked = current_sweep(replace(RUNNING, sweep=sweep, **changes), T)

    assert (asked is not sweep) is is_new
    assert not is_new or (asked.passes, asked.after) == (PASSES[asked.goal], "")


@pytest.mark.parametrize(
    ("job", "at"),
    [
        (RUNNING, None),
        (replace(RUNNING, **PAUSED), 0.0),
        (replace(RUNNING, sweep=replace(HOLD, passes=0), **PAUSED), None),
        (replace(RUNNING, sweep=replace(HOLD, due=T + 7), **PAUSED), T + 7),
        (replace(JOB, **PAUSED), None),
        (replace(RUNNING, state=JobState.FINALIZING, **PAUSED), None),
    ],
    ids=[
        "no reason",
        "a reason",
        "no pass",
        "a pass",
        "its upload is being read",
        "all batches are done",
    ],
)
def test_job_is_swept_when_page_is_due(job, at):
    assert next_sweep(job, T) == at


BATCH_SECONDS = 0.0225
"""Seconds for one batch on a function's share of a processor: at most.

Its AWS calls and its index take 2 to 4 ms of a
processor for bodies of 5 KB to 9.5 MB, of which a function has 0.29; the rest is for reading the
page.
"""
GAP_SECONDS = 30.0
"""Seconds from the end of a visit to the next one on an idle stack."""


def test_twenty_thousand_batches_end_in_10_minutes(monkeypatch):
    """The visits, pages and seconds, for the largest bodies.

    Every batch ends once, and no call waits for a token.
    """
    ledger = SimpleNamespace(now=T)
    ended = []
    large = replace(READY, records=replace(READY.records, body_size=9_500_000))
    batches = {f"{number:08d}": replace(large, number=f"{number:08d}") for number in range(20_000)}
    visits = pages = 0

    def page_of(_job_id, after, limit, **_):
        nonlocal pages
        pages += 1
        first = int(after) + 1 if after else 0
        return iter(
            [batches[f"{number:08d}"] for number in range(first, min(first + limit, 20_000))]
        )

    def collect(_services, _job, batch, _reply):
        ledger.now += BATCH_SECONDS
        batches[batch.number] = replace(batch, state=BatchState.DONE)
        ended.append(batch.number)
        return True

    monkeypatch.setattr(functions.poll.sweep, "collect", collect)
    monkeypatch.setattr(functions.poll.sweep, "write_status", lambda *_given: None)
    ledger.batches, ledger.update_leased_job = page_of, lambda job, changes: replace(job, **changes)
    services = SimpleNamespace(
        ledger=ledger, now=lambda: ledger.now, budget=SimpleNamespace(slot_seconds=120.0)
    )
    job = replace(RUNNING, error=REASON)
    while job.sweep is None or job.sweep.passes == PASSES[SweepGoal.END]:
        visits += 1
        job = sweep(Invocation(services, ledger.now + 150.0), job)
        ledger.now += GAP_SECONDS

    assert ledger.now - T < 600
    assert (visits, pages) == (4, 201)
    assert sorted(ended) == sorted(batches)

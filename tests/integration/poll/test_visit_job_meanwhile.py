"""Visits while others read the job's upload, sweep it, hold it or fail it."""

from dataclasses import replace

import pytest

from dropbatch.core.names import JobState
from functions.poll import end
from functions.poll import files as result_files
from functions.poll import visit as module
from functions.poll.visit import MIN_ANSWERED_RECORDS, MIN_VISIT_SECONDS
from shared.errors import InvariantError
from shared.models import MAX_JOB_SECONDS, CostLimit, JobControl, Status, Sweep, SweepGoal
from shared.retry import MAX_CLAIMS
from tests.support.doubles.ledger_items import REASON, T
from tests.support.doubles.visited_jobs import LINE

LIMITED = {"cost": CostLimit(1_000, 500)}
READ = {"state": JobState.SPLITTING, "lease_until": T + 45, "due_at": T + 45}


# ── while its upload is read ──────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("told", "error", "is_told"),
    [
        (MIN_VISIT_SECONDS, None, True),
        (MIN_VISIT_SECONDS - 1, None, False),
        (MIN_VISIT_SECONDS - 1, REASON, True),
    ],
    ids=["after ten seconds", "sooner", "sooner, with an error"],
)
def test_status_of_job_being_read_is_told_every_ten_seconds(visited, told, error, is_told):
    visited.hold((1, 0), status=Status(at=T - told), error=error, **READ)

    assert visited.visit()

    assert (visited.job.status.at == T) is is_told
    assert (visited.job.lease_until, visited.job.claims) == (T + 45, 0)


@pytest.mark.parametrize("found", [None, JobState.IN_PROGRESS], ids=["gone", "read meanwhile"])
def test_job_that_is_read_no_more_is_left_to_next_visit(visited, monkeypatch, found):
    job = visited.hold((1, 0), **READ)
    monkeypatch.setattr(
        module, "follow_job_control", lambda *_: found and replace(job, state=found)
    )

    assert visited.visit()

    assert visited.job == job
    assert visited.files() == set()


def test_status_told_by_another_run_is_not_told_again(visited, monkeypatch):
    job = visited.hold((1, 0), **READ)

    def another_tells(*_):
        visited.item.change("status", Status(at=T - 1))
        return job

    monkeypatch.setattr(module, "follow_job_control", another_tells)

    assert visited.visit()

    assert visited.files() == set()
    assert visited.job.status.sha == ""


@pytest.mark.parametrize("error", [None, REASON])
def test_job_being_read_fails_once(visited, monkeypatch, error):
    visited.hold((1, 0), created_at=T - MAX_JOB_SECONDS - 1, error=error, **READ)
    failed = []
    monkeypatch.setattr(visited.ledger, "fail_job", lambda *given: failed.append(given))

    visited.visit()

    assert bool(failed) is (error is None)


# ── while others work on it ───────────────────────────────────────────────────────────────────────
def test_visit_says_that_another_run_holds_job(visited):
    """That run may not have seen the batch that was finished last."""
    visited.hold((1, 0), None, lease_until=T + 1, due_at=T + 1, status=Status(at=T))

    assert visited.visit() is False


@pytest.mark.parametrize("due", [T, T + 1], ids=["due", "due later"])
def test_nothing_is_joined_while_a_sweep_is_due(visited, monkeypatch, due):
    """It makes more that can be joined, in fewer steps."""
    monkeypatch.setattr(result_files, "SEGMENT_BYTES", 2 * len(LINE))
    monkeypatch.setattr(module, "sweep", lambda _invocation, job: job)
    held = Sweep(SweepGoal.HOLD, T, passes=1, due=due)
    visited.hold((2, 0), None, control=JobControl(held_since=T), sweep=held)

    visited.visit()

    assert bool(visited.segments()) is (due > T)


def test_job_that_another_run_failed_goes_on(visited, monkeypatch):
    visited.hold((0, MIN_ANSWERED_RECORDS), None, max_failed_fraction=0.0)
    monkeypatch.setattr(visited.ledger, "fail_job", lambda *_: None)

    assert visited.visit()

    assert visited.job.status.at == T


# ── when the next one is ──────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("deadline", "due_at", "work"),
    [(T + 9, T + 9, "v2#job"), (T + 10, T + 10, "v2#job"), (T + 11, T + 10, "v2#routine")],
    ids=["sooner", "at the next visit", "later"],
)
def test_job_is_visited_at_its_deadline(visited, deadline, due_at, work):
    visited.hold(None, deadline_at=deadline)

    visited.visit()

    assert (visited.job.due_at, visited.work) == (due_at, work)


@pytest.mark.parametrize(
    ("changes", "due_at"),
    [
        (LIMITED, T - 1 + MIN_VISIT_SECONDS / 2),
        (
            {
                "cost": CostLimit(1_000, 500, is_reached=True),
                "sweep": Sweep(SweepGoal.END, 0.0, passes=0),
            },
            T + 60,
        ),
        ({}, T + 60),
    ],
    ids=["limited", "limit reached", "without a limit"],
)
def test_job_with_limit_is_visited_soon_after_batch_is_final(visited, changes, due_at):
    """What the batch has cost may give others room."""
    visited.hold((1, 0), None, due_at=T + 60, status=Status(at=T - 1), **changes)

    visited.visit()

    assert (visited.job.due_at, visited.job.status.at) == (due_at, T - 1)


@pytest.mark.parametrize("due", [2, MIN_VISIT_SECONDS / 2], ids=["sooner", "at the same time"])
def test_visit_that_is_soon_is_not_brought_forward(visited, due):
    visited.hold((1, 0), None, due_at=T - 1 + due, status=Status(at=T - 1), **LIMITED)
    visited.ledger.bring_visit_forward = None

    assert visited.visit()


def test_job_that_fails_is_swept_by_same_visit(visited):
    visited.hold((0, MIN_ANSWERED_RECORDS), None, max_failed_fraction=0.0)

    visited.visit()

    assert visited.job.sweep.goal is SweepGoal.END


def test_given_up_job_without_all_files_keeps_what_was_staged(visited, monkeypatch):
    real = end._write_file

    def fails(invocation, job, kind):
        if kind == "errors":
            raise InvariantError("not written")
        return real(invocation, job, kind)

    monkeypatch.setattr(end, "_write_file", fails)
    visited.hold((1, 1), total=2, claims=MAX_CLAIMS, status=Status(at=T))

    visited.visit()

    assert visited.job.state is JobState.FAILED
    assert visited.job.due_at is None

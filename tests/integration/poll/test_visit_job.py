"""When a job is visited, what a visit takes in and writes, and when the next one is."""

from dataclasses import replace

import msgspec
import pytest

from dropbatch.core import names
from dropbatch.core.names import JobState
from functions.poll import files as result_files
from functions.poll.files import STEP_SECONDS
from functions.poll.visit import MIN_ANSWERED_RECORDS, MIN_VISIT_SECONDS, VISIT_LEASE_SECONDS
from shared.errors import InvariantError, StorageError
from shared.models import (
    CANCEL,
    MAX_JOB_SECONDS,
    TOO_OLD_CODE,
    ErrorDetail,
    JobControl,
    Status,
    Sweep,
    SweepGoal,
    Wait,
)
from shared.retry import CLAIMS_BEFORE_ALARM, MAX_CLAIMS
from tests.support.doubles.ledger_items import REASON, T
from tests.support.doubles.visited_jobs import LINE

HELD = {"control": JobControl(held_since=T)}
SWEPT = Sweep(SweepGoal.HOLD, T, passes=1, due=T)
LATER = T + 60


@pytest.fixture
def short_steps(monkeypatch):
    """Two lines make a step."""
    monkeypatch.setattr(result_files, "SEGMENT_BYTES", 2 * len(LINE))


def was_visited(job):
    return job.status.at == T and bool(job.status.sha)


# ── whether it is visited ─────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("state", [None, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED])
def test_missing_or_finished_job_needs_no_visit(visited, state):
    if state:
        visited.hold(None, state=state, due_at=T)

    assert visited.visit()

    assert visited.files() == set()


@pytest.mark.parametrize(
    ("state", "until", "answer", "is_visited"),
    [
        (JobState.IN_PROGRESS, T + 1, False, False),
        (JobState.FINALIZING, T + 1, False, False),
        (JobState.SPLITTING, T + 1, True, True),
        (JobState.IN_PROGRESS, T, True, True),
        (JobState.SPLITTING, T, True, True),
    ],
)
def test_job_that_another_run_holds_is_left_to_it(visited, state, until, answer, is_visited):
    visited.hold(None, state=state, lease_until=until)

    assert visited.visit() is answer

    assert was_visited(visited.job) is is_visited


def test_job_taken_by_another_run_is_left_to_it(visited):
    real = visited.ledger.lease_job

    def lease(*arguments):
        visited.item.change("lease_until", LATER)
        return real(*arguments)

    visited.ledger.lease_job = lease
    visited.hold(None)

    assert visited.visit() is False


@pytest.mark.parametrize(
    ("changes", "is_visited"),
    [
        ({"due_at": T - 1}, True),
        ({"due_at": T}, True),
        ({"due_at": T + 1}, False),
        (HELD, True),
        ({**HELD, "sweep": SWEPT}, True),
        ({**HELD, "sweep": replace(SWEPT, due=T + 1)}, False),
        ({**HELD, "sweep": replace(SWEPT, passes=0)}, False),
        ({"error": REASON}, True),
        ({"deadline_at": T}, True),
        ({"deadline_at": T + 1}, False),
        ({"status": Status(at=T - MIN_VISIT_SECONDS)}, True),
        ({"status": Status(at=T - MIN_VISIT_SECONDS + 1)}, False),
    ],
)
def test_job_is_visited_when_due_or_status_is_old(visited, changes, is_visited):
    visited.hold((1, 0), None, **{"due_at": LATER, "status": Status(at=T - 1), **changes})

    assert visited.visit()

    assert was_visited(visited.job) is is_visited


def test_job_with_last_part_written_is_visited(visited):
    visited.hold((1, 0), total=1, due_at=LATER, status=Status(at=T))

    assert visited.visit()

    assert visited.job.state is JobState.COMPLETED


@pytest.mark.parametrize(("records", "is_visited"), [(1, False), (2, True)])
def test_job_with_possible_step_is_visited(visited, short_steps, records, is_visited):
    visited.hold((records, 0), None, due_at=LATER, status=Status(at=T))

    assert visited.visit()

    assert was_visited(visited.job) is is_visited


# ── the lease ─────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("claims", "remaining", "seconds"),
    [(0, 60, 70), (0, VISIT_LEASE_SECONDS, VISIT_LEASE_SECONDS), (CLAIMS_BEFORE_ALARM, 60, 3_600)],
    ids=["until its function's end", "a whole invocation", "after many claims"],
)
def test_job_is_held_before_anything_can_fail(visited, claims, remaining, seconds):
    visited.hold(None, claims=claims)

    def dies(_key):
        raise RuntimeError("the function dies")

    visited.store.head = dies
    with pytest.raises(RuntimeError):
        visited.visit(remaining)

    job = visited.job
    assert (job.lease_until, job.due_at, job.claims) == (T + seconds, T + seconds, claims + 1)


@pytest.mark.parametrize(
    ("claims", "seconds", "held"),
    [(0, 2, 0), (4, 32, 0), (CLAIMS_BEFORE_ALARM - 1, 60, 0), (CLAIMS_BEFORE_ALARM, 3_600, 3_600)],
)
def test_failed_visit_is_due_soon_and_counts_claim(visited, claims, seconds, held):
    """Later it stays held: each part that arrives would use up another of its tries."""
    visited.hold(None, claims=claims)

    def fails(_key):
        raise StorageError("S3 is down")

    visited.store.head = fails
    with pytest.raises(StorageError):
        visited.visit()

    job = visited.job
    assert (job.lease_until, job.due_at, job.claims) == (held and T + held, T + seconds, claims + 1)


@pytest.mark.parametrize(
    ("claims", "total", "state"),
    [
        (0, 2, JobState.IN_PROGRESS),
        (MAX_CLAIMS - 1, 2, JobState.IN_PROGRESS),
        (MAX_CLAIMS, 2, JobState.FAILED),
        (MAX_CLAIMS, None, JobState.IN_PROGRESS),
    ],
)
def test_job_is_given_up_at_last_claim(visited, claims, total, state):
    visited.hold((1, 0), None, claims=claims, total=total)

    assert visited.visit()

    assert visited.job.state is state


# ── what it takes in ──────────────────────────────────────────────────────────────────────────────
def test_visit_carries_out_command_for_job(visited):
    visited.hold(None)
    visited.store.put(names.job_control(visited.job_id), b"cancel")

    visited.visit()

    assert visited.job.cancelled == CANCEL


def test_job_deleted_during_visit_stays_deleted(visited):
    real = visited.ledger.lease_job

    def lease(*arguments):
        leased = real(*arguments)
        visited.item.remove()
        return leased

    visited.ledger.lease_job = lease
    visited.hold(None)

    assert visited.visit()

    assert visited.ledger.job(visited.job_id) is None


@pytest.mark.parametrize(
    ("records", "remaining", "mark"),
    [
        (1, 600, ""),
        (2, 600, "00000000"),
        (2, STEP_SECONDS, "00000000"),
        (2, STEP_SECONDS - 0.1, ""),
    ],
    ids=["too little", "a step", "just enough time", "too little time"],
)
def test_visit_takes_step_if_time_allows(visited, short_steps, records, remaining, mark):
    visited.hold((records, 0), None)

    visited.visit(remaining)

    assert visited.job.output.mark == mark


def test_last_step_writes_file_itself_and_no_segment(visited, monkeypatch):
    monkeypatch.setattr(result_files, "MIN_STEP_BATCHES", 1)
    visited.hold((2, 0), total=2)

    visited.visit()

    assert visited.segments() == set()
    assert visited.read("output.jsonl") == 2 * LINE


@pytest.mark.parametrize("total", [2, 4])
def test_batches_of_other_records_break_law(visited, total):
    visited.hold((3, 0), total=total)

    with pytest.raises(InvariantError, match=f"its batches hold 3 records, expected {total}"):
        visited.visit()

    assert visited.job.state is JobState.IN_PROGRESS


# ── why nothing more is submitted ─────────────────────────────────────────────────────────────────
FEW = MIN_ANSWERED_RECORDS
CANCELLED = JobControl(cancelled=CANCEL)


@pytest.mark.parametrize(
    ("batch", "changes", "code"),
    [
        ((0, FEW), {}, None),
        ((49, 51), {"max_failed_fraction": 0.5}, "too_many_failures"),
        ((50, 50), {"max_failed_fraction": 0.5}, None),
        ((0, FEW), {"max_failed_fraction": 0.0}, "too_many_failures"),
        ((0, FEW - 1), {"max_failed_fraction": 0.0}, None),
        ((0, FEW), {"max_failed_fraction": 0.0, "control": CANCELLED}, None),
        ((1, 0), {"created_at": T - MAX_JOB_SECONDS}, None),
        ((1, 0), {"created_at": T - MAX_JOB_SECONDS - 1}, TOO_OLD_CODE.code),
    ],
)
def test_job_stops_with_too_many_failures_or_age(visited, batch, changes, code):
    visited.hold(batch, None, **changes)

    visited.visit()

    assert (visited.job.error.code if visited.job.error else None) == code


def test_job_with_too_many_failures_says_how_many(visited):
    visited.hold((49, 951), (0, 100), None, max_failed_fraction=0.5)

    visited.visit()

    words = "1,051 of the first 1,100 records failed, more than max_failed_fraction allows."
    assert visited.job.error == ErrorDetail("too_many_failures", words)


def test_job_that_failed_is_not_failed_again(visited):
    visited.hold(None, created_at=T - MAX_JOB_SECONDS - 1, error=REASON)
    visited.ledger.fail_job = None

    visited.visit()

    assert visited.job.error == REASON


# ── its status, and the next visit ────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("before", "total", "fraction"),
    [(0.5, 4, 0.5), (0.1, 4, 0.25), (0.0, 3, 0.3333), (0.7, None, 0.7), (0.7, 0, 0.7)],
)
def test_fraction_done_never_falls(visited, before, total, fraction):
    visited.hold((1, 0), None, total=total, status=Status(fraction=before))

    visited.visit()

    assert visited.job.status.fraction == fraction


def test_status_counts_what_was_answered(visited):
    visited.hold((1, 2), None, (3, 0), total=9)

    visited.visit()

    status = msgspec.json.decode(visited.read("status.json"))
    assert status["counts"] == {"total": 9, "succeeded": 4, "failed": 2}
    assert (visited.job.status.succeeded, visited.job.status.failed) == (4, 2)


@pytest.mark.parametrize(("unchanged", "wait"), [(0, 20), (1, 40), (3, 160), (4, 180), (9, 180)])
def test_next_visit_is_later_without_changes(visited, unchanged, wait):
    visited.hold(None)
    visited.visit()
    assert (visited.job.status.unchanged, visited.job.due_at) == (0, T + 10)  # The status was new.
    visited.item.change("status", replace(visited.job.status, unchanged=unchanged))
    visited.item.change("due_at", T)
    visited.store.put = None  # A status that is the same is not written again.

    visited.visit()

    assert (visited.job.status.unchanged, visited.job.due_at, visited.job.lease_until) == (
        unchanged + 1,
        T + wait,
        0,
    )


def test_what_is_noted_again_is_no_new_status(visited):
    visited.hold(None, wait=Wait(T + 900, "polls_fail", "Workers AI is silent.", T - 900))
    visited.visit()
    waiting = msgspec.json.decode(visited.read("status.json"))["waiting_for"]
    assert waiting == {"code": "polls_fail", "message": "Workers AI is silent.", "until": None}
    visited.item.change("wait", replace(visited.job.wait, until=T + 4_500))
    visited.item.change("due_at", T)
    visited.store.put = None  # A status that is the same is not written again.

    visited.visit()

    assert visited.job.status.unchanged == 1


@pytest.mark.parametrize(
    ("sweep_due", "due_at"),
    [(T + 3, T + 3), (T + 30, T + 10), (T - 30, T)],
    ids=["sooner", "later", "late already"],
)
def test_next_visit_is_by_next_page_of_sweep(visited, sweep_due, due_at):
    visited.hold(None, sweep=replace(SWEPT, due=sweep_due), **HELD)

    visited.visit(25)  # Too short for a sweep.

    assert (visited.job.due_at, visited.work) == (due_at, "v2#job")


@pytest.mark.parametrize("records", [1, 2])
def test_visit_without_time_moves_job_on_next(visited, short_steps, records):
    visited.hold((records, 0), None)

    visited.visit(STEP_SECONDS - 0.1)

    assert (visited.job.due_at, visited.work) == (
        (T, "v2#job") if records == 2 else (T + 10, "v2#routine")
    )

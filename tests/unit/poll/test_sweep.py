"""A sweep: which one a job asks for, how far a visit comes, what becomes of each batch."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dropbatch.core.names import JobState
from functions.poll import contain
from functions.poll import sweep as module
from functions.poll.sweep import PASSES, SLOW_HOLD_SECONDS, current_sweep, next_sweep, sweep
from shared.errors import LeaseLostError
from shared.models import (
    CANCEL,
    CANCEL_NOW,
    CANCELLED,
    PAST_DEADLINE,
    BatchState,
    JobControl,
    Reading,
    Submission,
    Sweep,
    SweepGoal,
)
from shared.services import Invocation
from tests.support.doubles.ledger_items import BATCH, JOB, READY, REASON, SPLIT, SUBMITTING, T

PAUSED = {"control": JobControl("v", held_since=T - 9)}
RESUMED = {"control": JobControl("v", resumed_at=T - 8)}
CANCELLED_JOB = {"control": JobControl("v", cancelled=CANCEL)}
CANCELLED_JOB_NOW = {"control": JobControl("v", cancelled=CANCEL_NOW)}
HOLD = Sweep(SweepGoal.HOLD, T - 9, passes=1)
RELEASE = Sweep(SweepGoal.RELEASE, T - 8, passes=2)
END = Sweep(SweepGoal.END, 0.0, passes=2)
RUNNING = replace(JOB, state=JobState.IN_PROGRESS, total=9)


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


BATCH_SECONDS = 0.0225
"""At most, for one batch on a function's share of a processor (0.29).

Its AWS calls and its index take 2 to 4 ms of one for 5 KB to 9.5 MB; the page takes the rest.
"""
GAP_SECONDS = 30.0
"""Seconds from the end of a visit to the next one on an idle stack."""


def test_twenty_thousand_batches_end_in_10_minutes(monkeypatch):
    """The visits, pages and seconds, for the largest bodies; each batch ends once."""
    ledger = SimpleNamespace(now=T)
    ended = []
    large = replace(READY, records=replace(READY.records, body_size=9_500_000))
    batches = {f"{number:08d}": replace(large, number=f"{number:08d}") for number in range(20_000)}
    visits = pages = 0

    def page_of(_job_id, after, limit, **_):
        nonlocal pages
        pages += 1
        first = int(after) + 1 if after else 0
        return [batches[f"{number:08d}"] for number in range(first, min(first + limit, 20_000))]

    def collect(_services, _job, batch, _reply):
        ledger.now += BATCH_SECONDS
        batches[batch.number] = replace(batch, state=BatchState.DONE)
        ended.append(batch.number)
        return True

    monkeypatch.setattr(module, "collect", collect)
    monkeypatch.setattr(module, "write_status", lambda *_given: None)
    # The clock is the test's, so that threads would add nothing.
    monkeypatch.setattr(contain, "in_parallel", lambda step, items: list(map(step, items)))
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


PAGE = 3
"""Batches of a page in these tests."""
MOST_PAGES = 20
"""Pages after which a sweep that does not end fails its test."""
HELD = replace(READY, held=True)
ID = Submission("id", 1, T - 60)
QUEUED = replace(BATCH, submission=ID)
WAITS_ANEW = replace(READY, submission=ID, ready_at=T - 30)
ENDING = replace(READY, ending=REASON)
DONE = replace(BATCH, state=BatchState.DONE, ending=REASON, due_at=None, work=None)


class SweptLedger:
    """A job's batches; notes what a sweep does to which. Reading a page may take time."""

    def __init__(self):
        self.now, self.page_seconds = T, 0.0
        self.held, self.unreadable = [], set()
        self.is_lost, self.changes = False, {}
        self.done, self.errors, self.sweeps, self.statuses = [], [], [], []

    def batches(self, job_id, after, limit, unreadable):
        assert (job_id, limit) == (JOB.job_id, PAGE)
        self.now += self.page_seconds
        page = [batch for batch in self.held if batch.number > after][:limit]
        unreadable.extend(batch.number for batch in page if batch.number in self.unreadable)
        yield from [batch for batch in page if batch.number not in self.unreadable]

    def update_leased_job(self, job, changes):
        self.sweeps.append(changes["sweep"])
        assert len(self.sweeps) < MOST_PAGES, "the sweep does not end"
        return None if self.is_lost else replace(job, **changes, **self.changes)

    def release(self, batch, due_at):
        return self.note("released", batch, due_at)

    def hold(self, batch, now, deadline_at):
        return self.note("held", batch, now, deadline_at)

    def note(self, *what):
        self.done.append((what[0], what[1].number, *what[2:]))
        return what[1]


@pytest.fixture
def ledger(monkeypatch):
    swept = SweptLedger()

    def poll_batch(_invocation, job, batch, permit):
        assert (permit.pause, permit.model_pause) == (None, None)
        return bool(swept.note("polled", batch))

    monkeypatch.setattr(contain, "count", swept.errors.append)
    for name, replacement in {
        "PAGE_BATCHES": PAGE,
        "collect": lambda *given: swept.note("ended", given[2], given[2].ending),
        "write_status": lambda *given: swept.statuses.append(given[2]["error"]),
        "poll_batch": poll_batch,
    }.items():
        monkeypatch.setattr(module, name, replacement)
    return swept


def swept(ledger, changes, *batches, seconds=140.0):
    """The job after one visit has swept it."""
    ledger.held = [replace(batch, number=f"{number:08d}") for number, batch in enumerate(batches)]
    services = SimpleNamespace(
        ledger=ledger, now=lambda: ledger.now, budget=SimpleNamespace(slot_seconds=3.0)
    )
    return sweep(Invocation(services, ledger.now + seconds), replace(RUNNING, **changes))


@pytest.mark.parametrize(
    ("seconds", "pages"),
    [(150, 6), (140, 6), (125, 5), (106, 5), (105, 4), (45, 1), (26, 1), (25, 0), (15, 0)],
)
def test_visit_sweeps_for_115_seconds(ledger, seconds, pages):
    ledger.page_seconds = 20.0

    swept(ledger, PAUSED, *[HELD] * 9 * PAGE, seconds=seconds)

    assert len(ledger.sweeps) == pages


def test_visit_whose_lease_is_lost_ends(ledger):
    ledger.is_lost = True

    with pytest.raises(LeaseLostError, match=JOB.job_id):
        swept(ledger, PAUSED, READY)


def test_new_command_begins_own_sweep(ledger):
    ledger.changes = RESUMED

    swept(ledger, PAUSED, *[HELD] * PAGE)

    assert [one.goal for one in ledger.sweeps[:2]] == [SweepGoal.HOLD, SweepGoal.RELEASE]


def test_status_tells_error_before_sweep_and_once(ledger):
    swept(ledger, {"error": REASON}, *[DONE] * 2 * PAGE)

    assert ledger.statuses == [{"code": REASON.code, "message": REASON.message}]


@pytest.mark.parametrize(
    ("changes", "progress", "wait"),
    [(PAUSED, HOLD, 0), (CANCELLED_JOB, END, 0), (RESUMED, RELEASE, 2 * 3)],
)
def test_next_page_follows_turns_of_last(ledger, changes, progress, wait):
    swept(ledger, changes, READY, HELD, HELD, READY)

    assert ledger.sweeps[0] == replace(progress, after="00000002", due=T + wait)


def test_second_pass_waits_for_earlier_runs(ledger):
    job = swept(ledger, RESUMED, HELD)

    assert job.sweep == replace(RELEASE, passes=1, after="", due=T + SLOW_HOLD_SECONDS)
    assert len(ledger.sweeps) == 1


@pytest.mark.parametrize("lost", [range(1), range(1, 2), range(2, 3), range(PAGE), range(3, 5)])
def test_unreadable_batches_are_passed_over(ledger, lost):
    ledger.unreadable = {f"{number:08d}" for number in lost}

    job = swept(ledger, PAUSED, *[READY] * 5)

    assert job.sweep.passes == 0
    others = {f"{number:08d}" for number in range(5)} - ledger.unreadable
    assert {number for _, number, *_ in ledger.done} == others


def test_resumed_job_releases_at_submit_rate(ledger):
    swept(ledger, RESUMED, HELD, HELD)

    assert sorted(ledger.done) == [("released", "00000000", T), ("released", "00000001", T + 3)]


@pytest.mark.parametrize("deadline", [None, T + 5])
def test_paused_job_holds_waiting_batches(ledger, deadline):
    swept(ledger, {"deadline_at": deadline, **PAUSED}, READY)

    assert ledger.done == [("held", "00000000", T, deadline)]


ENDS = {
    "cancelled": (CANCELLED_JOB, CANCELLED),
    "past its deadline": ({"deadline_at": T}, PAST_DEADLINE),
}


@pytest.mark.parametrize(
    ("batch", "cancelled", "cancelled_now"),
    [
        (READY, "ended", "ended"),
        (replace(READY, claims=1, due_at=T + 9), "ended", "ended"),  # refused, and due again later
        (HELD, "ended", "ended"),
        (SPLIT, "polled", "polled"),
        (replace(SPLIT, due_at=T + 9), "polled", "polled"),  # another is split first
        (replace(SPLIT, claims=1, due_at=T + 9), None, None),  # another run looks at it
        (WAITS_ANEW, "ended", "ended"),
        (QUEUED, None, "polled"),
        (SUBMITTING, None, None),
        (replace(SUBMITTING, submission=ID), None, None),
        (replace(SPLIT, pieces=4), None, None),
        (DONE, None, None),
    ],
)
@pytest.mark.parametrize("why", ENDS)
def test_ending_job_ends_unaccepted_batches(ledger, why, batch, cancelled, cancelled_now):
    for (changes, error), wanted in (
        (ENDS[why], cancelled),
        ((CANCELLED_JOB_NOW, CANCELLED), cancelled_now),
    ):
        ledger.done.clear()

        swept(ledger, changes, batch)

        told = {"ended": (error,), "ended later": (error,), "polled on": (error, T), "polled": ()}
        assert ledger.done == ([(wanted, "00000000", *told[wanted])] if wanted else [])
        assert ledger.errors == []


OTHERS = ({"error": REASON}, {"reading": Reading(has_endings=True)})


@pytest.mark.parametrize("changes", [PAUSED, RESUMED, CANCELLED_JOB, CANCELLED_JOB_NOW, *OTHERS])
def test_sweep_finishes_decided_batch(ledger, changes):
    """One that nobody ends yet, and those whose run died; not one that another run ends."""
    claimed = [replace(ENDING, claims=1, due_at=T + seconds) for seconds in (-1, 0, 1)]
    swept(ledger, changes, replace(ENDING, due_at=T + 3_600), *claimed)

    assert sorted(ledger.done) == [("ended", f"{number:08d}", REASON) for number in range(3)]


def test_failing_batch_keeps_no_other(ledger, monkeypatch):
    real = ledger.hold
    monkeypatch.setattr(
        ledger,
        "hold",
        lambda batch, *more: 1 / 0 if batch.number == "00000000" else real(batch, *more),
    )

    job = swept(ledger, PAUSED, READY, READY)

    assert ledger.done == [("held", "00000001", T, None)]
    assert ledger.errors == ["Errors"]
    assert job.sweep.passes == 0


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
)
def test_job_is_swept_when_page_is_due(job, at):
    assert next_sweep(job, T) == at


@pytest.mark.parametrize("changes", [{}, {"sweep": replace(HOLD, passes=0), **PAUSED}])
def test_nothing_is_swept_without_pass_to_make(ledger, changes):
    swept(ledger, changes, READY)

    assert (ledger.sweeps, ledger.done) == ([], [])


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        (RESUMED, [READY, replace(QUEUED, held=True), replace(SUBMITTING, held=True)]),
        (PAUSED, [HELD, QUEUED, SUBMITTING, SPLIT]),
        ({"reading": Reading(has_endings=True)}, [READY, HELD, QUEUED, SPLIT, SUBMITTING]),
    ],
)
def test_sweep_leaves_other_batches_alone(ledger, changes, batches):
    swept(ledger, changes, *batches)

    assert ledger.done == ledger.errors == []

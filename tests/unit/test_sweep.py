"""A sweep: how far one visit comes, what it leaves to the next, and what it does to each batch of a page."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import functions.poll.due_items
import functions.poll.sweep
from functions.poll.poll_batch import PollOutcome
from functions.poll.sweep import SLOW_HOLD_SECONDS, next_sweep, sweep
from shared.errors import LeaseLostError, UnreadableItemError
from shared.models import CANCEL, CANCEL_NOW, CANCELLED, BatchState, JobControl, JobState, Submission
from tests.support.ledger_items import BATCH, JOB, READY, REASON, SPLIT, SUBMITTING, T

PAGE = 3
"""Batches of a page in these tests."""
MOST_PAGES = 20
"""Pages after which a sweep that does not end fails its test."""
PAUSED = JobControl("v", held_since=T - 9, sweeps=1, sweep_due=T)
RESUMED = replace(PAUSED, held_since=0.0, sweeps=2)
STOPPED = replace(RESUMED, cancelled=CANCEL)
STOPPED_NOW = replace(RESUMED, cancelled=CANCEL_NOW)
RUNNING = replace(JOB, state=JobState.IN_PROGRESS, total=9)
HELD = replace(READY, held=True)
ID = Submission("id", 1, T - 60)
QUEUED = replace(BATCH, submissions=(ID,))
WAITS_ANEW = replace(READY, submissions=(ID,), ready_at=T - 30)
NEXT_ROUND = replace(READY, submissions=(ID,), ready_at=T - 30, round=1)
ENDING = replace(READY, ending=REASON)
DONE = replace(BATCH, state=BatchState.DONE, ending=REASON, due_at=None, work=None)


class SweptLedger:
    """A job's batches; notes what a sweep does to which. Reading a page may take time."""

    def __init__(self):
        self.now = T
        self.page_seconds = 0.0
        self.held = []
        self.is_readable = True
        self.has_new_command = False
        self.done = []
        self.errors = []
        self.controls = []
        self.released_jobs = []

    def batches(self, job_id, after, limit, page_size):
        assert (job_id, limit, page_size) == (JOB.job_id, PAGE, PAGE)
        self.now += self.page_seconds
        yield from [batch for batch in self.held if batch.number > after][:limit]
        if not self.is_readable:
            raise UnreadableItemError("edited")

    def note_control(self, job, control):
        self.controls.append(control)
        assert len(self.controls) < MOST_PAGES, "the sweep does not end"
        return None if self.has_new_command else replace(job, control=control)

    def release_job(self, job, due_at):
        self.released_jobs.append((job.job_id, due_at))

    def release(self, batch, due_at):
        return self.note("released", batch, due_at)

    def hold(self, batch, now, deadline_at):
        return self.note("held", batch, now, deadline_at)

    def keep_polling(self, batch, error, now):
        return self.note("polled on", batch, error, now)

    def note(self, *what):
        self.done.append((what[0], what[1].number, *what[2:]))
        return what[1]


@pytest.fixture
def ledger(monkeypatch):
    swept = SweptLedger()
    monkeypatch.setattr(functions.poll.sweep, "PAGE_BATCHES", PAGE)
    monkeypatch.setattr(functions.poll.due_items, "count", swept.errors.append)
    monkeypatch.setattr(
        functions.poll.sweep, "end", lambda _services, _job, batch, error: swept.note("ended", batch, error)
    )

    def poll_batch(_services, job, batch, permit, _remaining):
        assert (permit.pause, permit.model_wait) == (None, None)
        swept.note("polled", batch)
        return PollOutcome(job.job_id, done=True)

    monkeypatch.setattr(functions.poll.sweep, "poll_batch", poll_batch)
    return swept


def swept(ledger, control, *batches, seconds=150.0, **more):
    """The job after one visit has swept it."""
    ledger.held = [replace(batch, number=f"{number:08d}") for number, batch in enumerate(batches)]
    services = SimpleNamespace(ledger=ledger, now=lambda: ledger.now, budget=SimpleNamespace(interval=1_500))
    return sweep(services, replace(RUNNING, control=control, **more), lambda: seconds)


# ── how far a visit comes ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("seconds", "pages"), [(150, 4), (120, 4), (119, 4), (100, 3), (60, 1), (41, 1), (40, 0), (30, 0)]
)
def test_a_visit_sweeps_for_80_seconds_and_leaves_40_of_its_invocation(ledger, seconds, pages):
    ledger.page_seconds = 20.0

    swept(ledger, PAUSED, *[HELD] * 9 * PAGE, seconds=seconds)

    assert len(ledger.controls) == pages


@pytest.mark.parametrize(("due_in", "pages"), [(-1, 1), (0, 1), (1, 0)])
def test_a_page_is_swept_once_it_is_due(ledger, due_in, pages):
    swept(ledger, replace(PAUSED, sweep_due=T + due_in), READY)

    assert len(ledger.controls) == pages


@pytest.mark.parametrize("control", [None, replace(PAUSED, sweeps=0)], ids=["no command", "all passes are over"])
def test_nothing_is_swept_without_a_pass_to_make(ledger, control):
    job = swept(ledger, control, READY)

    assert (job.control, ledger.controls, ledger.done) == (control, [], [])


@pytest.mark.parametrize(
    ("job", "at"),
    [
        (RUNNING, None),
        (replace(RUNNING, control=replace(PAUSED, sweeps=0)), None),
        (replace(RUNNING, control=replace(PAUSED, sweep_due=T + 7)), T + 7),
        (replace(JOB, control=PAUSED), None),
        (replace(RUNNING, control=PAUSED, state=JobState.FINALIZING), None),
    ],
    ids=["no command", "no pass", "a pass", "its upload is being read", "all batches are done"],
)
def test_a_job_in_progress_is_swept_when_its_next_page_is_due(job, at):
    assert next_sweep(job) == at


def test_a_visit_gives_the_job_back_when_a_command_came_meanwhile(ledger):
    ledger.has_new_command = True

    with pytest.raises(LeaseLostError, match=JOB.job_id):
        swept(ledger, PAUSED, READY)

    assert ledger.released_jobs == [(JOB.job_id, T)]


# ── what follows a page ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("control", "wait"),
    [(PAUSED, 0), (STOPPED, 0), (RESUMED, 2 * 3), (replace(RESUMED, held_since=T - 9), 0)],
    ids=["paused", "cancelled", "resumed: two held batches had their turns", "paused again"],
)
def test_the_next_page_follows_when_the_batches_of_the_last_have_had_their_turns(ledger, control, wait):
    swept(ledger, control, READY, HELD, HELD, READY)

    assert ledger.controls[0] == replace(control, sweep_after="00000002", sweep_due=T + wait)


@pytest.mark.parametrize(("count", "pages"), [(0, 1), (PAGE - 1, 1), (PAGE, 2), (PAGE + 1, 2)])
def test_a_pass_ends_with_a_page_that_is_not_full(ledger, count, pages):
    swept(ledger, PAUSED, *[HELD] * count)

    assert len(ledger.controls) == pages
    assert ledger.controls[-1] == replace(PAUSED, sweeps=0, sweep_after="", sweep_due=T + SLOW_HOLD_SECONDS)


def test_the_second_pass_begins_when_every_run_that_read_the_job_before_is_over(ledger):
    job = swept(ledger, RESUMED, HELD)

    assert job.control == replace(RESUMED, sweeps=1, sweep_after="", sweep_due=T + SLOW_HOLD_SECONDS)
    assert len(ledger.controls) == 1


def test_a_pass_ends_at_a_batch_that_cannot_be_read_and_adjusts_those_before_it(ledger):
    ledger.is_readable = False

    job = swept(ledger, PAUSED, READY)

    assert job.control.sweeps == 0
    assert ledger.done == [("held", "00000000", T, None)]


# ── what a page's batches come to ────────────────────────────────────────────────────────────────────────────────────


def test_a_resumed_job_releases_held_batches_one_after_another_at_half_the_rate(ledger):
    swept(ledger, RESUMED, HELD, HELD)

    assert sorted(ledger.done) == [("released", "00000000", T), ("released", "00000001", T + 3)]


@pytest.mark.parametrize(
    "batch",
    [READY, replace(QUEUED, held=True), replace(SUBMITTING, held=True), replace(ENDING, held=True)],
    ids=["it has its turn", "it was accepted", "it is being submitted", "it ends"],
)
def test_a_resumed_job_leaves_batches_alone_that_wait_for_no_turn(ledger, batch):
    swept(ledger, RESUMED, batch)

    assert ledger.done == []


@pytest.mark.parametrize("deadline", [None, T + 5])
def test_a_paused_job_holds_batches_that_wait_to_be_submitted(ledger, deadline):
    swept(ledger, PAUSED, READY, deadline_at=deadline)

    assert ledger.done == [("held", "00000000", T, deadline)]


@pytest.mark.parametrize(
    "batch",
    [HELD, QUEUED, SUBMITTING, ENDING, SPLIT, WAITS_ANEW],
    ids=["it is held", "it was accepted", "it is being submitted", "it ends", "it is split", "it waits anew"],
)
def test_a_paused_job_leaves_other_batches_alone(ledger, batch):
    swept(ledger, PAUSED, batch)

    assert ledger.done == []


@pytest.mark.parametrize(
    ("batch", "cancelled", "cancelled_now"),
    [
        (READY, "ended", "ended"),
        (HELD, "ended", "ended"),
        (SPLIT, "ended", "ended"),
        (NEXT_ROUND, "ended", "ended"),
        (WAITS_ANEW, "polled on", "ended"),
        (QUEUED, None, "polled"),
        (SUBMITTING, None, None),
        (replace(SUBMITTING, submissions=(ID,)), None, None),
        (replace(SPLIT, pieces=4), None, None),
        (replace(ENDING, due_at=T - 1), "polled", "polled"),
        (ENDING, "polled", "polled"),
        (replace(ENDING, due_at=T + 1), None, None),
        (DONE, None, None),
    ],
    ids=[
        "ready",
        "held",
        "to be split",
        "ready for a further round",
        "waits anew",
        "accepted",
        "being submitted",
        "being submitted again",
        "being split",
        "ending for a second",
        "ending",
        "ending later",
        "done",
    ],
)
def test_a_cancelled_job_ends_what_was_not_accepted_and_cancel_now_the_rest_too(
    ledger, batch, cancelled, cancelled_now
):
    for control, wanted in ((STOPPED, cancelled), (STOPPED_NOW, cancelled_now)):
        ledger.done.clear()

        swept(ledger, control, batch)

        told = {"ended": (CANCELLED,), "polled on": (CANCELLED, T), "polled": ()}
        assert ledger.done == ([(wanted, "00000000", *told[wanted])] if wanted else [])
        assert ledger.errors == []


def test_a_cancelled_job_that_is_paused_too_ends_its_batches(ledger):
    swept(ledger, replace(STOPPED, held_since=T - 9), READY)

    assert ledger.done == [("ended", "00000000", CANCELLED)]


def test_a_batch_that_fails_keeps_no_other_from_being_adjusted(ledger, monkeypatch):
    real = ledger.hold
    monkeypatch.setattr(
        ledger, "hold", lambda batch, *more: 1 / 0 if batch.number == "00000000" else real(batch, *more)
    )

    job = swept(ledger, PAUSED, READY, READY)

    assert ledger.done == [("held", "00000001", T, None)]
    assert ledger.errors == ["Errors"]
    assert job.control.sweeps == 0

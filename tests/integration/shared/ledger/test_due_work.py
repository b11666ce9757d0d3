"""What of a job or a batch is due, and as what work, after a transition."""

from dataclasses import replace

import pytest

from dropbatch.core.names import JobState
from shared.ledger import Ledger
from shared.models import DueKind, JobControl, Submission
from tests.support.doubles.ledger_items import JOB, READY, REASON, OneItem, T, due_entry

MOVES_ON = {
    "release": (lambda at, job: at.release_job(job, T + 9), "job"),
    "finalize": (lambda at, job: at.begin_finalizing(job), "job"),
    "bring forward": (lambda at, job: at.bring_visit_forward(job, T + 9), "job"),
    "fail": (lambda at, job: at.fail_job(job, REASON, T), "job"),
    "control": (lambda at, job: at.note_control(job, JobControl("v"), T + 9), "job"),
    "note a control": (lambda at, job: at.note_control(job, JobControl("v")), "routine"),
    "lease": (lambda at, job: at.lease_job(job, T, T + 9), "routine"),
    "postpone": (lambda at, job: at.postpone_job(job, T + 9), "routine"),
    "retry": (lambda at, job: at.retry_job(job, T + 9, 1), "routine"),
}


@pytest.mark.parametrize("name", MOVES_ON)
def test_job_that_moves_on_is_due_as_work(table, name):
    """A job that only waits stays what it is."""
    change, kind = MOVES_ON[name]
    job = replace(JOB, state=JobState.IN_PROGRESS)
    item = OneItem(table, job)
    idle = item.ledger.release_job(job, T, DueKind.ROUTINE)

    change(item.ledger, idle)

    assert item.read()["work"] == {"S": f"v2#{kind}"}


def test_end_of_split_is_work(table):
    item = OneItem(table, JOB)
    item.ledger.release_job(JOB, T, DueKind.ROUTINE)

    item.ledger.end_split(JOB, 7, None, T)

    assert item.read()["work"] == {"S": "v2#job"}


ACCEPTED = Submission("id", 1, T - 10)
WAITS = {
    "once": ({"created_at": T - 900}, 60.0),
    "again": ({"created_at": T - 900, "paused": 7.0}, 67.0),
    "anew": ({"created_at": T}, 60.0),
    "twice": ({"created_at": T - 10, "paused": 30.0}, 70.0),
    "to be sent again": ({"created_at": T - 900, "ready_at": T - 10, "paused": 30.0}, 70.0),
    "since accepted": ({"created_at": T - 900, "submission": ACCEPTED, "paused": 30.0}, 70.0),
    "before its turn": ({"created_at": T + 90}, 0.0),
}


@pytest.mark.parametrize("name", WAITS)
def test_pause_is_never_longer_than_batch_waits(table, name):
    """The same wait may be written twice."""
    batch, paused = WAITS[name]
    waiting = replace(READY, **batch)
    item = OneItem(table, waiting)

    assert item.ledger.wait(waiting, T + 60, 60.0).paused == paused


@pytest.mark.parametrize("change", [Ledger.set_aside, Ledger.retire])
def test_item_due_at_another_time_is_not_given_up(table, change):
    item = OneItem(table, READY)
    before = item.read()
    arguments = (3, T + 9) if change is Ledger.set_aside else (T,)

    assert not change(item.ledger, replace(due_entry(READY), due_at=T - 1), *arguments)

    assert item.read() == before

"""Commands: what each makes of a job's control, whatever it was before."""

from dataclasses import replace

import pytest

from dropbatch.core.names import JobState, controlled_job, job_control
from dropbatch.core.plan import SplitPlan
from shared.job_control import Command, controlled
from shared.models import ErrorDetail, Job, JobControl, Upload

NOW = 1_000.0
JOB = "20261121T093000Z-5f3a9c1e"
FREE = JobControl()
HELD = JobControl("v1", held_since=500.0)
RESUMED = JobControl("v1", resumed_at=600.0)
CANCELLED = JobControl("v1", cancelled="cancel")
CANCELLED_NOW = JobControl("v1", cancelled="cancel now")


@pytest.mark.parametrize(
    ("before", "word", "changes"),
    [
        (FREE, "pause", {"held_since": NOW}),
        (FREE, "run", {}),
        (FREE, "cancel", {"cancelled": "cancel"}),
        (FREE, "cancel now", {"cancelled": "cancel now"}),
        (FREE, "stop", {}),
        (HELD, "pause", {}),
        (HELD, "run", {"held_since": 0.0, "resumed_at": NOW}),
        (HELD, "cancel", {"held_since": 0.0, "cancelled": "cancel"}),
        (HELD, "", {}),
        (RESUMED, "run", {}),
        (RESUMED, "pause", {"held_since": NOW}),
        (replace(HELD, resumed_at=400.0), "run", {"held_since": 0.0, "resumed_at": NOW}),
        (CANCELLED, "run", {}),
        (CANCELLED, "pause", {}),
        (CANCELLED, "cancel", {}),
        (CANCELLED, "cancel now", {"cancelled": "cancel now"}),
        (CANCELLED_NOW, "cancel", {}),
    ],
)
def test_command_changes_what_it_may(before, word, changes):
    assert controlled(before, Command(word, "v2"), NOW) == replace(before, version="v2", **changes)


@pytest.mark.parametrize(
    ("error", "control", "state"),
    [
        (None, None, JobState.COMPLETED),
        (None, HELD, JobState.COMPLETED),
        (None, CANCELLED, JobState.CANCELLED),
        (ErrorDetail("unknown_model", "no such model"), CANCELLED, JobState.FAILED),
        (ErrorDetail("unknown_model", "no such model"), None, JobState.FAILED),
    ],
)
def test_job_ends_cancelled_if_it_has_no_error(error, control, state):
    job = Job(
        job_id=JOB,
        state=JobState.FINALIZING,
        upload=Upload("b", "inbox/a", "v", "e", 1),
        plan=SplitPlan("m", 1, 1, "a"),
        created_at=0.0,
        error=error,
        control=control,
    )
    assert job.final_state is state


@pytest.mark.parametrize(
    ("key", "job_id"),
    [
        (job_control(JOB), JOB),
        ("control/jobs/", None),
        (f"control/jobs/{JOB}/x", None),
        (f"control/{JOB}", None),
        ("control/stack", None),
        (f"inbox/control/jobs/{JOB}", None),
    ],
)
def test_key_names_one_job_or_none(key, job_id):
    assert controlled_job(key) == job_id

"""Jobs whose state asks for a sweep, and these sweeps."""

from dataclasses import replace

from dropbatch.core.names import JobState
from shared.models import CANCEL, CANCEL_NOW, JobControl, Sweep, SweepGoal
from tests.support.doubles.ledger_items import JOB, T

PAUSED = {"control": JobControl("v", held_since=T - 9)}
RESUMED = {"control": JobControl("v", resumed_at=T - 8)}
CANCELLED_JOB = {"control": JobControl("v", cancelled=CANCEL)}
CANCELLED_JOB_NOW = {"control": JobControl("v", cancelled=CANCEL_NOW)}
HOLD = Sweep(SweepGoal.HOLD, T - 9, passes=1)
RELEASE = Sweep(SweepGoal.RELEASE, T - 8, passes=2)
END = Sweep(SweepGoal.END, 0.0, passes=2)
RUNNING = replace(JOB, state=JobState.IN_PROGRESS, total=9)

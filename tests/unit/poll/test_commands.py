"""Commands: what each makes of a job's control, and how it is carried out."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import msgspec
import pytest

import functions.poll.commands
from dropbatch.core.names import JobState
from functions.poll.commands import (
    MAX_HELD_SECONDS,
    end_long_hold,
    follow_stack_control,
    watch_stack_control,
)
from functions.poll.handler import process_message
from shared.aws.object_store import ObjectInfo
from shared.errors import StorageError
from shared.job_control import (
    COMMAND_TRIES,
    MAX_COMMAND_BYTES,
    Command,
    controlled,
    follow_job_control,
    obey,
    read_command,
)
from shared.models import CANCEL, CANCEL_NOW, JobControl
from shared.pacing.breaker import Controls, Pause, PauseReason, Permit, Rate, StackControl
from tests.support.doubles.ledger_items import JOB, T

NOW = 1_000.0
FREE = JobControl()
PAUSED = JobControl("v1", held_since=500.0)
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
        (PAUSED, "pause", {}),
        (PAUSED, "run", {"held_since": 0.0, "resumed_at": NOW}),
        (PAUSED, "cancel", {"held_since": 0.0, "cancelled": "cancel"}),
        (PAUSED, "", {}),
        (RESUMED, "run", {}),
        (RESUMED, "pause", {"held_since": NOW}),
        (replace(PAUSED, resumed_at=400.0), "run", {"held_since": 0.0, "resumed_at": NOW}),
        (CANCELLED, "run", {}),
        (CANCELLED, "pause", {}),
        (CANCELLED, "cancel", {}),
        (CANCELLED, "cancel now", {"cancelled": "cancel now"}),
        (CANCELLED_NOW, "cancel", {}),
    ],
)
def test_command_changes_what_it_may(before, word, changes):
    assert controlled(before, Command(word, "v2"), NOW) == replace(before, version="v2", **changes)


RUNNING = replace(JOB, state=JobState.IN_PROGRESS, total=3)
HELD = JobControl("earlier etag", held_since=T - 60)
KEY = f"control/jobs/{JOB.job_id}"
COMMANDED = 1_795_000_000.0
"""When an object was written, Unix seconds."""


class Commands:
    """Objects under `control/`: what each holds, one version after another; the last one stays."""

    def __init__(self, *bodies):
        self.bodies, self.reads = list(bodies), 0

    def head(self, key):
        self.key = key
        if not self.bodies:
            return None
        body = self.bodies[0]
        modified = datetime.fromtimestamp(COMMANDED, UTC)
        return ObjectInfo(len(body), f"etag{len(self.bodies)}", "version", modified)

    def get(self, key):
        assert key == self.key
        self.reads += 1
        return self.bodies[0] if len(self.bodies) == 1 else self.bodies.pop(0)


class ControlLedger:
    """One job, or none; notes what is written to it."""

    def __init__(self, job):
        self.held = job
        self.writes = []
        self.is_changed_by_others = False

    def job(self, job_id):
        assert job_id == JOB.job_id
        return self.held

    def note_control(self, job, control, due_at=None):
        self.writes.append((control, due_at))
        if self.is_changed_by_others:
            return None
        self.held = replace(job, control=control)
        return self.held


class StackBudget:
    """The stack's control and its pause; notes what is written, in order."""

    def __init__(self, stack=None, pause=None):
        self.stack, self.pause = stack or StackControl(), pause
        self.writes = []

    def controls(self):
        return Controls(self.pause, None, Rate(), frozenset(), self.stack)

    def note_stack(self, stack):
        self.writes.append("noted")
        self.stack = stack

    def lift(self, permit, model):
        self.writes.append(("lifted", permit, model))
        self.pause = None


def services_of(commands, **members):
    return SimpleNamespace(store=commands, now=lambda: T, **members)


def followed(job, *bodies):
    """A job and the ledger after its command was carried out."""
    ledger = ControlLedger(job)
    return follow_job_control(services_of(Commands(*bodies), ledger=ledger), JOB.job_id), ledger


def stack_followed(*bodies, stack=None, pause=None):
    """The budget after the stack's command was carried out."""
    budget = StackBudget(stack, pause)
    follow_stack_control(services_of(Commands(*bodies), budget=budget))
    return budget


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"pause", "pause"),
        (b"  Cancel \n\tNOW\r\n", "cancel now"),
        (b"", ""),
        (b"\xff", "\N{REPLACEMENT CHARACTER}"),
        (b"run" + b" " * (MAX_COMMAND_BYTES - 3), "run"),
        (b"run" + b" " * (MAX_COMMAND_BYTES - 2), ""),
    ],
)
def test_command_is_words_of_short_object(body, word):
    commands = Commands(body)

    assert read_command(services_of(commands), KEY) == Command(word, "version etag1")
    assert commands.reads == (len(body) <= MAX_COMMAND_BYTES)


@pytest.mark.parametrize(("job", "due_at"), [(RUNNING, T), (JOB, None)])
def test_first_command_makes_job_due(job, due_at):
    """Unless its upload is being read."""
    after, ledger = followed(job, b"pause")

    paused = JobControl("version etag1", held_since=T)
    assert ledger.writes == [(paused, due_at)]
    assert after == replace(job, control=paused)


def test_command_changes_result_of_earlier_ones():
    after, _ = followed(replace(RUNNING, control=HELD), b"run")

    assert after.control == JobControl("version etag1", held_since=0.0, resumed_at=T)


def test_command_during_another_is_carried_out():
    after, ledger = followed(RUNNING, b"pause", b"cancel")

    assert [control.version for control, _ in ledger.writes] == ["version etag2", "version etag1"]
    assert after.cancelled == CANCEL


def test_command_whose_job_keeps_changing_is_error():
    ledger = ControlLedger(RUNNING)
    ledger.is_changed_by_others = True

    with pytest.raises(StorageError, match=f"{KEY} changed 5 times"):
        follow_job_control(services_of(Commands(b"pause"), ledger=ledger), JOB.job_id)

    assert len(ledger.writes) == COMMAND_TRIES


def held(seconds):
    return replace(HELD, held_since=T - MAX_HELD_SECONDS - seconds)


@pytest.mark.parametrize(
    ("control", "is_ended"),
    [
        (held(-1), False),
        (held(0), True),
        (held(1), True),
        (None, False),
        (JobControl("v"), False),
        (JobControl("v", cancelled=CANCEL_NOW), False),
    ],
)
def test_job_paused_for_30_days_is_cancelled(control, is_ended):
    job, cancelled = replace(RUNNING, control=control), JobControl("earlier etag", cancelled=CANCEL)
    ledger = ControlLedger(job)

    after = end_long_hold(services_of(None, ledger=ledger), job)

    assert after == (replace(job, control=cancelled) if is_ended else job)
    assert ledger.writes == ([(cancelled, None)] if is_ended else [])
    ledger.is_changed_by_others = True
    assert end_long_hold(services_of(None, ledger=ledger), job) is job


@pytest.mark.parametrize(
    ("held_since", "word", "after"),
    [
        (0, b"pause", T),
        (T - 60, b"pause", T - 60),
        (T - 60, b"run", 0),
        (0, b"run", 0),
        (T - 60, b"stop", T - 60),
        (0, b"cancel", 0),
    ],
)
def test_command_pauses_stack_or_lets_it_run(held_since, word, after):
    budget = stack_followed(word, stack=StackControl("earlier", held_since))

    assert budget.stack == StackControl("version etag1", after)
    assert budget.writes == ["noted"]


@pytest.mark.parametrize(
    ("word", "since", "is_lifted"),
    [
        (b"run", COMMANDED - 1, True),
        (b"run", COMMANDED, True),
        (b"run", COMMANDED + 0.9, True),
        (b"pause", COMMANDED - 1, False),
    ],
)
def test_run_ends_pause_of_dropbatch(word, since, is_lifted):
    pause = Pause(PauseReason.QUOTA_SPENT, "nonce", since, T + 60, 60.0)

    budget = stack_followed(word, pause=pause)

    assert budget.writes == [*([("lifted", Permit(pause), "")] if is_lifted else []), "noted"]


def test_stack_whose_command_keeps_changing_is_error():
    with pytest.raises(StorageError, match="control/stack changed 5 times"):
        stack_followed(*[b"run", b"pause"] * COMMAND_TRIES)


def test_tick_survives_unreadable_command(monkeypatch):
    counted = []
    monkeypatch.setattr(functions.poll.commands, "count", counted.append)

    def fail(_key):
        raise StorageError("S3 head_object control/stack: 503")

    watch_stack_control(services_of(SimpleNamespace(head=fail), budget=StackBudget()))

    assert counted == ["Errors"]


@pytest.mark.parametrize("body", ['{"do":"unknown"}', "{}", '{"Records":[]}'])
def test_unknown_message_fails(body):
    """It is delivered again, and in the end kept in the dead-letter queue."""
    with pytest.raises(msgspec.ValidationError):
        process_message(None, body)


@pytest.mark.parametrize(("bodies", "known"), [([], ""), ([b"run"], "version etag1")])
def test_without_new_object_there_is_no_command(bodies, known):
    commands = Commands(*bodies)

    assert read_command(services_of(commands), KEY, known) is None
    assert commands.reads == 0


@pytest.mark.parametrize(
    "job", [None, *(replace(JOB, state=state) for state in list(JobState)[2:])]
)
def test_finished_or_missing_job_reads_no_command(job):
    after, ledger = followed(job, b"cancel")

    assert after is job
    assert ledger.writes == []


@pytest.mark.parametrize(
    ("body", "is_lost", "told"),
    [
        (b"pause", False, ["job controlled"]),
        (b"stop", False, ["unknown command"]),
        (b"pause", True, []),
    ],
)
def test_log_tells_what_was_carried_out(caplog, body, is_lost, told):
    caplog.set_level("INFO")
    ledger = ControlLedger(RUNNING)
    ledger.is_changed_by_others = is_lost

    obey(services_of(Commands(body), ledger=ledger), RUNNING)

    assert [record.message for record in caplog.records] == told

"""What each transition of the ledger writes, attribute by attribute."""

from dataclasses import MISSING, replace

import pytest

from dropbatch.core.names import JobState
from shared.aws.attribute_values import attribute, attributes, defaults_of, plain
from shared.errors import InvariantError
from shared.ledger import Ledger
from shared.ledger.due import LIFE_SECONDS
from shared.models import (
    Doubt,
    DueKind,
    JobControl,
    ResultFileProgress,
    Status,
    Submission,
    Wait,
)
from tests.support.doubles.ledger_items import (
    BATCH,
    JOB,
    PART,
    READY,
    REASON,
    SPLIT,
    SUBMITTING,
    OneItem,
    T,
    due_entry,
)

GONE = object()
"""As what an attribute holds afterwards: it is not there."""
DAY = 86_400
ID = Submission("id", 1, T)
FIRST = replace(SUBMITTING, records=replace(SUBMITTING.records, ordinal=0))
WAITED = replace(READY, created_at=T - 300, paused=10.0, due_at=T - 60)
END = {"completed_at": T, "ttl": int(T) + LIFE_SECONDS, "due_at": GONE, "work": GONE}
DUE = {"due_at": T + 60, "work": "v2#routine"}
OVER = replace(JOB, state=JobState.COMPLETED, due_at=T)

BEGUN = replace(JOB, state=JobState.IN_PROGRESS)


def wire(value):
    return plain(attribute(value))


TRANSITIONS = {
    "begin_submit": (
        replace(READY, claims=2, held=True),
        lambda at, seen: at.begin_submit(seen, T + 90),
        {"state": "submitting", "attempt": 2, "fence": T + 90, "due_at": T + 90, "claims": 3}
        | {"work": "v2#poll", "held": False},
    ),
    "begin another submit": (
        replace(READY, submission=ID, given_up=1),
        lambda at, seen: at.begin_submit(seen, T + 90),
        {"state": "submitting", "attempt": 2, "fence": T + 90, "due_at": T + 90, "claims": 1}
        | {"work": "v2#poll", "submission": GONE, "given_up": 2},
    ),
    "accept": (
        replace(
            SUBMITTING, claims=2, refusals=1, doubt=Doubt("kind", T), calls_fail_since=T, paused=9.0
        ),
        lambda at, seen: at.accept(seen, ID, T + 5),
        {"state": "queued", "submission": wire(ID), "work": "v2#poll", "due_at": T + 5}
        | {"claims": 0, "refusals": 0, "doubt": GONE, "calls_fail_since": 0.0, "paused": 0.0},
    ),
    "accept anew": (
        replace(SUBMITTING, told_at=T - 9),
        lambda at, seen: at.accept(seen, ID, T + 5),
        {"state": "queued", "submission": wire(ID), "work": "v2#poll", "due_at": T + 5}
        | {"told_at": 0.0},
    ),
    "tell_over": (
        replace(BATCH, due_at=T + 60),
        lambda at, seen: at.tell_over(seen, T + 9),
        {"due_at": T + 9, "told_at": T + 9},
    ),
    "tell_over while it is polled": (
        replace(BATCH, due_at=T + 60, claims=1),
        lambda at, seen: at.tell_over(seen, T + 9),
        {"told_at": T + 9},
    ),
    "tell_over when it is due already": (
        BATCH,
        lambda at, seen: at.tell_over(seen, T + 9),
        {"told_at": T + 9},
    ),
    "make_ready": (
        replace(SUBMITTING, claims=2, calls_fail_since=T, work=DueKind.POLL),
        lambda at, seen: at.make_ready(seen, T + 9, refusals=1),
        {"state": "ready", "work": "v2#submit", "due_at": T + 9, "claims": 0}
        | {"calls_fail_since": 0.0, "refusals": 1},
    ),
    "make_ready a job's first batch": (
        replace(FIRST, work=DueKind.POLL),
        lambda at, seen: at.make_ready(seen, T + 9),
        {"state": "ready", "work": "v2#first", "due_at": T + 9},
    ),
    "undo_submit": (
        replace(SUBMITTING, work=DueKind.POLL, fence=T + 90, claims=3, given_up=1),
        lambda at, seen: at.undo_submit(
            replace(seen, attempt=0, claims=2, submission=ID, given_up=0), T + 90, T + 9
        ),
        {"state": "ready", "work": "v2#submit", "due_at": T + 9, "claims": 2}
        | {"submission": wire(ID), "given_up": 0},
    ),
    "postpone": (
        replace(READY, claims=2),
        lambda at, seen: at.postpone(seen, T + 9, paused=5.0),
        {"due_at": T + 9, "paused": 5.0},
    ),
    "wait": (
        replace(READY, created_at=T - 60, paused=5.0, claims=2),
        lambda at, seen: at.wait(seen, T + 9, 7.0),
        {"due_at": T + 9, "paused": 12.0, "claims": 0},
    ),
    "hold for a day": (
        WAITED,
        lambda at, seen: at.hold(seen, T),
        {"due_at": T + DAY, "paused": 10.0 + DAY + 60, "held": True},
    ),
    "hold again what a failure made due": (
        replace(READY, created_at=T - 100, held=True, paused=float(DAY), due_at=T),
        lambda at, seen: at.hold(seen, T),
        {"due_at": T + DAY, "paused": 100.0 + DAY},
    ),
    "hold until the deadline": (
        WAITED,
        lambda at, seen: at.hold(seen, T, T + 100),
        {"due_at": T + 100, "paused": 10.0 + 160, "held": True},
    ),
    "release": (
        replace(READY, held=True, paused=float(DAY), due_at=T + DAY),
        lambda at, seen: at.release(seen, T + 100),
        {"due_at": T + 100, "paused": 100.0, "held": False},
    ),
    "release what waited less than it is moved back": (
        replace(READY, held=True, paused=5.0, due_at=T + DAY),
        lambda at, seen: at.release(seen, T + 100),
        {"due_at": T + 100, "paused": 0.0, "held": False},
    ),
    "end_without_answer": (
        replace(BATCH, claims=2),
        lambda at, seen: at.end_without_answer(seen, REASON, T + 9, unknowable=1),
        {"state": "ready", "ending": wire(REASON), "due_at": T + 9, "claims": 0, "unknowable": 1},
    ),
    "claim_poll": (
        replace(BATCH, claims=2, polls=5),
        lambda at, seen: at.claim_poll(seen, T + 90),
        {"due_at": T + 90, "claims": 3, "polls": 6},
    ),
    "schedule_poll": (
        replace(BATCH, claims=2, polls=5, calls_fail_since=T),
        lambda at, seen: at.schedule_poll(seen, T + 9, refusals=1),
        {"due_at": T + 9, "claims": 0, "polls_settled": 5, "calls_fail_since": 0.0, "refusals": 1},
    ),
    "resubmit": (
        replace(
            BATCH,
            claims=2,
            polls=5,
            doubt=Doubt("kind", T),
            partial_replies=("key",),
            paused=9.0,
            submission=ID,
        ),
        lambda at, seen: at.resubmit(seen, T + 9, T + 20),
        {"state": "ready", "work": "v2#submit", "due_at": T + 20, "claims": 0, "doubt": GONE}
        | {"partial_replies": [], "polls_settled": 5, "ready_at": T + 9, "paused": 0.0},
    ),
    "begin_isolation": (
        replace(BATCH, claims=2),
        lambda at, seen: at.begin_isolation(seen, REASON, "5006", T + 9),
        {"state": "ready", "isolating": wire(REASON), "cause": "5006", "due_at": T + 9}
        | {"claims": 0},
    ),
    "claim_isolation": (
        replace(SPLIT, claims=2),
        lambda at, seen: at.claim_isolation(seen, T + 90),
        {"due_at": T + 90, "claims": 3},
    ),
    "decide_pieces": (SPLIT, lambda at, seen: at.decide_pieces(seen, 4), {"pieces": 4}),
    "undo_pieces": (
        replace(SPLIT, pieces=4, claims=2),
        lambda at, seen: at.undo_pieces(seen, REASON, T + 9),
        {"pieces": 0, "ending": wire(REASON), "due_at": T + 9, "claims": 0},
    ),
    "finish_division": (
        replace(SPLIT, pieces=4),
        lambda at, seen: at.finish_division(seen, T),
        {"state": "divided", **END},
    ),
    "finish_batch": (
        BATCH,
        lambda at, seen: at.finish_batch(seen, PART, T),
        {"state": "done", "part": wire(PART), **END},
    ),
    "finish_batch whose end a sweep decided": (
        READY,
        lambda at, seen: at.finish_batch(replace(seen, ending=REASON), PART, T),
        {"state": "done", "part": wire(PART), "ending": wire(REASON), **END},
    ),
    "abandon": (BATCH, lambda at, seen: at.abandon(seen, T), {"state": "done", **END}),
    "lease_job": (
        replace(JOB, claims=2),
        lambda at, seen: at.lease_job(seen, T, T + 90),
        {"lease_until": T + 90, "due_at": T + 90, "claims": 3},
    ),
    "release_job": (
        replace(JOB, claims=2, lease_until=T + 90),
        lambda at, seen: at.release_job(seen, T + 9, status=Status(unchanged=1)),
        {"lease_until": 0.0, "due_at": T + 9, "claims": 0, "status": {"unchanged": 1}},
    ),
    "release_job to a visit that will not move it on": (
        replace(JOB, lease_until=T + 90),
        lambda at, seen: at.release_job(seen, T + 9, DueKind.ROUTINE),
        {"lease_until": 0.0, "due_at": T + 9, "work": "v2#routine"},
    ),
    "retry_job": (
        replace(JOB, claims=2, lease_until=T + 90),
        lambda at, seen: at.retry_job(seen, T + 9, 1),
        {"lease_until": 0.0, "due_at": T + 9, "claims": 1},
    ),
    "begin_finalizing": (
        replace(JOB, lease_until=T + 90),
        lambda at, seen: at.begin_finalizing(seen, error=REASON),
        {"state": "finalizing", "error": wire(REASON)},
    ),
    "bring_visit_forward": (
        BEGUN,
        lambda at, seen: at.bring_visit_forward(seen, T + 9),
        {"due_at": T + 9},
    ),
    "postpone_job": (
        replace(JOB, claims=2),
        lambda at, seen: at.postpone_job(seen, T + 9),
        {"due_at": T + 9},
    ),
    "pin_plan": (
        JOB,
        lambda at, seen: at.pin_plan(replace(seen, plan=replace(seen.plan, form="jsonl"))),
        {"plan": wire(replace(JOB.plan, form="jsonl"))},
    ),
    "end_split": (
        replace(JOB, claims=2, lease_until=T + 90),
        lambda at, seen: at.end_split(seen, 7, None, T + 9),
        {"state": "in_progress", "total": 7, "lease_until": 0.0, "due_at": T + 9, "claims": 0},
    ),
    "end_split with an error": (
        replace(JOB, lease_until=T + 90),
        lambda at, seen: at.end_split(seen, 7, REASON, T, to_end=False),
        {"state": "in_progress", "total": 7, "reading": {"to_end": False}}
        | {"lease_until": 0.0, "error": wire(REASON)},
    ),
    "end_split with a second error": (
        replace(JOB, error=replace(REASON, message="the first"), lease_until=T + 90),
        lambda at, seen: at.end_split(seen, 7, REASON, T, to_end=False),
        {"state": "in_progress", "total": 7, "reading": {"to_end": False}, "lease_until": 0.0},
    ),
    "end_split after batches that are never submitted": (
        JOB,
        lambda at, seen: at.end_split(seen, 7, None, T, has_endings=True),
        {"state": "in_progress", "total": 7, "reading": {"has_endings": True}},
    ),
    "fail_job": (
        JOB,
        lambda at, seen: at.fail_job(seen, REASON, T + 9),
        {"error": wire(REASON), "due_at": T + 9},
    ),
    "note_status": (
        replace(JOB, lease_until=T + 40, claims=3),
        lambda at, seen: at.note_status(seen, Status(at=T + 9, failed=2), {}),
        {"status": {"at": T + 9, "failed": 2}},
    ),
    "note_appended while it is split": (
        replace(JOB, lease_until=T + 40, claims=3),
        lambda at, seen: at.note_appended(seen, {"output": ResultFileProgress("m")}),
        {"output": wire(ResultFileProgress("m"))},
    ),
    "refuse_rest": (
        JOB,
        lambda at, seen: at.refuse_rest(seen, REASON, T + 9),
        {"refused": wire(REASON), "due_at": T + 9},
    ),
    "note_control": (
        JOB,
        lambda at, seen: at.note_control(seen, JobControl("v", held_since=T)),
        {"control": wire(JobControl("v", held_since=T))},
    ),
    "note_control and make it due": (
        JOB,
        lambda at, seen: at.note_control(seen, JobControl("v"), T + 9),
        {"control": wire(JobControl("v")), "due_at": T + 9},
    ),
    "note_wait": (
        JOB,
        lambda at, seen: at.note_wait(seen.job_id, Wait(T, "code")),
        {"wait": wire(Wait(T, "code"))},
    ),
    "leave_out_references": (
        JOB,
        lambda at, seen: at.leave_out_references(seen),
        {"without_references": True},
    ),
    "note the end of a lasting error": (
        replace(JOB, wait=Wait(T, "code")),
        lambda at, seen: at.note_wait(seen.job_id, None),
        {"wait": GONE},
    ),
    "end_job": (
        replace(JOB, state=JobState.FINALIZING, lease_until=T + 90),
        lambda at, seen: at.end_job(seen, JobState.COMPLETED, T, None),
        {"state": "completed", "lease_until": 0.0, **END},
    ),
    "end_job and delete what it staged": (
        replace(JOB, state=JobState.FINALIZING, lease_until=T + 90, claims=2),
        lambda at, seen: at.end_job(seen, JobState.COMPLETED, T, T + 60),
        {"state": "completed", "lease_until": 0.0, **END, **DUE, "claims": 0},
    ),
    "forget_cleanup": (
        OVER,
        lambda at, seen: at.forget_cleanup(due_entry(seen)),
        {"due_at": GONE, "work": GONE},
    ),
    "set_aside": (
        replace(READY, claims=2),
        lambda at, seen: at.set_aside(due_entry(seen), 3, T + 9),
        {"due_at": int(T + 9), "claims": 3},
    ),
    "retire a batch": (
        READY,
        lambda at, seen: at.retire(due_entry(seen), T),
        {"state": "done", **END},
    ),
    "retire a job": (
        replace(JOB, lease_until=T + 90),
        lambda at, seen: at.retire(due_entry(seen), T),
        {"state": "failed", "lease_until": 0.0, **END},
    ),
    "update_leased_job": (
        JOB,
        lambda at, seen: at.update_leased_job(seen, {"claims": 1}),
        {"claims": 1},
    ),
    "note_appended": (
        BEGUN,
        lambda at, seen: at.note_appended(seen, {"output": ResultFileProgress("m")}),
        {"output": wire(ResultFileProgress("m"))},
    ),
    "note_control again": (
        replace(JOB, control=JobControl("v", held_since=T)),
        lambda at, seen: at.note_control(seen, JobControl("w")),
        {"control": wire(JobControl("w"))},
    ),
}
"""For each transition: an item, the call, the attributes that are different afterwards."""


UNSTORED = (None, MISSING)
"""Defaults that are no attribute's value."""


@pytest.mark.parametrize("transition", TRANSITIONS)
def test_transition_writes_only_its_attributes(table, transition):
    held, change, expected = TRANSITIONS[transition]
    item = OneItem(table, held)
    absent = {
        name: plain(attribute(value))
        for name, value in defaults_of(type(held)).items()
        if value not in UNSTORED
    }
    before = absent | {name: plain(value) for name, value in item.read().items()}

    change(item.ledger, held)

    stored = {name: plain(value) for name, value in item.read().items()}
    assert [name for name, value in stored.items() if absent.get(name, GONE) == value] == [], (
        "a default is stored"
    )
    after = absent | stored
    changed = {name for name in before | after if before.get(name, GONE) != after.get(name, GONE)}
    assert {name: after.get(name, GONE) for name in changed} == expected


def test_fault_noted_while_upload_was_read_stays(table):
    item = OneItem(table, JOB)
    item.ledger.fail_job(JOB, REASON, T)

    assert item.ledger.end_split(JOB, 7, None, T).error == REASON


def test_finished_batch_takes_no_transition(table):
    with pytest.raises(InvariantError, match=f"{BATCH.job_id}/00000000 is open but has no due_at"):
        Ledger(table, "table").claim_poll(replace(BATCH, due_at=None), T)


def test_batch_is_stored_with_all_it_holds(table):
    held = replace(BATCH, submission=ID, ending=REASON)

    item = OneItem(table, held).read()

    stored = attributes(held) | {
        "work": {"S": "v2#poll"},
        "pk": item["pk"],
        "sk": {"S": "BATCH#00000000"},
    }
    assert plain({"M": item}) == plain({"M": stored})  # DynamoDB stores the number 0.0 as 0

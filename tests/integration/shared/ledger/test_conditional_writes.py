"""Writes by someone who read the item before somebody else changed it.

A transition gives None then and leaves the item as it is; a write that counts leaves what is there.
"""

from dataclasses import replace

import pytest

from dropbatch.core.names import JobState
from dropbatch.errors import UploadRefused
from shared.aws.object_store import ObjectStore
from shared.models import (
    Job,
    JobControl,
    ResultFileProgress,
    Status,
    Submission,
    Wait,
)
from tests.support.aws.resources import client
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
)

# ── every transition and what it must not overlook ────────────────────────────────────────────────

KNOWN = replace(JOB.plan, form="jsonl", packing="plain")

CHANGED: dict[str, object] = {
    "state": "done",
    "attempt": 7,
    "due_at": T + 1,
    "told_at": T - 1,
    "fence": T + 91,
    "ending": REASON,
    "isolating": REASON,
    "error": REASON,
    "refused": REASON,
    "pieces": 2,
    "completed_at": T,
    "lease_until": T + 100,
    "status": Status(at=T + 100),
    "output": ResultFileProgress("other"),
    "control": JobControl("other", cancelled="cancel"),
}
"""What somebody else may have written meanwhile."""

TRANSITIONS = {
    "begin_submit": (
        READY,
        lambda at, seen: at.begin_submit(seen, T + 90),
        ("state", "attempt", "ending", "isolating"),
    ),
    "undo_submit": (
        replace(SUBMITTING, fence=T + 90),
        lambda at, seen: at.undo_submit(replace(seen, attempt=0), T + 90, T),
        ("state", "attempt", "fence"),
    ),
    "accept": (
        SUBMITTING,
        lambda at, seen: at.accept(seen, Submission("id", 1, T), T),
        ("state", "attempt"),
    ),
    "tell_over": (
        replace(BATCH, due_at=T + 60),
        lambda at, seen: at.tell_over(seen, T + 9),
        ("state", "attempt", "told_at"),
    ),
    "make_ready": (SUBMITTING, lambda at, seen: at.make_ready(seen, T + 9), ("state", "attempt")),
    "resubmit": (
        BATCH,
        lambda at, seen: at.resubmit(seen, T + 9, T + 9),
        ("state", "attempt", "due_at"),
    ),
    "refuse_rest": (
        JOB,
        lambda at, seen: at.refuse_rest(seen, REASON, T + 9),
        ("refused", "completed_at"),
    ),
    "wait": (READY, lambda at, seen: at.wait(seen, T + 9, 7.0), ("state", "attempt", "due_at")),
    "postpone": (READY, lambda at, seen: at.postpone(seen, T + 9), ("state", "attempt", "due_at")),
    "end_without_answer": (
        READY,
        lambda at, seen: at.end_without_answer(seen, REASON, T),
        ("state", "attempt", "due_at", "pieces"),
    ),
    "claim_poll": (
        BATCH,
        lambda at, seen: at.claim_poll(seen, T + 9),
        ("state", "attempt", "due_at"),
    ),
    "schedule_poll": (
        BATCH,
        lambda at, seen: at.schedule_poll(seen, T + 9),
        ("state", "attempt", "due_at"),
    ),
    "finish_batch": (
        BATCH,
        lambda at, seen: at.finish_batch(seen, PART, T),
        ("state", "attempt", "pieces"),
    ),
    "abandon": (BATCH, lambda at, seen: at.abandon(seen, T), ("state", "attempt", "due_at")),
    "lease_job": (JOB, lambda at, seen: at.lease_job(seen, T, T + 9), ("state", "lease_until")),
    "release_job": (JOB, lambda at, seen: at.release_job(seen, T + 9), ("state", "lease_until")),
    "retry_job": (JOB, lambda at, seen: at.retry_job(seen, T + 9, 1), ("lease_until",)),
    "update_leased_job": (
        JOB,
        lambda at, seen: at.update_leased_job(seen, {"claims": 1}),
        ("state", "lease_until"),
    ),
    "begin_finalizing": (JOB, lambda at, seen: at.begin_finalizing(seen), ("state", "lease_until")),
    "bring_visit_forward": (
        replace(JOB, state=JobState.IN_PROGRESS),
        lambda at, seen: at.bring_visit_forward(seen, T + 9),
        ("state", "due_at"),
    ),
    "note_status": (
        JOB,
        lambda at, seen: at.note_status(seen, Status(at=T + 9), {}),
        ("state", "status"),
    ),
    "note_appended": (
        replace(JOB, state=JobState.IN_PROGRESS),
        lambda at, seen: at.note_appended(seen, {"output": ResultFileProgress("m")}),
        ("state", "lease_until"),
    ),
    "note_appended while it is split": (
        JOB,
        lambda at, seen: at.note_appended(seen, {"output": ResultFileProgress("m")}),
        ("state", "output"),
    ),
    "postpone_job": (JOB, lambda at, seen: at.postpone_job(seen, T + 9), ("state", "due_at")),
    "pin_plan": (
        JOB,
        lambda at, seen: at.pin_plan(replace(seen, plan=KNOWN)),
        ("state", "lease_until"),
    ),
    "end_split": (JOB, lambda at, seen: at.end_split(seen, 3, None, T), ("state",)),
    "end_job": (
        replace(JOB, state=JobState.FINALIZING),
        lambda at, seen: at.end_job(seen, JobState.COMPLETED, T, None),
        ("state",),
    ),
    "note_wait": (
        JOB,
        lambda at, seen: at.note_wait(seen.job_id, Wait(T, "code")),
        ("completed_at",),
    ),
    "fail_job": (JOB, lambda at, seen: at.fail_job(seen, REASON, T + 9), ("error", "completed_at")),
    "begin_isolation": (
        BATCH,
        lambda at, seen: at.begin_isolation(seen, REASON, "5006", T),
        ("state", "attempt", "due_at"),
    ),
    "claim_isolation": (
        SPLIT,
        lambda at, seen: at.claim_isolation(seen, T + 9),
        ("state", "attempt", "due_at"),
    ),
    "decide_pieces": (
        SPLIT,
        lambda at, seen: at.decide_pieces(seen, 4),
        ("state", "attempt", "due_at", "pieces", "ending"),
    ),
    "undo_pieces": (
        replace(SPLIT, pieces=4),
        lambda at, seen: at.undo_pieces(seen, REASON, T),
        ("state", "attempt", "due_at", "pieces"),
    ),
    "finish_division": (
        replace(SPLIT, pieces=4),
        lambda at, seen: at.finish_division(seen, T),
        ("state", "attempt", "due_at"),
    ),
    "hold": (READY, lambda at, seen: at.hold(seen, T + 9), ("state", "attempt", "due_at")),
    "release": (
        replace(READY, held=True),
        lambda at, seen: at.release(seen, T + 9),
        ("state", "attempt", "due_at"),
    ),
    "note_control": (
        JOB,
        lambda at, seen: at.note_control(seen, JobControl("v", held_since=T), T + 9),
        ("state", "control"),
    ),
    "note_control again": (
        replace(JOB, control=JobControl("v", held_since=T)),
        lambda at, seen: at.note_control(seen, JobControl("w")),
        ("state", "control"),
    ),
}
"""For each transition.

An item it may change, the call, and the attributes of which each must stop it if it changed.
"""


@pytest.mark.parametrize("transition", TRANSITIONS)
def test_unchanged_item_is_changed(table, transition):
    held, change, _ = TRANSITIONS[transition]
    items = OneItem(table, held)
    before = items.read()

    change(items.ledger, held)

    assert items.read() != before


@pytest.mark.parametrize(
    ("transition", "name"),
    [(transition, name) for transition, (*_, names) in TRANSITIONS.items() for name in names],
)
def test_changed_item_is_left_alone(table, transition, name):
    held, change, _ = TRANSITIONS[transition]
    items = OneItem(table, held)
    items.change(name, CHANGED[name])
    before = items.read()

    assert change(items.ledger, held) is None

    assert items.read() == before


BEGUN = replace(JOB, state=JobState.IN_PROGRESS)
INSIDE = {
    "a command": (
        replace(BEGUN, control=JobControl("v")),
        lambda at, seen: at.note_control(seen, JobControl("w")),
        JobControl("other"),
    ),
    "a cancellation without a command": (
        replace(BEGUN, control=JobControl("v", held_since=T)),
        lambda at, seen: at.note_control(seen, JobControl("w")),
        JobControl("v", cancelled="cancel"),
    ),
    "an appended segment": (
        replace(JOB, output=ResultFileProgress("00000001", 5)),
        lambda at, seen: at.note_appended(seen, {"output": ResultFileProgress("00000003", 9)}),
        ResultFileProgress("00000002", 7),
    ),
}
"""Maps of which some members are compared.

The item, the call, and what somebody else wrote meanwhile.
"""
MAPS = {
    "control": JobControl,
    "output": ResultFileProgress,
}


@pytest.mark.parametrize("inside", INSIDE)
def test_changed_map_is_left_alone(table, inside):
    held, change, other = INSIDE[inside]
    (name,) = [name for name, kind in MAPS.items() if isinstance(other, kind)]
    items = OneItem(table, held)
    items.change(name, other)
    before = items.read()

    assert change(items.ledger, held) is None

    assert items.read() == before


@pytest.mark.parametrize("whole", [JobControl(), (1, 2), {"a": 1}], ids=["map", "list", "dict"])
def test_whole_map_is_not_compared(table, whole):
    items = OneItem(table, JOB)

    with pytest.raises(TypeError, match="as a whole"):
        items.ledger.update(items.key, {"control": whole}, {"claims": 1}, Job)


@pytest.mark.parametrize("transition", TRANSITIONS)
def test_deleted_item_does_not_come_back(table, transition):
    held, change, _ = TRANSITIONS[transition]
    items = OneItem(table, held)
    items.remove()

    assert change(items.ledger, held) is None

    assert items.read() is None


@pytest.mark.parametrize("held", [JOB, BATCH], ids=["job", "batch"])
def test_item_is_created_once(table, held):
    items = OneItem(table, held)
    before = items.read()
    create = items.ledger.create_batch if held is BATCH else items.ledger.create_job

    assert create(replace(held, claims=7)) is None

    assert items.read() == before


@pytest.mark.parametrize(("until", "is_free"), [(T - 1, True), (T, True), (T + 1, False)])
def test_lease_ends_at_its_time(table, until, is_free):
    held = replace(JOB, lease_until=until)
    items = OneItem(table, held)

    assert (items.ledger.lease_job(held, T, T + 90) is not None) == is_free


# ── the store ─────────────────────────────────────────────────────────────────────────────────────


def test_what_counts_is_written_once(table):
    store = ObjectStore(client("s3"), "bucket")

    assert store.put_if_absent("key", b"first")
    assert not store.put_if_absent("key", b"second")

    assert store.get("key") == b"first"


def test_what_counts_is_joined_once(table):
    store = ObjectStore(client("s3"), "bucket")
    store.put("piece", b"x")
    for number in (1, 2):
        upload = store.create_multipart_upload("joined", {"number": str(number)}, "text/plain")
        store.upload_part_copy("joined", upload, 1, "piece")
        assert store.complete_multipart_upload(
            "joined", upload, store.list_parts("joined", upload)
        ) == (number == 1)

    stored = store.head("joined")

    assert stored is not None
    assert stored.metadata == {"number": "1"}


def test_upload_that_was_overwritten_is_not_read(table):
    store = ObjectStore(client("s3"), "bucket")
    store.put("inbox/a", b"first")
    seen = store.head("inbox/a")
    store.put("inbox/a", b"other")

    with pytest.raises(UploadRefused, match="overwritten"):
        store.read_version("inbox/a", "", seen.etag, 0, 5)

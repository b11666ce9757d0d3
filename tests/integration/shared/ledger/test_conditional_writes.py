"""Writes by someone who read the item before somebody else changed it: it stays as it is."""

from dataclasses import replace

import pytest

from dropbatch.errors import UploadRefused
from shared.aws.object_store import ObjectStore
from shared.models import Job, JobControl, ResultFileProgress, Status
from tests.integration.shared.ledger.test_transitions import BEGUN, TRANSITIONS
from tests.support.aws.resources import client
from tests.support.doubles.ledger_items import BATCH, JOB, REASON, OneItem, T

# ── every transition and what it must not overlook ────────────────────────────────────────────────
CHANGED = {
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
GUARDS = {
    "begin_submit": "state attempt ending isolating",
    "accept": "state attempt",
    "tell_over": "state attempt told_at",
    "make_ready": "state attempt",
    "undo_submit": "state attempt fence",
    "postpone": "state attempt due_at",
    "wait": "state attempt due_at",
    "hold for a day": "state attempt due_at",
    "release": "state attempt due_at",
    "end_without_answer": "state attempt due_at pieces",
    "claim_poll": "state attempt due_at",
    "schedule_poll": "state attempt due_at",
    "resubmit": "state attempt due_at",
    "begin_isolation": "state attempt due_at",
    "claim_isolation": "state attempt due_at",
    "decide_pieces": "state attempt due_at pieces ending",
    "undo_pieces": "state attempt due_at pieces",
    "finish_division": "state attempt due_at",
    "finish_batch": "state attempt pieces",
    "abandon": "state attempt due_at",
    "lease_job": "state lease_until",
    "release_job": "state lease_until",
    "retry_job": "lease_until",
    "begin_finalizing": "state lease_until",
    "bring_visit_forward": "state due_at",
    "postpone_job": "state due_at",
    "pin_plan": "state lease_until",
    "end_split": "state",
    "fail_job": "error completed_at",
    "note_status": "state status",
    "note_appended while it is split": "state output",
    "refuse_rest": "refused completed_at",
    "note_control": "state control",
    "note_wait": "completed_at",
    "leave_out_references": "completed_at",
    "end_job": "state",
    "update_leased_job": "state lease_until",
    "note_appended": "state lease_until",
    "note_control again": "state control",
}
"""For each transition the attributes of which each must stop it if somebody else has changed it."""


@pytest.mark.parametrize("transition", GUARDS)
def test_changed_item_is_left_alone(table, subtests, transition):
    held, change, _ = TRANSITIONS[transition]
    for name in GUARDS[transition].split():
        with subtests.test(name):
            items = OneItem(table, held)
            items.change(name, CHANGED[name])
            before = items.read()

            assert change(items.ledger, held) is None

            assert items.read() == before


@pytest.mark.parametrize("transition", GUARDS)
def test_deleted_item_does_not_come_back(table, transition):
    held, change, *_ = TRANSITIONS[transition]
    items = OneItem(table, held)
    items.remove()

    assert change(items.ledger, held) is None

    assert items.read() is None


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
"""Maps of which some members are compared: the item, the call, what else was written meanwhile."""
MAPS = {"control": JobControl, "output": ResultFileProgress}


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

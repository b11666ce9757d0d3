"""What the ledger reads: what is due, what is unclaimed, and a job's batches in order."""

import math
from dataclasses import replace

import pytest

from dropbatch.core.names import JobState
from shared.errors import UnreadableItemError
from shared.ledger import Ledger
from shared.ledger.due import DueEntry
from shared.models import BatchState, DueKind
from tests.support.doubles.ledger_items import (
    BATCH,
    JOB,
    M2M,
    READY,
    SUBMITTING,
    OneItem,
    T,
    due_entry,
)


# ── what is due ───────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def five_polls(table):
    """Batches 0 to 4, due at T-2, T-1, T, T+1 and T+2."""
    at = Ledger(table, "table")
    batches = [
        replace(BATCH, job_id=f"job-{number % 2}", number=f"{number:08d}", due_at=T - 2 + number)
        for number in range(5)
    ]
    for batch in batches:
        at.create_batch(batch)
    yield at
    for batch in batches:
        table.delete_item(
            TableName="table",
            Key={"pk": {"S": f"JOB#{batch.job_id}"}, "sk": {"S": f"BATCH#{batch.number}"}},
        )


@pytest.mark.parametrize(
    ("limit", "found", "following"),
    [
        (0, 0, T - 2),
        (1, 1, T - 1),
        (2, 2, T),
        (3, 3, T + 1),
        (4, 3, T + 1),
        (5, 3, T + 1),
        (9, 3, T + 1),
    ],
)
def test_due_items_come_oldest_first(five_polls, limit, found, following):
    entries, next_at = five_polls.due(DueKind.POLL, T, limit)

    assert [(entry.job_id, entry.number, entry.due_at) for entry in entries] == [
        (f"job-{number % 2}", f"{number:08d}", T - 2 + number) for number in range(found)
    ]
    assert next_at == following


def test_when_all_is_due_nothing_follows(five_polls):
    entries, next_at = five_polls.due(DueKind.POLL, T + 2, 5)

    assert (len(entries), next_at) == (5, None)


def test_job_among_what_is_due_has_no_number(table):
    ledger = OneItem(table, JOB).ledger

    assert ledger.due(DueKind.JOB, T, 9) == ([DueEntry(JOB.job_id, "", T)], None)


@pytest.mark.parametrize(("most", "pages"), [(1, 1), (4, 1), (5, 2), (9, 2)])
def test_open_items_are_counted_up_to_limit(five_polls, monkeypatch, most, pages):
    """A page has four items."""
    asked = []
    real = five_polls.call
    monkeypatch.setattr(
        five_polls, "call", lambda *names, **more: asked.append(1) or real(*names, **more, Limit=4)
    )

    assert five_polls.count_open(DueKind.POLL, most) == (4 if pages == 1 else 5)
    assert len(asked) == pages
    asked.clear()
    assert five_polls.count_by_job(DueKind.POLL, most) == (
        {"job-0": 2 if pages == 1 else 3, "job-1": 2}
    )
    assert len(asked) == pages


HELD = {
    "open": (replace(READY, claims=2), 2),
    "being submitted": (SUBMITTING, None),
    "accepted": (replace(READY, state=BatchState.QUEUED), None),
    "read": (replace(JOB, state=JobState.IN_PROGRESS), None),
    "over": (replace(READY, state=BatchState.DONE, due_at=None, work=None), None),
    "leased": (replace(JOB, lease_until=T + 1), None),
    "its lease is over": (replace(JOB, lease_until=T), 0),
    "never leased": (JOB, 0),
}


@pytest.mark.parametrize("name", HELD)
def test_open_item_is_unclaimed_unless_held(table, name):
    held, claims = HELD[name]
    found = None if claims is None else (due_entry(held), claims)
    ledger = OneItem(table, held).ledger

    assert ledger.unclaimed(held.job_id, getattr(held, "number", ""), T) == found


def test_missing_item_was_never_claimed(table):
    ledger = Ledger(table, "table")

    assert ledger.unclaimed("no-job", "", T) is None
    assert ledger.claims_of(DueEntry("no-job", "", T)) == 0


@pytest.mark.parametrize(("claims", "counted"), [(3, 3), ("three", 0)])
def test_claims_of_unreadable_item_are_read(table, claims, counted):
    item = OneItem(table, JOB)
    item.change("plan", "broken")
    item.change("claims", claims)

    assert item.ledger.claims_of(DueEntry(JOB.job_id, "", T)) == counted


# ── batches of a job ──────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def ten_batches(table):
    at = Ledger(table, "table")
    for number in range(10):
        at.create_batch(replace(BATCH, job_id="ten", number=f"{number:08d}"))
    at.create_batch(replace(BATCH, job_id="ten", number="00000003.1"))
    return at


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ({}, ["0", "1", "2", "3", "3.1", "4", "5", "6", "7", "8", "9"]),
        ({"after": "00000006"}, ["7", "8", "9"]),
        ({"limit": 3}, ["0", "1", "2"]),
        ({"limit": 3, "page_size": 2}, ["0", "1", "2"]),
        ({"limit": 4, "page_size": 2}, ["0", "1", "2", "3"]),
        ({"limit": 2, "page_size": 9, "after": "00000007"}, ["8", "9"]),
        ({"prefix": "00000003."}, ["3.1"]),
    ],
)
def test_batches_are_read_in_order_up_to_limit(ten_batches, monkeypatch, wanted, numbers):
    asked = []
    real = ten_batches.call
    monkeypatch.setattr(
        ten_batches,
        "call",
        lambda *names, **given: asked.append(given.get("Limit")) or real(*names, **given),
    )

    found = [batch.number.lstrip("0") or "0" for batch in ten_batches.batches("ten", **wanted)]

    assert found == numbers
    limit, size = wanted.get("limit"), wanted.get("page_size")
    if limit:
        assert sum(asked) <= max(limit, size or 0)
        assert len(asked) == math.ceil(limit / min(limit, size or limit))


def test_unreadable_batch_is_left_out_only_for_who_asks_for_its_number(ten_batches, table):
    OneItem(table, replace(BATCH, job_id="ten", number="00000001")).change("created_at", "?")
    unreadable = []

    assert len(list(ten_batches.batches("ten", unreadable=unreadable))) == 10
    assert unreadable == ["00000001"]

    with pytest.raises(UnreadableItemError):
        list(ten_batches.batches("ten"))


def test_last_batch_is_one_with_highest_number(ten_batches):
    assert ten_batches.last_batch("ten").number == "00000009"
    assert ten_batches.last_batch("none") is None


def test_job_that_a_busy_table_leaves_out_has_no_model(table, monkeypatch):
    ledger = Ledger(table, "table")
    job_ids = [f"20261121T093000Z-0000000{place}" for place in range(3)]
    for job_id in job_ids:
        ledger.create_job(replace(JOB, job_id=job_id))
    assert ledger.models_of(job_ids) == dict.fromkeys(job_ids, M2M)
    real = table.batch_get_item

    def busy(RequestItems):  # noqa: N803 - boto3's own name
        wanted = RequestItems["table"]
        answer = real(RequestItems={"table": {**wanted, "Keys": wanted["Keys"][:-1]}})
        return {**answer, "UnprocessedKeys": {"table": {**wanted, "Keys": wanted["Keys"][-1:]}}}

    monkeypatch.setattr(table, "batch_get_item", busy)

    assert ledger.models_of(job_ids) == {job_ids[0]: M2M, job_ids[1]: M2M, job_ids[2]: None}

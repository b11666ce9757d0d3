"""Split: objects are put several at a time, items are created in order.

And every death leaves what the next resumes.

S3, table and queue are dictionaries here, so that a process can die at each of their calls.
"""

import gzip
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.read.index import RecordEntry, build_body, index_of
from functions.submit import read as turn
from functions.submit import stage as create_batches
from functions.submit import stage as staging
from shared.errors import StorageError
from shared.models import Status
from shared.pacing.budget import Free
from shared.staged_batch import StagedInfo, encode_index
from tests.support.doubles.splitting import RECORDS, SIZES, UPLOAD, Fake, place
from tests.support.examples import examples


@pytest.fixture(autouse=True)
def _blocks_of_a_few_records(monkeypatch):
    monkeypatch.setattr("functions.submit.read.RANGE_BYTES", 100)


def calls_of_a_run():
    fake = Fake()
    assert fake.run()
    fake.check_whole(SIZES)
    return len(fake.calls)


@pytest.mark.parametrize("mode", ["before", "after", "unanswered"])
def test_death_at_any_call_creates_same_batches(mode):
    for at in range(1, calls_of_a_run() + 1):
        fake = Fake()
        fake.strikes_at, fake.mode = at, mode
        fake.run()
        fake.check()
        fake.run_to_the_end()
        fake.check_whole(SIZES)


@given(
    deaths=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from(["before", "after", "unanswered"])),
        max_size=6,
    )
)
@examples(60)
def test_deaths_one_after_another_leave_same_batches(deaths):
    fake = Fake()
    for at, mode in deaths:
        fake.strikes_at, fake.mode = len(fake.calls) + at, mode
        fake.run()
        fake.check()
    fake.run_to_the_end()
    fake.check_whole(SIZES)


def test_objects_are_put_in_parallel_items_in_order():
    """The first object is there only after three others; no item is created before it."""
    fake = Fake()
    put, others = fake.put_if_absent, threading.Semaphore(0)
    created = []

    def slow_put(key, body, metadata):
        if key == "staging/job/00000000/request":
            for _ in range(3):
                assert others.acquire(timeout=60)
            assert fake.batches == {}
        written = put(key, body, metadata)
        others.release()
        return written

    create = fake.create_batch
    fake.put_if_absent = slow_put
    fake.create_batch = lambda batch: (created.append(batch.number), create(batch))[1]

    assert fake.run()

    assert created == sorted(created)
    fake.check_whole(SIZES)


@pytest.mark.parametrize(("limit", "most"), [("MAX_AHEAD", 2), ("MAX_BYTES_AHEAD", 150)])
def test_objects_put_ahead_are_bounded(monkeypatch, limit, most):
    """With nothing put until the first item waits for it, as many are cut as may be ahead.

    And one more.
    """
    monkeypatch.setattr(staging, limit, most)
    fake = Fake(most=1)
    put, may_put = fake.put_if_absent, threading.Event()
    settle = create_batches.settle

    def held_put(key, body, metadata):
        assert may_put.wait(timeout=60)
        return put(key, body, metadata)

    def first_settle(store, candidate):
        may_put.set()
        return settle(store, candidate)

    fake.put_if_absent = held_put
    monkeypatch.setattr(create_batches, "settle", first_settle)
    is_full, seen = staging._is_full, []
    monkeypatch.setattr(
        staging, "_is_full", lambda waiting: (seen.append(len(waiting)), is_full(waiting))[1]
    )

    assert fake.run()

    assert 2 <= max(seen) <= 4
    fake.check_whole([1] * len(RECORDS))


def foreign(begin, end):
    """An object as another version cut it: some records in one batch."""
    records = RECORDS[begin:end]
    body = build_body(records)
    rows = index_of(
        [RecordEntry(begin + number + 1, len(record)) for number, record in enumerate(records)]
    )
    held = StagedInfo(len(records), len(records), len(body), place(end), place(begin))
    return SimpleNamespace(body=body + encode_index(rows), metadata=held.metadata(), etag="foreign")


@given(
    there=st.dictionaries(
        st.integers(0, 8), st.tuples(st.integers(0, 20), st.integers(1, 3)), max_size=6
    ),
    at=st.integers(0, 60),
    mode=st.sampled_from(["before", "after", "unanswered"]),
)
@examples(150)
def test_objects_of_other_version_never_mix(there, at, mode):
    """Wherever they begin and end, and wherever the process dies.

    The batches cover the upload once.
    """
    fake = Fake()
    for number, (begin, records) in there.items():
        fake.objects[f"staging/job/{number:08d}/request"] = foreign(
            begin, min(begin + records, len(RECORDS))
        )
    fake.strikes_at, fake.mode = at, mode

    fake.run()
    fake.check()
    fake.run_to_the_end()

    fake.check_whole()


def test_object_with_our_start_counts():
    """Although it ends elsewhere."""
    fake = Fake()
    fake.objects["staging/job/00000001/request"] = foreign(1, 4)

    fake.run_to_the_end()

    fake.check_whole([1, 3, 1, 1, 2, 2, 2, 2, 4, 4, 1])


@pytest.mark.parametrize(("submits", "messages"), [(1, 12), (0, 1)], ids=["calls", "none"])
def test_message_is_sent_only_if_budget_has_call_for_it(submits, messages):
    """The first batch has a share of its own; the others are due at their slots."""
    fake = Fake()
    fake.services.budget.free = lambda _now: Free(100, submits, 90)
    fake.run()

    assert fake.messages == sorted(fake.batches)[:messages]
    waiting = [fake.batches[number] for number in sorted(fake.batches)[messages:]]
    assert all(one.due_at == one.created_at for one in waiting)


def test_batches_before_fault_are_sent_immediately():
    fake = Fake()
    read = fake.read_version

    def broken(key, version, etag, start, length):
        if start >= 100:
            raise StorageError("S3 broke off")
        return read(key, version, etag, start, length)

    fake.read_version = broken

    assert not fake.run()

    assert fake.messages == sorted(fake.batches)
    assert fake.messages


def test_ended_turn_has_item_for_each_object(monkeypatch):
    monkeypatch.setattr(turn, "TURN_SECONDS", -1.0)
    fake = Fake()

    assert fake.run()

    assert list(fake.batches) == ["00000000"]
    assert list(fake.objects) == ["staging/job/00000000/request"]
    fake.run_to_the_end()
    fake.check_whole(SIZES)


@pytest.mark.parametrize("packing", ["plain", "gzip"])
def test_status_is_written_every_ten_seconds(monkeypatch, packing):
    """Each batch takes six seconds here; of an archive the stored bytes count, as of any upload."""
    content = gzip.compress(UPLOAD, 0) if packing == "gzip" else UPLOAD
    fake = Fake()
    fake.job = replace(fake.job, plan=replace(fake.job.plan, packing=packing))
    fake.job = replace(
        fake.job, upload=replace(fake.job.upload, size=len(content)), status=Status(succeeded=3)
    )
    fake.read_version = lambda key, version, etag, start, length: content[start : start + length]
    create = fake.create_batch

    def slow_create(batch):
        fake.clock += 6
        return create(batch)

    fake.create_batch = slow_create

    assert fake.run()

    *while_split, when_read = fake.statuses
    assert (when_read["state"], when_read["splitting"]) == ("in_progress", None)
    told = [status["splitting"] for status in while_split]
    assert len(told) == len(SIZES) * 6 // 12
    assert [one["bytes"] for one in told] == [len(content)] * len(told)
    read = [one["bytes_read"] for one in told]
    assert read == sorted(read)
    assert 0 < read[0] < read[-1] <= len(content)
    assert all(status["counts"]["succeeded"] == 3 for status in fake.statuses)

"""Split: an upload on moto becomes batches, in turns; each goes on where the last one ended."""

import gzip
import json
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
from botocore.client import BaseClient

import shared.observability
from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint, SplitPlan
from dropbatch.core.read.index import RecordEntry, build_body, index_of
from dropbatch.errors import UploadRefused
from functions.submit import read as turns
from functions.submit import stage
from functions.submit.read import Turn, TurnOverError, lease_turn, take_turn
from shared import keys
from shared.aws.object_store import ObjectStore
from shared.errors import InvariantError, StorageError
from shared.ledger import Ledger
from shared.models import CANCEL, ErrorDetail, JobControl, Reading, Status, Upload
from shared.pacing.budget import Budget
from shared.pacing.wake import LeftDue
from shared.retry import MAX_CLAIMS
from shared.services import Invocation
from shared.staged_batch import StagedInfo, encode_index
from tests.support.aws.resources import client
from tests.support.doubles.ledger_items import JOB, OneItem, T

RECORDS = [json.dumps({"text": f"record {number}"}).encode() for number in range(23)]
UPLOAD = b"".join(record + b"\n" for record in RECORDS)
SIZES = [1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 3]
"""Records of the batches, which grow from 1 to 4."""
BROKEN = ErrorDetail("bad_options", "the first error")
OVER = JobControl("v", cancelled=CANCEL)
_ids = count(1)


def place(record):
    """Where a record begins."""
    return Checkpoint(sum(len(one) + 1 for one in RECORDS[:record]), record, record)


class Splitting:
    """A job whose upload is on moto, at a clock that a test moves; `slow` seconds pass a batch."""

    def __init__(self, dynamodb, content=UPLOAD, *, slow=0.0, **job):
        self.clock, self.slow, self.sent, self.left = T, slow, [], LeftDue()
        self.ledger, self.budget = Ledger(dynamodb, "table"), Budget(dynamodb, "table", 200)
        self.store, self.queues = ObjectStore(client("s3"), "bucket"), self
        self.id = f"20261121T093000Z-{next(_ids):08x}"
        key = job.pop("key", f"inbox/{self.id}.jsonl")
        etag = client("s3").put_object(Bucket="bucket", Key=key, Body=content)["ETag"].strip('"')
        plan = SplitPlan("@cf/a/b", 4, 9_500_000, "account", "jsonl", "plain", 0, 1)
        made = replace(
            JOB,
            job_id=self.id,
            plan=replace(plan, **job.pop("plan", {})),
            upload=Upload("bucket", key, "null", etag, len(content)),
        )
        self.item = OneItem(dynamodb, replace(made, **job))
        create = self.ledger.create_batch

        def slow_create(batch):
            self.clock += self.slow
            return create(batch)

        self.ledger.create_batch = slow_create

    def now(self):
        return self.clock

    def send(self, message):
        self.sent.append(message)

    @property
    def job(self):
        return self.ledger.job(self.id)

    def change(self, **values):
        """Set attributes of the job, as other processes would."""
        for name, value in values.items():
            self.item.change(name, value)

    @property
    def batches(self):
        return list(self.ledger.batches(self.id))

    @property
    def sizes(self):
        return [one.records.requests for one in self.batches]

    @property
    def end(self):
        """Records that were read, and the job's error; None while it is being read."""
        job = self.job
        error = job.error and job.error.code
        return None if job.state is JobState.SPLITTING else (job.total, error)

    def turn(self, seconds=150.0):
        """One turn, if the job is to be had."""
        if job := lease_turn(self, self.job):
            take_turn(Invocation(self, self.clock + seconds), job, stage.split)

    def check(self, records=RECORDS):
        """The batches are all these records, once and in order."""
        first = 0
        for number, one in enumerate(self.batches):
            assert (one.number, one.records.first_id) == (f"{number:08d}", first)
            first += one.records.requests
            held = self.store.get(keys.staged(self.id, one.number), 0, one.records.body_size)
            assert held == build_body(records[one.records.first_id : first])
            assert one.records.end == place(first)
        assert self.end == (first, None)
        assert first == len(records)


@pytest.fixture
def split(table):
    return lambda *given, **named: Splitting(table, *given, **named)


def test_upload_becomes_batches_that_grow(split):
    job = split()
    job.turn()
    job.check()
    assert job.sizes == SIZES
    assert len(job.sent) == len(SIZES)
    status = json.loads(job.store.get(f"results/{job.id}.jsonl/{job.id}/status.json"))
    assert (status["state"], status["counts"]["total"]) == ("in_progress", 23)


class DiedError(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("mode", ["before", "after"])
def test_death_at_any_call_creates_same_batches(split, monkeypatch, mode):
    real, records = BaseClient._make_api_call, RECORDS[:6]
    for at in count(1):
        calls = count(1)

        def call(*given, at=at, calls=calls):
            dies = next(calls) == at
            if dies and mode == "before":
                raise DiedError
            answer = real(*given)
            if dies:
                raise DiedError
            return answer

        job = split(b"\n".join(records))
        with monkeypatch.context() as dying:
            dying.setattr(BaseClient, "_make_api_call", call)
            try:
                job.turn()
            except DiedError:
                job.clock += 200  # Its lease ends.
        if next(calls) <= at:
            break
        job.turn()
        job.check(records)
        assert job.sizes == [1, 1, 1, 1, 2]
    assert at > 15


# ── turns ─────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("state", [JobState.IN_PROGRESS, JobState.FINALIZING, JobState.COMPLETED])
def test_upload_that_has_been_read_is_not_read_again(split, state):
    job = split(state=state)
    job.turn()
    assert job.batches == []


@pytest.mark.parametrize(("claims", "seconds"), [(0, 150.0), (19, 150.0), (20, 3_600.0)])
def test_turn_is_leased_while_function_may_run(split, claims, seconds):
    job = split(claims=claims)
    assert lease_turn(job, job.job).lease_until == T + seconds
    assert lease_turn(job, job.job) is None, "another run reads it"


@pytest.mark.parametrize(("claims", "wait"), [(0, 4.0), (18, 60.0), (19, None)])
def test_failed_turn_is_repeated_soon_at_first(split, claims, wait):
    """After many it keeps its lease: messages that come again must not use up its tries."""
    job = split(claims=claims)

    def fails(_job_id):
        raise StorageError("no answer")

    job.ledger.last_batch = fails
    with pytest.raises(StorageError):
        job.turn()
    after = job.job
    if wait is None:
        assert after.lease_until > T
    else:
        assert (after.lease_until, after.due_at, after.claims) == (0.0, T + wait, claims + 1)


@pytest.mark.parametrize(("claims", "stuck"), [(20, []), (21, ["StuckItems"])])
def test_job_whose_turns_keep_failing_is_counted(split, monkeypatch, claims, stuck):
    counted = []
    monkeypatch.setattr(shared.observability, "count", counted.append)
    split(claims=claims - 1).turn()
    assert counted == stuck


def test_each_turn_makes_at_least_a_batch(split, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", -1.0)
    job = split()
    job.turn()
    assert (job.sizes, job.end, job.job.due_at) == ([1], None, T)
    for _ in SIZES:
        job.turn()
    job.check()
    assert job.sizes == SIZES


@pytest.mark.parametrize(
    ("packing", "seconds", "lasts"),
    [("plain", 150.0, 60.0), ("plain", 89.0, 59.0), ("gzip", 150.0, 120.0)],
)
def test_turn_lasts_a_minute_and_for_an_archive_all_there_is(split, packing, seconds, lasts):
    job = split(plan={"packing": packing})
    turn = Turn(Invocation(job, T + seconds), job.job)
    turn.begin(Checkpoint())
    assert turn.ends == T + lasts


def turn_of(clock=T, left=0.0, begun=0, at=0, packing="plain", **job):
    services = SimpleNamespace(now=lambda: clock)
    made = replace(JOB, plan=replace(JOB.plan, packing=packing), **job)
    return Turn(Invocation(services, clock + left), made, None, T, place(begun), place(at))


@pytest.mark.parametrize(("clock", "cuts"), [(T - 1, 3), (T, 3), (T + 1, 1)])
def test_turn_takes_at_least_one_cut(clock, cuts):
    turn = turn_of(clock)
    taken = list(turn.cuts(iter([SimpleNamespace(end=place(number)) for number in (1, 2, 3)])))
    assert (len(taken), turn.place, turn.finished) == (cuts, place(cuts), cuts == 3)


def test_turn_over_while_unpacking_is_unfinished():
    def unpacked():
        yield SimpleNamespace(end=place(1))
        raise TurnOverError

    turn = turn_of()
    assert (len(list(turn.cuts(unpacked()))), turn.finished) == (1, False)
    turn_of(at=1).check(skipping=False)
    with pytest.raises(TurnOverError):
        turn_of(T + 1, at=1).check(skipping=False)


@pytest.mark.parametrize(("skipping", "wanted"), [(True, 45.0), (False, 30.0)])
@pytest.mark.parametrize(
    ("claims", "error"), [(0, StorageError), (2, StorageError), (3, UploadRefused)]
)
def test_archive_fails_after_three_turns_without_progress(skipping, wanted, claims, error):
    same = {"begun": 7, "at": 7, "claims": claims}
    turn_of(left=wanted + 0.1, packing="gzip", **same).check(skipping=skipping)
    with pytest.raises(error, match=f"after {place(7).offset} unpacked bytes"):
        turn_of(left=wanted, packing="gzip", **same).check(skipping=skipping)
    with pytest.raises(StorageError):
        turn_of(left=wanted, **same).check(skipping=skipping)


@pytest.mark.parametrize(
    ("packing", "code"), [("plain", "unknown_format"), ("gzip", "broken_archive")]
)
def test_content_without_batch_is_read_to_limit(monkeypatch, packing, code):
    monkeypatch.setattr("dropbatch.core.read.cut.MAX_BYTES_WITHOUT_BATCH", 10)
    turn = turn_of(packing=packing)
    assert list(turn.blocks(iter([b"12345", b"67890"]))) == [b"12345", b"67890"]
    with pytest.raises(UploadRefused) as caught:
        next(turn.blocks(iter([b"1"])))
    assert caught.value.code == code
    list(turn.cuts(iter([SimpleNamespace(end=place(1))])))
    assert list(turn.blocks(iter([b"1234567890"]))) == [b"1234567890"]


# ── what a turn renews and reports ────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("takes", "renewals"), [(5.0, 10), (4.9, 5), (0.0, 1)])
def test_lease_is_renewed_every_five_seconds_from_the_first_batch_on(split, takes, renewals):
    job, renewed = split(slow=takes, claims=2), []
    update = job.ledger.update_leased_job
    job.ledger.update_leased_job = lambda *given: renewed.append(given[1]) or update(*given)
    job.turn()
    assert len(renewed) == renewals
    until = T + takes + 45
    expected = {"lease_until": until, "due_at": until, "claims": 0, "wait": None}
    assert renewed[0] == {**expected, "reading": Reading(len(UPLOAD))}


def test_progress_never_decreases(split):
    job = split(reading=Reading(10_000))
    job.turn()
    assert job.job.reading.bytes_read == 10_000


def test_run_stops_after_losing_lease(split):
    job = split()
    job.ledger.update_leased_job = lambda *_: None
    job.turn()
    assert (job.sizes, job.end) == ([1], None)


@pytest.mark.parametrize("packing", ["plain", "gzip"])
@pytest.mark.parametrize(("takes", "written"), [(5.0, 5), (4.9, 2), (6.0, 5)])
def test_status_is_written_every_ten_seconds(split, monkeypatch, packing, takes, written):
    """It is looked at when the lease is renewed; of an archive the stored bytes count."""
    content = gzip.compress(UPLOAD, 0) if packing == "gzip" else UPLOAD
    monkeypatch.setattr("functions.submit.read.RANGE_BYTES", 100)
    told, status = [], Status(succeeded=3)
    monkeypatch.setattr(stage, "write_status", lambda _services, _job, told_: told.append(told_))
    split(content, slow=takes, plan={"packing": packing}, status=status).turn()
    *while_split, when_read = told
    assert (when_read["state"], when_read["splitting"]) == ("in_progress", None)
    assert len(while_split) == written
    assert {one["splitting"]["bytes"] for one in while_split} == {len(content)}
    read = [one["splitting"]["bytes_read"] for one in while_split]
    assert 0 < read[0] <= read[-1] <= len(content)
    assert all(one["counts"]["succeeded"] == 3 for one in told)


@pytest.mark.parametrize(("lease", "is_written"), [(T + 1, True), (T, False)])
def test_final_status_needs_lease(split, lease, is_written):
    job = split(RECORDS[0])
    leased = lease_turn(job, job.job)
    job.change(lease_until=lease)
    take_turn(Invocation(job, T + 150), replace(leased, lease_until=lease), stage.split)
    status = job.store.head(f"results/{job.id}.jsonl/{job.id}/status.json")
    assert (status is not None) is is_written


def test_lease_is_given_back_if_turn_cannot_end(split):
    """The renewed one; the job is due at once, and no claim is counted."""
    job = split()

    def fail(*_, **__):
        raise StorageError("no answer")

    job.ledger.end_split = fail
    with pytest.raises(StorageError):
        job.turn()
    assert (job.job.lease_until, job.job.claims) == (0.0, 0)


# ── how reading ends ──────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"claims": MAX_CLAIMS - 1}, (23, None)),
        ({"claims": MAX_CLAIMS}, (1, "internal")),
        ({"error": BROKEN}, (1, "bad_options")),
        ({"error": BROKEN, "claims": MAX_CLAIMS}, (1, "bad_options")),
        ({"control": OVER}, (1, None)),
    ],
    ids=["the last claim", "one claim more", "an error", "its first error stays", "cancelled"],
)
def test_stopped_job_ends_where_it_is(split, monkeypatch, changes, end):
    job = split()
    with monkeypatch.context() as first:
        first.setattr(turns, "TURN_SECONDS", -1.0)
        job.turn()
    job.change(**changes)
    job.turn()
    assert job.end == end
    assert sum(job.sizes) == end[0]


@pytest.mark.parametrize(
    ("changes", "error"), [({"control": OVER}, None), ({"error": BROKEN}, "bad_options")]
)
def test_job_stopped_while_split_ends(split, changes, error):
    job = split()
    create = job.ledger.create_batch
    job.ledger.create_batch = lambda batch: job.change(**changes) or create(batch)
    job.turn()
    assert job.end == (1, error)
    assert [type(one).__name__ for one in job.sent] == ["SubmitMessage", "VisitMessage"]


def test_command_that_came_before_job_is_obeyed(split):
    job = split()
    job.store.put(f"control/jobs/{job.id}", b"cancel", "text/plain")
    job.turn()
    assert job.end == (0, None)


def test_broken_upload_ends_after_batches_before(split, monkeypatch):
    monkeypatch.setattr(turns, "RANGE_BYTES", 100)
    job = split()
    read = job.store.read_version

    def gone(key, version, etag, start, length):
        if start >= 100:
            raise UploadRefused("source_gone", "it was removed")
        return read(key, version, etag, start, length)

    job.store.read_version = gone
    job.turn()
    total, error = job.end
    assert (error, total) == ("source_gone", sum(job.sizes))
    assert sum(hasattr(one, "number") for one in job.sent) == len(job.sizes) > 0


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"key": "inbox/" + "a" * 900}, (23, None)),
        ({"key": "inbox/" + "é" * 450 + "a"}, (0, "path_too_long")),
        ({"plan": {"model": ""}}, (0, "no_model")),
        ({"plan": {"model": "gpt-4"}}, (0, "bad_model")),
        ({"plan": {"model": "gpt-4"}, "content": b""}, (0, None)),
    ],
    ids=["900 bytes", "901", "no model", "a strange one", "of an empty upload"],
)
def test_what_is_refused_as_a_whole(split, changes, end):
    job = split(**changes)
    job.turn()
    assert job.end == end


def test_job_without_batch_begins_at_first_record(split):
    """After a byte order mark, or the header of a table."""
    job = split(plan={"start": place(2).offset, "start_line": 2})
    job.turn()
    assert job.batches[0].records.end == Checkpoint(place(3).offset, 3, 1)
    assert job.end == (21, None)


def test_last_batch_without_end_breaks_law(split, monkeypatch):
    monkeypatch.setattr(turns, "TURN_SECONDS", -1.0)
    job = split()
    job.turn()
    (last,) = job.batches
    job.ledger.last_batch = lambda _: replace(last, records=replace(last.records, end=None))
    with pytest.raises(InvariantError, match="00000000 has no end"):
        job.turn()


# ── objects ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("begin", "end", "sizes"),
    [(1, 4, [1, 3, 1, 1, 2, 2, 2, 2, 4, 4, 1]), (0, 2, SIZES), (2, 5, SIZES)],
)
def test_object_of_another_version_counts_if_it_begins_where_ours_does(split, begin, end, sizes):
    job = split()
    records = RECORDS[begin:end]
    entries = [RecordEntry(begin + at + 1, len(one)) for at, one in enumerate(records)]
    body = build_body(records)
    held = StagedInfo(len(records), len(records), len(body), place(end), place(begin))
    key = keys.staged(job.id, "00000001")
    job.store.put_if_absent(key, body + encode_index(index_of(entries)), held.metadata())
    job.turn()
    job.check()
    assert job.sizes == sizes


@pytest.mark.parametrize(("limit", "most"), [("MAX_AHEAD", 2), ("MAX_BYTES_AHEAD", 180)])
def test_objects_put_ahead_are_bounded(monkeypatch, limit, most):
    """With nothing put until the first item waits for it, as many are cut as may be ahead."""
    monkeypatch.setattr(stage, limit, most)
    waiting, is_full = [], stage._is_full
    monkeypatch.setattr(stage, "_is_full", lambda held: waiting.append(len(held)) or is_full(held))
    never = SimpleNamespace(submit=lambda *_: SimpleNamespace(done=lambda: False))
    cuts = (
        SimpleNamespace(
            body=b"x" * 50,
            originals=b"",
            rows=index_of([RecordEntry(1, 9)]),
            sendable=1,
            first_id=number,
            end=place(number + 1),
        )
        for number in range(20)
    )
    ahead = stage.put_ahead(None, never, "job", 0, place(0), cuts)
    assert [next(ahead).number for _ in range(3)] == [0, 1, 2]
    assert max(waiting) == 3


@pytest.mark.parametrize(("submits", "messages"), [(1, 11), (0, 1)], ids=["calls", "none"])
def test_message_is_sent_only_if_budget_has_call_for_it(split, submits, messages):
    """The first batch has a share of its own; the others are due at their slots."""
    job = split()
    job.budget = SimpleNamespace(
        burst=100, slot_seconds=0.6, free_calls=lambda _now: SimpleNamespace(submits=submits)
    )
    job.turn()
    assert sum(hasattr(one, "number") for one in job.sent) == messages
    assert all(one.due_at == one.created_at for one in job.batches[messages:])

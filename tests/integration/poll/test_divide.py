"""A batch is divided to isolate bad records: when, and what each piece stages."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint
from dropbatch.core.read.index import RecordIndex, build_body
from functions.poll.divide import MAX_PIECES, boundaries, give_up, isolate, pieces_of
from shared import keys
from shared.aws.object_store import ObjectStore
from shared.aws.queues import SUBMIT_GRACE_SECONDS
from shared.ledger import Ledger
from shared.models import BatchState, DueKind, ErrorDetail, Part, Submission
from shared.staged_batch import decode_index, encode_index
from tests.support.aws.resources import client
from tests.support.doubles.ledger_items import JOB, REASON, SPLIT, OneItem, T

RECORDS = [b'{"a":1}', b'{"b":22}', b"", b'{"c":333}', b'{"d":4}']
ORIGINALS = [b"one", b"second", b"3rd", b"4", b"fifth"]
NUMBER = "00000003"
BODY = build_body([record for record in RECORDS if record])
WRITTEN = b"".join(ORIGINALS)
ENDS = Checkpoint(1_000, 12, 5)
BATCH = replace(
    SPLIT,
    records=replace(
        SPLIT.records,
        first_id=7,
        requests=5,
        sendable=4,
        body_size=len(BODY),
        end=ENDS,
        originals_size=len(WRITTEN),
    ),
    number=NUMBER,
    created_at=T - 10,
    due_at=T + 90,
    pieces=2,
)
"""Five records, one of which cannot be sent."""


class Splitting:
    """The services of a division, as far as it uses them."""

    def __init__(self, dynamodb):
        self.ledger, self.store = Ledger(dynamodb, "table"), ObjectStore(client("s3"), "bucket")
        self.now, self.sent = lambda: T, []
        self.queues = SimpleNamespace(send_all=lambda *sent: self.sent.append(sent))

    def hold(self, *batches):
        """Have these batches, and no others."""
        for one in self.ledger.batches(JOB.job_id):
            key = {"pk": {"S": f"JOB#{JOB.job_id}"}, "sk": {"S": f"BATCH#{one.number}"}}
            self.ledger.client.delete_item(TableName="table", Key=key)
        for batch in batches:
            assert self.ledger.create_batch(batch)

    def pieces(self):
        return list(self.ledger.batches(JOB.job_id, prefix=f"{NUMBER}."))

    def batch(self):
        return self.ledger.batch(JOB.job_id, NUMBER)


@pytest.fixture
def splitting(table):
    made = Splitting(table)
    made.hold(BATCH)
    rows = RecordIndex(
        lengths=[len(record) for record in RECORDS], originals=[len(one) for one in ORIGINALS]
    )
    made.store.put(keys.staged(JOB.job_id, NUMBER), BODY + WRITTEN + encode_index(rows))
    return made


def test_piece_stages_its_records_as_sent(splitting):
    isolate(splitting, BATCH)

    found = []
    for piece in splitting.pieces():
        content = splitting.store.get(keys.staged(JOB.job_id, piece.number))
        index = decode_index(content[piece.index_offset :])
        found.append(
            (
                content[: piece.records.body_size],
                content[piece.records.body_size : piece.index_offset],
                len(index),
            )
        )
    assert found == [
        (b'{"requests":[{"a":1},{"b":22}]}', b"onesecond3rd", 3),
        (b'{"requests":[{"c":333},{"d":4}]}', b"4fifth", 2),
    ]


def test_pieces_are_batches_of_their_own(splitting):
    isolate(splitting, BATCH)

    pieces = splitting.pieces()
    assert [
        (
            one.number,
            one.records.first_id,
            one.records.requests,
            one.records.sendable,
            one.records.end,
        )
        for one in pieces
    ] == [(f"{NUMBER}.0", 7, 3, 2, None), (f"{NUMBER}.1", 10, 2, 2, ENDS)]
    for piece in pieces:
        assert (piece.state, piece.work, piece.cause) == (BatchState.READY, DueKind.SUBMIT, "")
        assert piece.records.suspected == BATCH.cause
    assert splitting.batch().state is BatchState.DIVIDED


def test_piece_has_message_and_due_time(splitting):
    isolate(splitting, BATCH)

    assert [one.due_at for one in splitting.pieces()] == [T + SUBMIT_GRACE_SECONDS] * 2
    (((first, last),),) = splitting.sent
    assert [first.number, last.number] == [f"{NUMBER}.0", f"{NUMBER}.1"]


def test_partly_carried_out_split_is_completed(splitting):
    isolate(splitting, BATCH)
    first, last = splitting.pieces()
    splitting.hold(BATCH, last)

    assert isolate(splitting, BATCH) is None

    assert splitting.pieces() == [first, last]
    assert splitting.batch().state is BatchState.DIVIDED


def test_batch_that_could_not_be_split_ends(splitting):
    give_up(splitting, BATCH)

    found = splitting.batch()
    why = "because the batch could not be divided (see the poll function's log)"
    assert found.ending == ErrorDetail("rejected", f"Not sent alone, {why}: the reason")
    assert (found.state, found.pieces) == (BatchState.READY, 0)


def test_batch_with_piece_does_not_end_too(splitting):
    splitting.hold(BATCH, replace(BATCH, number=f"{NUMBER}.1"))

    give_up(splitting, BATCH)

    assert splitting.batch().state is BatchState.DIVIDED
    assert splitting.batch().ending is None


UNDECIDED = replace(BATCH, pieces=0)
ALONE = replace(
    BATCH,
    records=replace(BATCH.records, requests=1, sendable=1),
    state=BatchState.DONE,
    isolating=None,
    pieces=0,
    cause="5006",
    ending=REASON,
    due_at=None,
)


def alone(count, cause="5006"):
    """Records that failed alone."""
    return [
        replace(ALONE, number=f"{place:08d}.0.0", cause=cause, job_id=JOB.job_id)
        for place in range(100, 100 + count)
    ]


def piece(number, **changes):
    waiting = {"state": BatchState.READY, "isolating": None, "pieces": 0, "cause": ""}
    return replace(BATCH, number=number, **waiting | changes)


@pytest.fixture
def deciding(splitting):
    """The job is there, and nothing of its division."""
    OneItem(splitting.ledger.client, replace(JOB, state=JobState.IN_PROGRESS))
    return splitting


DONE_WELL = {"state": BatchState.DONE, "part": Part("key", 1, 0, 0, 0, succeeded=1, failed=0)}
TAKEN = {"state": BatchState.QUEUED, "submission": Submission("id", 1, T)}
DECIDED = {
    "nothing else": ([], "divided"),
    "63 failed alone": (alone(63), "divided"),
    "64 failed alone": (alone(64), "rest refused"),
    "64 failed alone, with another code": (alone(64, "3030"), "divided"),
    "64 failed alone, one accepted": ([*alone(64), piece("00000999.0", **TAKEN)], "divided"),
    "64 failed alone, one answered": ([*alone(64), piece("00000999.0", **DONE_WELL)], "divided"),
    "98 pieces in vain": ([piece("00000900", state=BatchState.DIVIDED, pieces=98)], "rest refused"),
    "98 pieces, one accepted": (
        [piece("00000900", state=BatchState.DIVIDED, pieces=98), piece("00000900.0", **TAKEN)],
        "divided",
    ),
    "2,000 pieces": (
        [piece("00000900", state=BatchState.DIVIDED, pieces=1_999), piece("00000900.0", **TAKEN)],
        "ended",
    ),
    "a smaller one waits": ([piece(f"{NUMBER}.0")], "waits"),
    "one before it waits": ([piece("00000000", isolating=REASON)], "waits"),
    "one after it waits": ([piece("00000999", isolating=REASON)], "divided"),
    "one is being divided": ([piece("00000999", pieces=2)], "waits"),
}


@pytest.mark.parametrize("name", DECIDED)
def test_decision_follows_from_what_was_tried(deciding, name):
    others, follows = DECIDED[name]
    batch = replace(UNDECIDED, cause="5006")
    deciding.hold(batch, *others)

    ended = isolate(deciding, batch)

    found, job = deciding.batch(), deciding.ledger.job(JOB.job_id)
    if follows == "divided":
        assert found.state is BatchState.DIVIDED
    elif follows == "waits":
        assert (found.state, found.pieces, found.due_at > T) == (BatchState.READY, 0, True)
    else:
        assert ended.ending.code == "rejected"
        assert ended.ending.message.startswith("Not sent alone, because")
    assert (job.refused is not None) == (follows == "rest refused")


@pytest.mark.parametrize(
    ("before", "age", "seconds"),
    [(1, 10, 5), (3, 10, 15), (1, 640, 20), (61, 10, 300), (1, 86_400, 300)],
)
def test_batch_looks_the_later_the_more_come_before_it(deciding, before, age, seconds):
    batch = replace(UNDECIDED, created_at=T - age)
    deciding.hold(batch, *(piece(f"{NUMBER}.0.{place:x}") for place in range(before)))

    assert isolate(deciding, batch) is None

    assert deciding.batch().due_at == T + seconds


@pytest.mark.parametrize(
    ("records", "pieces"),
    [(2, 2), (16, 16), (17, 2), (256, 16), (257, 2), (5_000, 2), (7_600, 2), (65_536, 16)],
)
def test_pieces_become_single_records_at_sixteen(records, pieces):
    assert pieces_of(records) == pieces


@given(st.lists(st.booleans(), min_size=2, max_size=60).filter(lambda sent: sum(sent) > 1))
def test_pieces_tile_batch_evenly(sent):
    rows = RecordIndex(lengths=[int(one) for one in sent])
    pieces = min(sum(sent), MAX_PIECES)

    found = boundaries(rows, pieces)

    assert len(found) == pieces
    assert [begin for begin, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == len(sent)
    held = [sum(sent[begin:end]) for begin, end in found]
    assert min(held) >= 1
    assert max(held) - min(held) <= 1

"""The pieces of a batch that is split to isolate bad records.

What each stages, and when its turn comes.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dropbatch.core.plan import Checkpoint
from dropbatch.core.read.index import RecordIndex, build_body
from functions.poll.divide import give_up, isolate
from shared import keys
from shared.aws.object_store import ObjectStore
from shared.aws.queues import SUBMIT_GRACE_SECONDS
from shared.ledger import Ledger
from shared.models import BatchState, DueKind, ErrorDetail
from shared.staged_batch import decode_index, encode_index
from tests.support.aws.resources import client
from tests.support.doubles.ledger_items import JOB, SPLIT, T

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
    """The services of a split, as far as it uses them; turns of pieces are a second apart."""

    def __init__(self, dynamodb):
        self.ledger, self.store = Ledger(dynamodb, "table"), ObjectStore(client("s3"), "bucket")
        self.now, self.sent = lambda: T, []
        self.budget = SimpleNamespace(slot_seconds=1.0)
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
    assert [(one.number, one.first_id, one.requests, one.sendable, one.end) for one in pieces] == [
        (f"{NUMBER}.0", 7, 3, 2, None),
        (f"{NUMBER}.1", 10, 2, 2, ENDS),
    ]
    for piece in pieces:
        assert (piece.state, piece.work, piece.cause) == (BatchState.READY, DueKind.SUBMIT, "")
    assert splitting.batch().state is BatchState.DIVIDED


def test_piece_has_message_and_due_time(splitting):
    isolate(splitting, BATCH)

    assert [one.due_at for one in splitting.pieces()] == [
        T + SUBMIT_GRACE_SECONDS,
        T + 1 + SUBMIT_GRACE_SECONDS,
    ]
    ((messages, delays),) = splitting.sent
    assert [message.number for message in messages] == [f"{NUMBER}.0", f"{NUMBER}.1"]
    assert delays == [0, 1]


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
    assert found.ending == ErrorDetail("rejected", f"Not tried alone, {why}: the reason")
    assert (found.state, found.pieces) == (BatchState.READY, 0)


def test_batch_with_piece_does_not_end_too(splitting):
    splitting.hold(BATCH, replace(BATCH, number=f"{NUMBER}.1"))

    give_up(splitting, BATCH)

    assert splitting.batch().state is BatchState.DIVIDED
    assert splitting.batch().ending is None

"""Long stretches of blank lines in an upload that is not packed.

Turns end among them, and none reads them again.
"""

from dataclasses import replace
from itertools import pairwise

import pytest

from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint
from dropbatch.core.read import cut
from functions.submit import read as stream
from functions.submit import read as turn
from functions.submit import stage as split
from shared.errors import StorageError
from shared.models import Reading
from shared.services import Invocation
from tests.support.doubles.splitting import RECORDS, Fake

BLANK = 4_000
FEW, REST = RECORDS[:3], RECORDS[3:]
UPLOAD = (
    b"".join(record + b"\n" for record in FEW)
    + b"\n" * BLANK
    + b"".join(record + b"\n" for record in REST)
)


@pytest.fixture
def blank(monkeypatch):
    """A job whose upload has blank lines after its third record.

    Each read of 100 bytes takes ten seconds.
    """
    monkeypatch.setattr(cut, "MAX_BLANK_BYTES", 200)
    monkeypatch.setattr(stream, "RANGE_BYTES", 100)
    fake = Fake()
    fake.reads = []

    def read(key, version, etag, start, length):
        def effect():
            fake.clock += 10
            fake.reads.append(start)
            return UPLOAD[start : start + length]

        return fake._call("read", effect)

    fake.read_version = read
    fake.check = lambda: None  # it knows an upload without blank lines
    fake.job = replace(fake.job, upload=replace(fake.job.upload, size=len(UPLOAD)))
    return fake


def check_whole(fake):
    """Each record is in one batch, at its line; a batch ends before the blank lines."""
    ends = [batch.records.end for _, batch in sorted(fake.batches.items())]
    assert [fake.job.total, ends[-1].record] == [len(RECORDS)] * 2
    assert [end.line for end in ends] == [
        end.record + (BLANK if end.record > len(FEW) else 0) for end in ends
    ]
    assert len(FEW) in [end.record for end in ends]
    first = 0
    for _, batch in sorted(fake.batches.items()):
        assert batch.records.first_id == first
        first += batch.records.requests


def test_turn_ends_and_resumes_among_blank_lines(blank):
    turns = reads = 0
    while blank.job.state is JobState.SPLITTING:
        before, begun = blank.job.reading.blank_until, blank.clock
        blank.reads.clear()
        assert blank.run()
        turns += 1
        reads += len(blank.reads)
        assert blank.clock - begun <= turn.TURN_SECONDS + 40
        assert blank.reads[0] == (before.offset if before else 0)

    assert turns >= BLANK // 100 * 10 // (turn.TURN_SECONDS + 40)
    assert reads < 1.5 * len(UPLOAD) / 100, "blank lines are read about once"
    check_whole(blank)


def test_lease_is_renewed_among_blank_lines(blank):
    renewed = []
    renew = blank.update_leased_job
    blank.update_leased_job = lambda job, changes: (
        renewed.append((blank.clock, changes)) or renew(job, changes)
    )

    blank.run()

    times = [at for at, _ in renewed]
    assert len(times) > 1
    assert max(later - earlier for earlier, later in pairwise(times)) < split.LEASE_RENEWAL_SECONDS
    assert blank.job.reading.blank_until.record == len(FEW)
    assert blank.job.reading.blank_until.offset > blank.batches["00000002"].records.end.offset


@pytest.mark.parametrize("mode", ["before", "after", "lost"])
@pytest.mark.parametrize("at", range(1, 120, 7))
def test_death_at_any_call_loses_no_record(blank, at, mode):
    blank.strikes_at, blank.mode = at, mode

    for _ in range(60):
        blank.run()
        if blank.job.state is not JobState.SPLITTING:
            break

    assert len(blank.calls) > at
    check_whole(blank)


@pytest.mark.parametrize(
    ("until", "begins"),
    [
        (Checkpoint(500, 400, 1), 500),
        (Checkpoint(500, 400, 2), 21),
        (Checkpoint(500, 400, 0), 21),
        (Checkpoint(10, 1, 1), 21),
        (None, 21),
    ],
    ids=[
        "after its batch",
        "ahead of the batches",
        "of an earlier batch",
        "before its end",
        "none",
    ],
)
def test_place_counts_only_after_batch_it_follows(blank, until, begins):
    blank.run()
    del blank.calls[:], blank.reads[:]
    for number in list(blank.batches)[1:]:
        del blank.batches[number], blank.objects[f"staging/job/{number}/request"]
    assert blank.batches["00000000"].records.end.offset == 21
    blank.job = replace(blank.job, reading=Reading(blank_until=until))

    blank.run()

    assert blank.reads[0] == begins


def test_objects_put_before_checkpoint_are_used(blank):
    """Their beginning is the end of the batch before them, wherever reading began."""
    while blank.job.state is JobState.SPLITTING:
        blank.run()

    begins = [one.metadata["begin"] for _, one in sorted(blank.objects.items())]
    ends = [
        "0,0,0",
        *(
            ",".join(map(str, (b.records.end.offset, b.records.end.line, b.records.end.record)))
            for b in blank.batches.values()
        ),
    ]
    assert begins == ends[: len(begins)]
    assert "replace" not in blank.calls


@pytest.mark.parametrize("claims", [0, 3, 19])
def test_turn_that_s3_gives_nothing_to_is_tried_again(blank, claims):
    """An upload that is not packed never ends because reading is slow."""
    job = replace(blank.job, claims=claims)
    with pytest.raises(StorageError):
        turn.Turn(Invocation(blank.services, blank.clock + 30.0), job).check(skipping=False)

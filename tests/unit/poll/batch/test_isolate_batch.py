"""How a batch is split, and what the pieces of one say of the others."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.read.index import RecordIndex
from functions.poll.divide import (
    MAX_PIECES,
    SCOUT_SECONDS,
    all_failed_alike,
    boundaries,
)
from shared.models import BatchState, ErrorDetail, Submission
from tests.support.doubles.ledger_items import BATCH, REASON

SCOUT = replace(BATCH, state=BatchState.DIVIDED, cause="5006", pieces=2, completed_at=1_000.0)
ALIKE = replace(
    BATCH,
    records=replace(BATCH.records, sendable=1),
    number="00000000.0",
    state=BatchState.DONE,
    cause="5006",
    ending=REASON,
)
NOW = 1_010.0


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


@pytest.mark.parametrize("pieces", range(2, 17))
def test_piece_numbers_sort_like_records(pieces):
    numbers = ["00000000", *(f"00000000.{piece:x}" for piece in range(pieces)), "00000001"]
    deeper = [numbers[1], f"{numbers[1]}.0", f"{numbers[1]}.f", *numbers[2:]]
    assert numbers == sorted(numbers)
    assert deeper == sorted(deeper)


@pytest.mark.parametrize(
    ("scout", "other", "alike"),
    [
        ({}, {}, True),
        (
            {},
            {"state": BatchState.READY, "ending": None, "isolating": ErrorDetail("rejected", "")},
            True,
        ),
        ({}, {"state": BatchState.DIVIDED, "ending": None, "pieces": 2}, True),
        ({}, {"cause": "5004"}, False),
        (
            {},
            {
                "cause": "5004",
                "state": BatchState.READY,
                "ending": None,
                "isolating": ErrorDetail("rejected", ""),
            },
            False,
        ),
        ({}, {"cause": "", "ending": None}, False),
        ({}, {"cause": "", "state": BatchState.READY, "ending": ErrorDetail("expired", "")}, False),
        ({}, {"cause": "", "state": BatchState.READY, "ending": None}, None),
        ({}, {"cause": "", "state": BatchState.SUBMITTING, "ending": None}, None),
        ({}, {"cause": "", "state": BatchState.READY, "ending": None, "answered": ("raw",)}, False),
        (
            {},
            {
                "cause": "",
                "state": BatchState.QUEUED,
                "ending": None,
                "submissions": (Submission("i", 1, 1.0),),
            },
            False,
        ),
        (
            {"submissions": (Submission("i", 1, 1.0),)},
            {
                "cause": "",
                "state": BatchState.QUEUED,
                "ending": None,
                "submissions": (Submission("i", 1, 1.0),),
            },
            None,
        ),
        ({"completed_at": NOW - SCOUT_SECONDS - 1}, {}, False),
        ({"state": BatchState.READY, "pieces": 0, "completed_at": None}, None, None),
        ({"state": BatchState.READY, "completed_at": None}, None, None),
        ({"state": BatchState.DONE, "pieces": 0}, None, False),
        (
            {
                "state": BatchState.READY,
                "pieces": 0,
                "completed_at": None,
                "ending": ErrorDetail("rejected", ""),
            },
            None,
            False,
        ),
    ],
)
def test_what_pieces_of_batch_show(scout, other, alike):
    """One piece failed for the batch's cause; the other is as given, or does not exist."""
    pieces = [ALIKE] if other is None else [ALIKE, replace(ALIKE, number="00000000.1", **other)]
    assert all_failed_alike(replace(SCOUT, **scout), pieces, NOW) is alike


def test_batch_that_was_not_split_shows_nothing():
    assert all_failed_alike(None, [], NOW) is False
    assert (
        all_failed_alike(
            replace(SCOUT, state=BatchState.READY, pieces=0, completed_at=None), [], NOW
        )
        is None
    )

"""How long an item waits that is claimed again and again without progress."""

import pytest

from shared import observability
from shared.observability import report_stuck
from shared.retry import MAX_CLAIMS, claim_seconds


@pytest.mark.parametrize(
    ("others", "usual", "waits"),
    [
        (0, 30, 30),
        (0, 900, 180),
        (9, 900, 180),
        (10, 900, 900),
        (19, 900, 900),
        (20, 900, 3_600),
        (20, 30, 3_600),
        (MAX_CLAIMS, 30, 3_600),
    ],
)
def test_claims_wait_3_minutes_to_an_hour(others, usual, waits):
    assert claim_seconds(others, usual) == waits


@pytest.mark.parametrize(
    ("others", "is_reported"), [(1, False), (20, False), (21, True), (MAX_CLAIMS, True)]
)
def test_item_is_stuck_after_twenty_claims(monkeypatch, others, is_reported):
    counted = []
    monkeypatch.setattr(observability, "count", counted.append)

    report_stuck(others, "job", "00000000")

    assert counted == (["StuckItems"] if is_reported else [])

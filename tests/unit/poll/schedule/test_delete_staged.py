"""The clean-up of a job that cannot even be claimed.

When it is tried again, and when it is given up.
"""

from types import SimpleNamespace

import pytest

from functions.poll.schedule.delete_staged import delete_staged
from shared.claims import MAX_CLAIMS
from shared.ledger import DueEntry
from tests.support.doubles.ledger_items import JOB, T

DUE = DueEntry(JOB.job_id, "", T)


@pytest.fixture
def written():
    """What is written of a job that was claimed so often and whose item cannot be read now."""

    def run(claims):
        writes = []
        ledger = SimpleNamespace(
            due=lambda *_: ([DUE], None),
            job=lambda job_id: 1 / 0,
            claims_of=lambda due: claims,
            set_aside=lambda due, counted, at: writes.append((counted, at - T)),
            forget_cleanup=lambda due: writes.append("given up"),
        )
        delete_staged(SimpleNamespace(ledger=ledger, now=lambda: T), T + 60)
        return writes

    return run


@pytest.mark.parametrize(
    ("claims", "counted", "seconds"),
    [(0, 1, 180.0), (19, 20, 180.0), (20, 21, 3_600.0), (MAX_CLAIMS - 1, MAX_CLAIMS, 3_600.0)],
)
def test_job_that_cannot_be_claimed_is_tried_again_later(written, claims, counted, seconds):
    assert written(claims) == [(counted, seconds)]


def test_job_that_cannot_be_claimed_is_given_up_after_last_claim(written):
    assert written(MAX_CLAIMS) == ["given up"]

"""Which batches a visit makes due whose job has a limit: those that what it has just stored gives room."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dropbatch.core.cost_limit import Spent
from functions.poll.schedule.spending import release
from tests.support.doubles.ledger_items import BATCH, JOB, T

LIMIT, EACH = 1_000, 100
BEFORE = replace(JOB, max_cost=LIMIT, spent=Spent())
WAITING = tuple(
    replace(BATCH, number=f"{place:08}", estimate=EACH, estimated_before=place * EACH) for place in range(10)
)


@pytest.fixture
def released():
    """The numbers of the batches that are made due by a visit that stores what was spent."""

    def run(**spent):
        due = []
        ledger = SimpleNamespace(postpone=lambda batch, at: due.append((batch.number, at)))
        services = SimpleNamespace(ledger=ledger, now=lambda: T)
        release(services, BEFORE, replace(BEFORE, spent=Spent(**spent)), WAITING)
        assert {at for _, at in due} <= {T}
        return [int(number) for number, _ in due]

    return run


def test_batches_that_now_fit_are_due(released):
    """Before anything was known, half of the limit was room: those had it already, and are left alone."""
    assert released(amount=100, settled=200, measured=200, records=400) == [5, 6, 7, 8, 9]


def test_batches_that_still_do_not_fit_are_left_alone(released):
    assert released(amount=900, settled=100, measured=100, records=400) == []


def test_batches_that_fit_before_are_left_alone(released):
    assert released() == []

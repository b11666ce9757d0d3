"""What a visit finds that a job with a limit has spent.

And which batches it makes due that this gives room.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dropbatch.core.cost_limit import Spent
from functions.poll.schedule.spending import release, spending
from shared.models import BatchState, ErrorDetail, Part, Submission, Usage
from tests.support.doubles.ledger_items import BATCH, JOB, T

LIMIT, EACH = 1_000, 100
BEFORE = replace(JOB, max_cost=LIMIT, spent=Spent())
WAITING = tuple(
    replace(BATCH, number=f"{place:08}", estimate=EACH, estimated_before=place * EACH)
    for place in range(10)
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
    """Before anything was known, half of the limit was room.

    Those had it already, and are left alone.
    """
    assert released(amount=100, settled=200, measured=200, records=400) == [5, 6, 7, 8, 9]


def test_batches_that_still_do_not_fit_are_left_alone(released):
    assert released(amount=900, settled=100, measured=100, records=400) == []


def test_batches_that_fit_before_are_left_alone(released):
    assert released() == []


# ── what is spent ─────────────────────────────────────────────────────────────────────────────────

HOUR = 3_600.0
PRICE = 342
"""Billionths of a dollar for a token of the model, read or written."""
SENT = replace(BATCH, body_size=4_000, requests=10, sendable=10, estimate=1_000_000)
ANSWERED = replace(
    SENT,
    state=BatchState.DONE,
    submissions=(Submission("a", 1, T),),
    part=Part("key", 1, 0, 0, 0, 10, 0, Usage(prompt_tokens=500, completion_tokens=500)),
)
"""Costs $0.000342."""


def found(*batches, max_cost=10_000_000):
    """What a visit of a job with these batches stores."""
    ledger = SimpleNamespace(batches=lambda *_, **__: iter(batches), batch=lambda *_: None)
    settings = SimpleNamespace(batch_deadline_hours=1)
    services = SimpleNamespace(
        ledger=ledger, now=lambda: T + HOUR / 2, day_limit=None, settings=settings
    )
    return spending(services, replace(JOB, max_cost=max_cost)).told


def test_records_that_cannot_be_sent_tell_nothing_of_cost():
    """Nine of ten records have no estimate, so what was answered is all that was estimated."""
    part = replace(ANSWERED.part, failed=90)

    spent = found(replace(ANSWERED, requests=100, part=part))["spent"]

    assert spent == Spent(1_000 * PRICE, 1_000_000, 1_000_000, 10)


def test_batch_that_is_sent_again_costs_as_the_answers_once_more():
    again = replace(
        SENT, number="00000001", submissions=(Submission("b", 1, T), Submission("c", 2, T))
    )

    spent = found(ANSWERED, again)["spent"]

    assert (spent.amount, spent.answered) == (2_000 * PRICE, 1_000 * PRICE)


def test_submit_that_may_have_been_taken_counts_while_batch_is_open():
    spent = found(ANSWERED, replace(SENT, number="00000001", state=BatchState.READY, unknowable=2))[
        "spent"
    ]

    assert (spent.amount, spent.answered) == (2_000 * PRICE, 1_000 * PRICE)


def test_what_is_sent_again_before_any_answer_counts_as_long_as_it_may_be_and_ends_no_job():
    again = replace(SENT, submissions=(Submission("b", 1, T), Submission("c", 2, T)))

    told = found(again, max_cost=900_000)

    assert told == {"spent": Spent(1_000_000, vain=1_000_000), "cost_reached": False}


def test_batch_that_was_accepted_and_divided_is_spent():
    divided = replace(
        SENT, state=BatchState.DIVIDED, submissions=(Submission("b", 1, T),), cause="3030", pieces=2
    )

    spent = found(ANSWERED, divided)["spent"]

    assert spent == Spent(3_000 * PRICE, 1_000_000, 1_000_000, 10, 2_000 * PRICE)


def test_limit_is_reached_only_when_no_answer_is_outstanding():
    """The first batch waits again; the other's answer may give it room."""
    waiting, sent = (
        replace(SENT, state=BatchState.READY),
        replace(SENT, submissions=(Submission("b", 1, T),)),
    )
    ended = replace(waiting, ending=ErrorDetail("expired", "late"))

    assert found(waiting, max_cost=900_000)["cost_reached"]
    assert not found(waiting, sent, max_cost=900_000)["cost_reached"]
    assert not found(waiting, ended, max_cost=900_000)["cost_reached"]


def test_overdue_batch_for_which_nothing_is_left_ends_its_job():
    """It is polled for ever otherwise: it may not be submitted again."""
    late = replace(
        SENT, submissions=(Submission("b", 1, T - 2 * HOUR), Submission("c", 2, T - HOUR))
    )

    assert found(late, max_cost=1_500_000)["cost_reached"]
    assert not found(replace(late, submissions=(Submission("b", 1, T),)), max_cost=900_000)[
        "cost_reached"
    ]

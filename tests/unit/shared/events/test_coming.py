"""When the events of a model count as coming: nineteen of twenty answers had one.

One that is overdue ends it.
"""

import pytest

from shared.events.coming import Answer, Record
from tests.support.doubles.ledger_items import T

HOUR, DAY = 3_600.0, 86_400.0
LATER = T + 60
"""After the queue was pulled."""


def answers(told, untold=0, at=T):
    return (*[Answer(at, told=True)] * told, *[Answer(at, told=False)] * untold)


@pytest.mark.parametrize(
    ("told", "untold", "come"),
    [
        (0, 0, False),
        (2, 0, False),
        (3, 0, True),
        (3, 1, False),
        (18, 1, False),
        (19, 1, True),
        (18, 2, False),
    ],
)
def test_nineteen_of_twenty_answers_have_an_event(told, untold, come):
    assert Record(answers(told, untold)).come(LATER, LATER) is come


@pytest.mark.parametrize(("pulled_in", "come"), [(0, True), (10, True), (11, False)])
def test_answer_counts_against_once_queue_was_pulled(pulled_in, come):
    """An event is late ten seconds after the poll; whether it is there, only a pull says."""
    assert Record(answers(3, 1)).come(T + pulled_in, T + 500) is come


def test_overdue_event_puts_model_aside():
    record = Record(answers(20) + answers(0, 1, T + 5))
    assert record.overdue(T + 15) == 0.0
    assert record.overdue(T + 16) == T + 5
    aside = record.put_aside(T + 5, T + 20)
    assert (aside.aside_until, aside.come(LATER, LATER)) == (T + 20 + HOUR, False)


def test_answers_since_then_decide_afterwards():
    aside = Record(answers(20), overdue_at=T + 5, aside_until=T + HOUR, aside_seconds=HOUR)
    assert not aside.come(T + HOUR, T + HOUR)
    back = Record(answers(3, at=T + 6), T + 5, T + HOUR, HOUR)
    assert not back.come(T + HOUR, T + HOUR - 1)
    assert back.come(T + HOUR, T + HOUR)


def test_answer_without_event_while_aside_is_not_overdue():
    """Nobody waited for it."""
    record = Record(answers(0, 1, T + 5), overdue_at=T, aside_until=T + HOUR, aside_seconds=HOUR)
    assert record.overdue(T + DAY) == 0.0


def test_repeated_failure_lasts_longer():
    record, at, lasts = Record(), T, []
    for _ in range(7):
        record = record.put_aside(at, at)
        lasts.append(record.aside_seconds / HOUR)
        at = record.aside_until + 60
    assert lasts == [1, 2, 4, 8, 16, 24, 24]
    assert record.put_aside(at + DAY, at + DAY).aside_seconds == HOUR

"""Events of a tick: when it pulls them, and how many of the batches that they name it polls."""

from dataclasses import replace

import pytest

from functions.poll.schedule import tick
from functions.poll.schedule.pull_events import Pulled
from shared.ledger import DueEntry
from shared.models import DueKind
from shared.pacing.room import Free
from tests.support.doubles.ledger_items import BATCH, JOB, READY, T
from tests.support.doubles.tick_parts import ONE_CYCLE, SMALL


@pytest.fixture
def told(parts, monkeypatch):
    """For each pull of a tick, the batches that it tells of.

    What is left of them was not pulled.
    """
    told = [[]]
    parts.services.events = object()
    monkeypatch.setattr(tick, "watch_events_control", lambda _services, **_is_idle: None)
    monkeypatch.setattr(tick, "begin_chain", lambda _services: None)
    monkeypatch.setattr(tick, "pull_events", lambda _services, _free: Pulled(told.pop()))
    return told


@pytest.mark.parametrize(
    ("batch", "polls_paused", "is_pulled"),
    [
        (BATCH, False, True),
        (replace(BATCH, due_at=T + 900), False, True),
        (replace(READY, work=DueKind.FIRST), False, False),
        (BATCH, True, False),
    ],
    ids=["its poll is due", "its poll is due later", "it is not submitted", "no poll is permitted"],
)
def test_tick_pulls_while_polls_may_follow(parts, told, batch, polls_paused, is_pulled):
    parts.budget.available = Free(polls=9, paused=polls_paused, polls_paused=polls_paused)
    parts.ledger.add(replace(SMALL, due_at=None), batch)

    parts.run(ONE_CYCLE)

    assert told == ([] if is_pulled else [[]])


@pytest.mark.parametrize(("free", "calls"), [(2, 9), (9, 2)], ids=["of now", "until the next tick"])
def test_batches_told_of_come_first_and_share_calls_with_others(parts, told, free, calls):
    parts.budget.available, parts.budget.calls = Free(polls=free), calls
    parts.ledger.add(
        replace(SMALL, due_at=None), *(replace(BATCH, number=f"{each:08d}") for each in range(4))
    )
    told[0].append(DueEntry(JOB.job_id, "00000003", T))

    parts.run(ONE_CYCLE)

    assert sorted(parts.polled) == ["00000000", "00000003"]

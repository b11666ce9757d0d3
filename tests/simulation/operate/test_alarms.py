"""The template's alarms in simulated time.

Raised while their cause lasts, not after, and not without.
"""

from functools import partial

import pytest

from local.workers_ai import Fault
from tests.simulation.operate import year
from tests.simulation.operate.alarms import Alarm, Cause
from tests.simulation.operate.year import HOUR, Event
from tests.simulation.worlds.world import START

HOURS = 1 / 24
OUTAGE = (
    Event(
        1 * HOURS,
        partial(year.inject, Fault(kind="html", times=0), size=3_000),
        "PausedAlarm",
        2.2 * HOURS,
    ),
    Event(1 * HOURS, year.nothing, "AmbiguousSubmitsAlarm", 2.2 * HOURS),
    Event(2 * HOURS, year.recover),
)
UNREACHABLE = (
    Event(1 * HOURS, partial(year.inject, Fault(kind="refuse", times=0))),
    Event(2 * HOURS, year.nothing, "StuckItemsAlarm", 3.6 * HOURS),
    Event(3 * HOURS, year.recover),
)
TOKEN = (
    Event(1 * HOURS, year.revoke_token, "PausedAlarm", 2.2 * HOURS),
    Event(2 * HOURS, year.replace_token),
)
QUOTA = (
    Event(
        1 * HOURS,
        partial(year.inject, Fault(kind="3036", on="submit", times=0)),
        "PausedAlarm",
        4.7 * HOURS,
    ),
    Event(4 * HOURS, year.recover),
)
UNKNOWN = (
    Event(
        1 * HOURS,
        partial(year.inject, Fault(kind="accept_then_reset")),
        "AmbiguousSubmitsAlarm",
        1.5 * HOURS,
    ),
)
PENDING = (
    Event(0.5 * HOURS, partial(year.inject, Fault(kind="stuck", seconds=8 * HOUR))),
    Event(6.5 * HOURS, year.nothing, "OldestPendingAlarm", 9 * HOURS),
)
NO_CREDITS = (
    Event(
        1 * HOURS,
        partial(year.inject, Fault(kind="2021", on="submit", times=0)),
        "PausedAlarm",
        2.4 * HOURS,
    ),
    Event(2 * HOURS, year.recover),
)
REFUSED_POLLS = (
    Event(1 * HOURS, partial(year.inject, Fault(kind="424242", on="poll", status=402, times=0))),
    Event(2 * HOURS, year.nothing, "StuckItemsAlarm", 3.6 * HOURS),
    Event(3 * HOURS, year.recover),
)
OTHERS = (
    Event(1 * HOURS, year.change_account),
    Event(2 * HOURS, year.change_limits),
    Event(3 * HOURS, partial(year.command, "pause")),
    Event(4 * HOURS, partial(year.command, "run")),
)


@pytest.mark.parametrize(
    ("events", "hours"),
    [
        pytest.param(OUTAGE, 4, id="outage"),
        pytest.param(UNREACHABLE, 5, id="no connection", marks=pytest.mark.slow),
        pytest.param(TOKEN, 4, id="token"),
        pytest.param(UNKNOWN, 3, id="unknown outcome"),
        pytest.param(REFUSED_POLLS, 5, id="refused polls"),
        pytest.param(NO_CREDITS, 4, id="no credits", marks=pytest.mark.slow),
        pytest.param(QUOTA, 6, id="quota", marks=pytest.mark.slow),
        pytest.param(PENDING, 10, id="pending", marks=pytest.mark.slow),
        pytest.param(OTHERS, 5, id="no alarm", marks=pytest.mark.slow),
    ],
)
def test_raised_while_the_cause_lasts(events, hours):
    found = year.play(hours * HOURS, events)

    raised = {name for name, one in found.alarms.alarms.items() if one.raised}
    assert found.laws.violations == []
    assert raised == {one.alarm for one in events if one.alarm}


def test_an_alarm_that_is_missing_or_lasts_is_detected():
    found = year.play(2 * HOURS, (OUTAGE[0],))
    found.laws.violations.clear()
    found.alarms.judge(
        found.laws,
        [
            Cause("StuckItemsAlarm", START, START + HOUR),
            Cause("PausedAlarm", START + HOUR / 2, START + HOUR * 0.6),
        ],
    )
    assert sorted((one.law, one.detail.partition(":")[0]) for one in found.laws.violations) == [
        ("an alarm is raised while its cause lasts", "StuckItemsAlarm"),
        ("no alarm is raised without its cause, or long after it", "AmbiguousSubmitsAlarm"),
        ("no alarm is raised without its cause, or long after it", "PausedAlarm"),
    ]


def test_periods_in_a_row():
    alarm = Alarm("Outage", "Outage", "", "Sum", 300, 3, 0.0, below=False)
    for place, value in enumerate([1, 1, 0, 1, 1, 1, 1, None, 1]):
        if value is not None:
            alarm.measure(value)
        alarm.evaluate(300.0 * place)

    assert alarm.raised == [(1500.0, 2100.0)]


def test_missing_ticks_are_below_the_threshold():
    alarm = Alarm("NoTick", "Ticks", "", "Sum", 60, 5, 1.0, below=True)
    for place in range(6):
        alarm.evaluate(60.0 * place)

    assert alarm.raised == [(240.0, None)]

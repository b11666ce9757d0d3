"""The template's alarms in simulated time: raised while their cause lasts, and only then."""

from dataclasses import dataclass
from functools import partial

import pytest

from local.workers_ai import Behaviour, Fault
from simulation.services.awkward import Awkward
from tests.simulation.operate.alarms import Alarm, Alarms, Cause
from tests.simulation.worlds.judges import Ending, Laws
from tests.simulation.worlds.users import MODELS, drop
from tests.simulation.worlds.world import FINAL, START, simulated

HOUR = 3_600.0
AWKWARD = Awkward(
    index_lag_seconds=3.0, delivered_twice=0.05, answered_late=0.005, notified_twice=0.05
)
"""What AWS does on a usual day."""
OTHER_ACCOUNT = "fedcba9876543210fedcba9876543210"


@dataclass(frozen=True)
class Event:
    """What happens after so many hours; the alarm that it must raise, and until when."""

    at: float
    act: object
    alarm: str = ""
    ends: float = 0.0


class Stack:
    """A stack on which users drop files."""

    def __init__(self, world):
        self.world, self.laws, self.open, self.number = world, Laws(world), [], 0
        self.ending, self.alarms = Ending(self.laws), Alarms(world)

    def drop(self, size, *, may_fail=False):
        model = MODELS[self.number % 2]
        self.open.append(drop(self.world, f"{self.number}.jsonl", size, model, may_fail=may_fail))
        self.number += 1

    def judge_ended(self):
        for one in list(self.open):
            item = self.world.job(one.upload)
            if item is not None and item["state"]["S"] in FINAL:
                self.ending.judge_results(one, item)
                self.open.remove(one)


def nothing(_stack):
    """Time passes."""


def recover(stack):
    stack.world.api.clear_faults()


def revoke_token(stack):
    stack.world.api.switch(tokens=("second-token",))
    stack.drop(5)


def replace_token(stack):
    stack.world.token = "second-token"


def command(word, stack):
    stack.world.command("stack", word)


def change_account(stack):
    """Two jobs are under way when the stack gets another account; one more begins there."""
    stack.drop(40, may_fail=True)
    stack.drop(3, may_fail=True)
    stack.world.run(20)
    stack.world.redeploy(CLOUDFLARE_ACCOUNT_ID=OTHER_ACCOUNT)
    stack.drop(5)


def change_limits(stack):
    """The stack gets other limits while a job is under way."""
    stack.drop(60)
    stack.world.run(10)
    stack.world.redeploy(API_CALLS_PER_MINUTE=20, MAX_REQUESTS_PER_BATCH=10)
    stack.drop(60)


def inject(fault, stack, size=2):
    stack.world.inject(fault)
    stack.drop(size, may_fail=True)


def play(hours, events):
    """Play the events; everything is over after so many hours."""
    behaviour = Behaviour(
        embedder="hash", latency=120.0, latency_kind="lognormal", latency_spread=0.8
    )
    with simulated(1, AWKWARD, behaviour) as world:
        stack = Stack(world)
        for at, act in [*((one.at, one.act) for one in events), (hours, nothing)]:
            if at < hours or act is nothing:
                world.run(max(START + at * HOUR - world.kernel.now, 0.0))
                stack.judge_ended()
                act(stack)
        for one in stack.open:
            stack.laws.broken("everything ends", one.upload.key)
        stack.ending.judge_bill()
        causes = [
            Cause(one.alarm, START + one.at * HOUR, START + one.ends * HOUR)
            for one in events
            if one.alarm and one.at < hours
        ]
        stack.alarms.judge(stack.laws, causes)
        return stack


OUTAGE = (
    Event(1, partial(inject, Fault(kind="html", times=0), size=3_000), "PausedAlarm", 2.2),
    Event(1, nothing, "AmbiguousSubmitsAlarm", 2.2),
    Event(2, recover),
)
UNREACHABLE = (
    Event(1, partial(inject, Fault(kind="refuse", times=0))),
    Event(2, nothing, "StuckItemsAlarm", 3.6),
    Event(3, recover),
)
TOKEN = (Event(1, revoke_token, "PausedAlarm", 2.2), Event(2, replace_token))
QUOTA = (
    Event(1, partial(inject, Fault(kind="3036", on="submit", times=0)), "PausedAlarm", 4.7),
    Event(4, recover),
)
UNKNOWN = (
    Event(1, partial(inject, Fault(kind="accept_then_reset")), "AmbiguousSubmitsAlarm", 1.5),
)
PENDING = (
    Event(0.5, partial(inject, Fault(kind="stuck", seconds=8 * HOUR))),
    Event(6.5, nothing, "OldestPendingAlarm", 9),
)
NO_CREDITS = (
    Event(1, partial(inject, Fault(kind="2021", on="submit", times=0)), "PausedAlarm", 2.4),
    Event(2, recover),
)
REFUSED_POLLS = (
    Event(1, partial(inject, Fault(kind="424242", on="poll", status=402, times=0))),
    Event(2, nothing, "StuckItemsAlarm", 3.6),
    Event(3, recover),
)
OTHERS = (
    Event(1, change_account),
    Event(2, change_limits),
    Event(3, partial(command, "pause")),
    Event(4, partial(command, "run")),
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
    found = play(hours, events)

    raised = {name for name, one in found.alarms.alarms.items() if one.raised}
    assert found.laws.violations == []
    assert raised == {one.alarm for one in events if one.alarm}


def test_an_alarm_that_is_missing_or_lasts_is_detected():
    found = play(2, (OUTAGE[0],))
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


@pytest.mark.parametrize(
    ("values", "raised"),
    [([1, 1, 0, 1, 1, 1, 1, None, 1], [(1500.0, 2100.0)]), ([0, 2, 2, 2], [(900.0, None)])],
)
def test_alarm_is_raised_after_periods_in_a_row(values, raised):
    alarm = Alarm("Outage", "Outage", "", "Sum", 300, 3, 0.0, below=False)
    for place, value in enumerate(values):
        if value is not None:
            alarm.measure(value)
        alarm.evaluate(300.0 * place)

    assert alarm.raised == raised

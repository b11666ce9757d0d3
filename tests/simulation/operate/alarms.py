"""The template's alarms in simulated time, and the judge of when they are raised.

Each alarm is evaluated at the end of each of its periods, as CloudWatch does: its metric's values
of the period, as one statistic, against its threshold, for so many periods in a row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from local.template import template

if TYPE_CHECKING:
    from tests.simulation.worlds.judges import Laws
    from tests.simulation.worlds.world import World

SAMPLE_SECONDS = 60.0
"""How often queues and functions are measured."""
RAISED_LATE_SECONDS = 3_600.0
"""An alarm is raised at most this long after its cause begins."""
LOWERED_LATE_SECONDS = 1_200.0
"""And lowered at most this long after it: one evaluation of up to 15 minutes, and a tick."""


@dataclass(slots=True)
class Alarm:
    """An alarm of the template, and when it was raised.

    Attributes:
        source: logical name of its queue or function; empty if the functions' own metric.
        statistic: `Sum` or `Maximum`.
        below: whether values below the threshold are bad; then a period without values is too.
        raised: pairs of Unix seconds; the last one's end is None while it is raised.
    """

    name: str
    metric: str
    source: str
    statistic: str
    period: int
    periods: int
    threshold: float
    below: bool
    raised: list[tuple[float, float | None]] = field(default_factory=list)
    bad: int = 0
    """Periods in a row that were bad."""
    value: float | None = None
    """Of the running period."""

    def measure(self, value: float) -> None:
        """Add a value to the running period."""
        if self.value is None:
            self.value = value
        else:
            self.value = self.value + value if self.statistic == "Sum" else max(self.value, value)

    def evaluate(self, now: float) -> None:
        """End the running period."""
        if self.value is None:
            is_bad = self.below
        else:
            is_bad = self.value < self.threshold if self.below else self.value > self.threshold
        self.value = None
        self.bad = self.bad + 1 if is_bad else 0
        if self.bad == self.periods:
            self.raised.append((now, None))
        elif not is_bad and self.raised and self.raised[-1][1] is None:
            self.raised[-1] = self.raised[-1][0], now


@dataclass(frozen=True, slots=True)
class Cause:
    """What must raise an alarm, and from when until when it lasts, Unix seconds."""

    alarm: str
    begins: float
    ends: float


class Alarms:
    """All alarms of the template that are made with its defaults, in a world."""

    def __init__(self, world: World) -> None:
        """Begin to measure."""
        self.world = world
        self.alarms = {
            one.name: one for one in map(_alarm, *zip(*_described().items(), strict=True))
        }
        self._of_metric: dict[str, list[Alarm]] = {}
        for one in self.alarms.values():
            if not one.source:
                self._of_metric.setdefault(one.metric, []).append(one)
            world.kernel.at(world.began + one.period, partial(self._evaluate, one))
        self._counted: dict[str, float] = {}
        world.measured.append(self._measure)
        world.kernel.at(world.began + SAMPLE_SECONDS / 2, self._sample)

    def _measure(self, name: str, value: float) -> None:
        for one in self._of_metric.get(name, ()):
            one.measure(value)

    def _evaluate(self, alarm: Alarm) -> None:
        alarm.evaluate(self.world.kernel.now)
        self.world.kernel.at(self.world.kernel.now + alarm.period, partial(self._evaluate, alarm))

    def _sample(self) -> None:
        for one in self.alarms.values():
            if one.source.endswith("Function"):
                function = self.world.functions[one.source]
                total = (
                    len(function.errors) + function.deaths
                    if one.metric == "Errors"
                    else function.throttles
                )
                one.measure(total - self._counted.get(one.name, 0))
                self._counted[one.name] = total
            elif one.source.endswith("DeadLetterQueue"):
                queue = self.world.sqs.queues.get(one.source.replace("DeadLetter", ""))
                one.measure(len(queue.dead) if queue else 0)
            elif one.source:
                messages = self.world.sqs.queues[one.source].messages
                oldest = next(iter(messages.values()), None)
                one.measure(self.world.kernel.now - oldest.sent_at if oldest else 0)
        self.world.kernel.at(self.world.kernel.now + SAMPLE_SECONDS, self._sample)

    def judge(self, laws: Laws, causes: list[Cause]) -> None:
        """Judge that each alarm was raised in time for each of its causes, not long after it."""
        for one in self.alarms.values():
            own = [cause for cause in causes if cause.alarm == one.name]
            spans = [
                (begin, self.world.kernel.now if end is None else end) for begin, end in one.raised
            ]
            for cause in own:
                latest = cause.begins + RAISED_LATE_SECONDS + one.period * one.periods
                if not any(begin <= latest and end > cause.begins for begin, end in spans):
                    laws.broken(
                        "an alarm is raised while its cause lasts",
                        f"{one.name}: {_at(self.world, cause)}",
                    )
            for begin, end in spans:
                if not any(
                    cause.begins <= begin <= cause.ends + LOWERED_LATE_SECONDS
                    and end <= cause.ends + LOWERED_LATE_SECONDS + one.period
                    for cause in own
                ):
                    told = _at(self.world, Cause(one.name, begin, end))
                    laws.broken(
                        "no alarm is raised without its cause, or long after it",
                        f"{one.name}: {told}",
                    )


def _at(world: World, cause: Cause) -> str:
    return (
        f"days {(cause.begins - world.began) / 86_400:.3f} to "
        f"{(cause.ends - world.began) / 86_400:.3f}"
    )


def _described() -> dict[str, dict[str, Any]]:
    """The alarms that exist with the template's defaults."""
    return {
        name: one["Properties"]
        for name, one in template()["Resources"].items()
        if one["Type"] == "AWS::CloudWatch::Alarm" and "Condition" not in one
    }


def _alarm(name: str, described: dict[str, Any]) -> Alarm:
    (dimension,) = described["Dimensions"]
    source = "" if dimension["Name"] == "service" else _logical_name(dimension["Value"])
    return Alarm(
        name,
        described["MetricName"],
        source,
        described["Statistic"],
        described["Period"],
        described["EvaluationPeriods"],
        float(described["Threshold"]),
        described["ComparisonOperator"] == "LessThanThreshold",
    )


def _logical_name(value: dict[str, Any]) -> str:
    """The resource in a Ref or GetAtt."""
    ((_, named),) = value.items()
    return str(named[0] if isinstance(named, list) else named.partition(".")[0])

"""Wakes the poll function for work that an invocation leaves due before the next tick.

Between two ticks nobody runs, because waiting is billed: what is due would wait for the next tick,
up to a minute. So each invocation notes what it leaves due without a message on its way. At its end
it plans one wake-up, at the earliest of these times: a delayed message, which runs cycles as a tick
does until there is nothing to do for a while.

One control item says from when until when somebody looks at what is due: the tick that runs, or the
wake-up that is planned or runs. Whoever finds its time in it sends nothing, so a thousand batches
send one message. Who looks is replaced in one write by the wake-up that it plans, and looks once
more after it. Each tick replaces the item. So a lost message, or a function that dies, delays work
to the next tick and no further. Only whoever lifts a pause replaces another who looks now: that one
may be asleep between two cycles.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from shared.aws.attribute_values import attribute
from shared.aws.dynamodb import ConditionFailedError, Table
from shared.models import DueKind
from shared.pacing.breaker import control_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

TICK_EVERY_SECONDS = 60.0
"""Seconds between the starts of two ticks, at the schedule that the template sets."""
LOOKED_SECONDS = 52.0
"""Seconds for which one wake-up stands at most."""
MIN_GAIN_SECONDS = 5.0
"""Seconds before the next tick from which on nobody is woken."""
MIN_GAIN_AT_ONCE_SECONDS = 2.0
"""The same if what is due has waited long enough.

The first submit after a pause follows within five seconds.
"""
LATE_SECONDS = 10.0
"""Seconds after which a tick that has not come is not waited for."""
WOKEN_FOR = frozenset({DueKind.FIRST, DueKind.SUBMIT, DueKind.POLL, DueKind.JOB})
"""Kinds of work that move a job on; routine visits and cleanup wait for a tick."""

_KEY = control_key("RATE#OUTSTANDING")


class LeftDue:
    """When each item is due that an invocation has written.

    And that no message is on its way for.
    """

    def __init__(self) -> None:
        """Begin with nothing that is due."""
        self._times: dict[tuple[str, str], float] = {}

    def note(self, item: Mapping[str, Any], changed: Collection[str]) -> None:
        """Note an item of the ledger as it was just written, in wire form.

        If the write named its due time.
        """
        if "due_at" not in changed:
            return
        key = item["pk"]["S"], item["sk"]["S"]
        if "due_at" in item and "work" in item and DueKind(item["work"]["S"]) in WOKEN_FOR:
            self._times[key] = float(item["due_at"]["N"])
        else:
            self._times.pop(key, None)

    def add(self, job_id: str, number: str, at: float) -> None:
        """Note an item that was set aside until a time, Unix seconds.

        An empty number is the job itself.
        """
        self._times[_key_of(job_id, number)] = at

    def cover(self, job_id: str, number: str = "") -> None:
        """A message for this item is on its way, or those for its batches are."""
        self._times.pop(_key_of(job_id, number), None)

    def look(self, at: float) -> None:
        """Somebody has to look at a time, Unix seconds, although no item is due."""
        self._times["", ""] = min(at, self._times.get(("", ""), math.inf))

    def note_postponed(self, job_id: str, number: str, at: float) -> None:
        """Nobody has to look at a batch before this time, Unix seconds, although it is due."""
        if (key := _key_of(job_id, number)) in self._times:
            self._times[key] = at

    def earliest(self) -> float:
        """When somebody has to look at the first of them, Unix seconds.

        Infinite if nobody has to.
        """
        return min(self._times.values(), default=math.inf)

    def forget(self) -> None:
        """Somebody looks at all of them."""
        self._times.clear()


def _key_of(job_id: str, number: str) -> tuple[str, str]:
    return f"JOB#{job_id}", f"BATCH#{number}" if number else "META"


class Wakes(Table):
    """The control item that says who looks at what is due, and until when."""

    def plan(
        self, at: float, now: float, *, at_once: bool = False, instead_of: float | None = None
    ) -> int | None:
        """Plan a wake-up, unless somebody will look soon after that time anyway.

        Args:
            at: when something is due, Unix seconds.
            now: Unix seconds.
            at_once: whether it takes the place of whoever looks now, who may be asleep for seconds.
            instead_of: since when the caller looks, whose place it takes.

        Returns:
            The time of the wake-up, for which the caller sends the message; None if none is needed.
        """
        planned = math.ceil(max(at, now))
        gain = MIN_GAIN_AT_ONCE_SECONDS if at_once else MIN_GAIN_SECONDS
        nobody_looks = (
            "attribute_not_exists(watched_from) OR watched_from > :at OR watched_until < :at"
        )
        no_tick_comes = (
            "(attribute_not_exists(ticked_at) OR ticked_at < :gone OR ticked_at > :before)"
        )
        values = {
            ":at": planned,
            ":until": planned + LOOKED_SECONDS,
            ":gone": now - TICK_EVERY_SECONDS - LATE_SECONDS,
            ":before": planned - TICK_EVERY_SECONDS + gain,
        }
        if instead_of is not None:
            nobody_looks, values = (
                f"{nobody_looks} OR watched_from = :own",
                {**values, ":own": instead_of},
            )
        try:
            self.call(
                "update_item",
                Key=_KEY,
                UpdateExpression="SET watched_from = :at, watched_until = :until",
                ConditionExpression=no_tick_comes
                if at_once
                else f"{no_tick_comes} AND ({nobody_looks})",
                ExpressionAttributeValues={
                    name: attribute(value) for name, value in values.items()
                },
            )
        except ConditionFailedError:
            return None
        return planned

    def begin(self, planned: int, now: float) -> float | None:
        """Until when a wake-up looks, Unix seconds.

        None if a tick or an earlier wake-up has taken its place.
        """
        item = self.get(_KEY) or {}
        if item.get("watched_from") != attribute(planned) or now > float(
            item["watched_until"]["N"]
        ):
            return None
        next_tick = float(item.get("ticked_at", {}).get("N", "0")) + TICK_EVERY_SECONDS
        return min(next_tick, now + LOOKED_SECONDS) if next_tick > now else now + LOOKED_SECONDS

    def end(self, watched_from: float, now: float) -> None:
        """Note that whoever has looked since `watched_from` looks no longer.

        If nobody has taken its place.
        """
        with suppress(ConditionFailedError):
            self.call(
                "update_item",
                Key=_KEY,
                UpdateExpression="SET watched_until = :now",
                ConditionExpression="watched_from = :from",
                ExpressionAttributeValues={
                    ":now": attribute(now),
                    ":from": attribute(watched_from),
                },
            )

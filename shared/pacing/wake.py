"""Wakes the poll function for what an invocation leaves due before the next tick.

The promise: what is due is done at its time though waiting is billed and ticks are a minute apart.
Each invocation notes what it leaves due. At its end it plans one wake-up, at the earliest of these
times: a delayed message, which runs cycles as a tick does until nothing is due for some seconds.

One control item says from when until when somebody looks at what is due: the tick that runs, or the
wake-up that is planned or runs. Whoever finds its time in it sends nothing, so a thousand batches
send one message. Whoever looks puts the wake-up that it plans in its own place, in one write. What
others noted before that write woke nobody, so it looks once more. Each tick replaces the item. So a
lost message, or a function that dies, delays work to the next tick and no further. Only whoever
lifts a pause replaces another who looks now: that one may be asleep between two cycles.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from shared.aws.attribute_values import attribute
from shared.aws.dynamodb import Table
from shared.aws.queues import WakeMessage
from shared.errors import StorageError
from shared.models import DueKind
from shared.observability import logger
from shared.pacing.breaker import control_key

if TYPE_CHECKING:
    from shared.services import Services

TICK_EVERY = 60.0  # Seconds between the starts of two ticks, at the schedule that the template sets
LOOKED_FOR = 52.0  # Seconds for which one wake-up stands at most
MIN_GAIN = 1.0  # Seconds before the next tick from which on nobody is woken
TICK_LATE = 10.0  # Seconds after which a tick that has not come is not waited for
WOKEN_FOR = frozenset({DueKind.FIRST, DueKind.SUBMIT, DueKind.POLL, DueKind.JOB})
"""Kinds of work that move a job on; what only shows or cleans up waits for a tick."""

_KEY = control_key("RATE#OUTSTANDING")


class LeftDue:
    """When each item is due that an invocation has written, and no message is on its way for."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], float] = {}

    def note(self, item: Mapping[str, Any], changed: Collection[str]) -> None:
        """Note an item of the ledger as it was just written, if the write named its due time."""
        if "due_at" not in changed:
            return
        key = item["pk"]["S"], item["sk"]["S"]
        if "due_at" in item and "work" in item and DueKind(item["work"]["S"]) in WOKEN_FOR:
            self._times[key] = float(item["due_at"]["N"])
        else:
            self._times.pop(key, None)

    def look(self, at: float, job_id: str = "", number: str = "") -> None:
        """Somebody has to look at a time, Unix seconds: at this item, or at whatever is due."""
        key = _key_of(job_id, number)
        self._times[key] = at if job_id else min(at, self._times.get(key, math.inf))

    def cover(self, job_id: str, number: str = "") -> None:
        """A message for this item is on its way, or those for its batches are."""
        self._times.pop(_key_of(job_id, number), None)

    def earliest(self) -> float:
        """When somebody has to look at the first of them, Unix seconds; infinite for never."""
        return min(self._times.values(), default=math.inf)

    def forget(self) -> None:
        """All of them are looked at."""
        self._times.clear()


def _key_of(job_id: str, number: str) -> tuple[str, str]:
    return f"JOB#{job_id}", f"BATCH#{number}" if number else "META"


def wake(
    services: Services, at: float, *, at_once: bool = False, instead_of: float | None = None
) -> int | None:
    """Have the poll function look at what is due at a time, unless it will; return that time.

    `at_once`: even if somebody looks then who may be asleep; `instead_of`: since when the caller,
    who ends now, has looked, as the control item says.
    """
    now = services.now()
    if not services.queues.can_wake:
        return None
    try:
        planned = services.wakes.plan(at, now, at_once=at_once, instead_of=instead_of)
        if planned is not None:
            services.queues.send(WakeMessage(planned), delay=math.floor(at - now))
    except StorageError as error:
        logger.warning("next tick not anticipated", reason=str(error))
        return None
    return planned


class Wakes(Table):
    """The control item that says who looks at what is due, and until when."""

    def plan(
        self, at: float, now: float, *, at_once: bool = False, instead_of: float | None = None
    ) -> int | None:
        """Plan a wake-up, unless somebody will look soon after that time anyway; see `wake`."""
        at = max(at, now)
        planned = math.floor(at)  # Whoever is woken early waits.
        values = {"from": planned, "until": planned + LOOKED_FOR}
        condition = "(attribute_not_exists(ticked_at) OR ticked_at < :gone OR ticked_at > :before)"
        values |= {"gone": now - TICK_EVERY - TICK_LATE, "before": at - TICK_EVERY + MIN_GAIN}
        if not at_once:
            nobody = (
                "attribute_not_exists(watched_from) OR watched_from > :at OR watched_until < :at"
            )
            values["at"] = at
            if instead_of is not None:
                nobody += " OR watched_from = :own"
                values["own"] = instead_of
            condition += f" AND ({nobody})"
        update = "SET watched_from = :from, watched_until = :until"
        return planned if self.change_if(_KEY, update, condition, values) else None

    def begin(self, planned: int, now: float) -> float | None:
        """Until when a wake-up looks, Unix seconds; None if another has taken its place."""
        item = self.get(_KEY) or {}
        is_own = item.get("watched_from") == attribute(planned)
        # Of one that cannot be read the tick does the work, and replaces it.
        if not is_own or now > float(item.get("watched_until", {}).get("N", "0")):
            return None
        next_tick = float(item.get("ticked_at", {}).get("N", "0")) + TICK_EVERY
        return min(next_tick, now + LOOKED_FOR) if next_tick > now else now + LOOKED_FOR

    def end(self, watched_from: float, now: float) -> None:
        """Note that whoever has looked since `watched_from` looks no longer."""
        values = {"now": now, "from": watched_from}  # Unless somebody has taken its place.
        self.change_if(_KEY, "SET watched_until = :now", "watched_from = :from", values)

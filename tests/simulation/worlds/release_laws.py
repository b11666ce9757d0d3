"""Law of what waits for the end of a pause.

Once it is lifted, the first submit follows at once, and all are due soon.

It is judged where nothing else delays a submit: no call fails, all clocks agree, and at most one
process dies or is held up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.names import CONTROL_PK
from simulation.services.awkward import Awkward
from tests.support.aws.wire_items import number, submissions

if TYPE_CHECKING:
    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.worlds.judges import Laws

FIRST_SECONDS, DUE_SECONDS = 5.0, 60.0
"""Seconds after a pause is lifted until the first submit."""
RELEASED = "what waited is submitted as soon as a pause is lifted"
CALM = (
    *("death", "throttled", "answered_late", "index_lag_seconds"),
    *("clock_behind_seconds", "unprocessed"),
)


class ReleaseLaws:
    """Judges what follows when a pause of the stack's account is deleted."""

    def __init__(self, laws: Laws, burst: int) -> None:
        """Watch the world of these laws; `burst` is the number of calls in a full bucket."""
        self.laws, self.world, self.burst = laws, laws.world, burst
        self.submitted_at = 0.0
        """When a submit began last."""
        awkward = self.world.calls.awkward
        if all(getattr(awkward, name) == getattr(Awkward(), name) for name in CALM):
            self.world.dynamodb.watchers.append(self._watch)

    def _watch(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        now = self.world.kernel.now
        if self.world.calls.disturbances > 1:
            return  # One may be who lifts the pause, the other who submits then.
        if key[1].startswith("BATCH#") and new is not None and new["state"]["S"] == "submitting":
            self.submitted_at = now
        is_lifted = key == (CONTROL_PK, "PAUSE") and old is not None and new is None
        was_held = number(old, "held_since") > 0 == number(new, "held_since")
        if is_lifted or (key == (CONTROL_PK, "STACK") and was_held):
            items = self.world.dynamodb.items.items()
            waiting = {one: item for one, item in items if self._waits(one, item)}
            # Whoever lifts it may be what was held up.
            first = now + FIRST_SECONDS + sum(self.world.calls.held_up.values())
            self.world.kernel.at(first, lambda: self._judge_first(now, waiting))
            self.world.kernel.at(now + DUE_SECONDS, lambda: self._judge_due(now, waiting))

    def _waits(self, key: Key, item: Wire) -> bool:
        """Whether a batch was never refused, has no later slot, and may be submitted."""
        if not key[1].startswith("BATCH#") or item["state"]["S"] != "ready" or submissions(item):
            return False
        has_later_slot = number(item, "ordinal") >= self.burst // 2
        if has_later_slot or {"ending", "isolating", "held"} & item.keys():
            return False
        job = self.world.dynamodb.items.get((key[0], "META"))
        if job is None or key[0] in self.world.dynamodb.unwatched:
            return False
        model = job["plan"]["M"]["model"]["S"]
        return not (
            (CONTROL_PK, f"PAUSE#{model}") in self.world.dynamodb.items
            or number(item, "unknowable")
            or number(item, "refusals")
            or {"control", "error", "deadline_at"} & job.keys()
        )

    def _still(self, waiting: dict[Key, Wire]) -> dict[Key, Wire]:
        """Those that still wait, if nothing stops submits now."""
        items, now = self.world.dynamodb.items, self.world.kernel.now
        rate = items.get((CONTROL_PK, "RATE"), {})
        has_no_token = number(rate, "filled_at") / 1_000 > now or number(rate, "hold_until") > now
        is_held = number(items.get((CONTROL_PK, "STACK")), "held_since") > 0
        waits = any(sk.startswith("PAUSE") for pk, sk in items if pk == CONTROL_PK)
        is_full = "full_models" in items.get((CONTROL_PK, "RATE#OUTSTANDING"), {})
        if has_no_token or is_held or waits or is_full:
            return {}
        return {key: items[key] for key in waiting if key in items and self._waits(key, items[key])}

    def _judge_first(self, lifted: float, waiting: dict[Key, Wire]) -> None:
        if self.submitted_at < lifted and (left := self._still(waiting)):
            told = f"{len(left)} wait {FIRST_SECONDS:g} s later, {min(left)} among them"
            self.laws.broken(RELEASED, told)

    def _judge_due(self, lifted: float, waiting: dict[Key, Wire]) -> None:
        latest, still = lifted + DUE_SECONDS, self._still(waiting).items()
        late = [key for key, item in still if number(item, "due_at") > latest]
        if late:
            told = f"{len(late)} are not due {DUE_SECONDS:g} s later, {late[0]} among them"
            self.laws.broken(RELEASED, told)

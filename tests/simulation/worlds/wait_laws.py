"""Laws of what waits: for a token, the end of a pause, a model.

Each invocation is judged by the control items it read.

A batch that is sent to be submitted may be submitted, and one that is put off is due when what
stops it ends: neither long before, which costs calls in vain, nor long after. What stops it are the
items at any of the invocation's last reads, so these laws say nothing about which of several
reasons counts.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dropbatch.core.names import CONTROL_PK
from shared.events.subscribe import PUT_OFF_FOR
from tests.support.aws.wire_items import changed, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.kernel import Life
    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.worlds.item_laws import ItemLaws

RECENT_SECONDS = 20.0
"""Longest time between an invocation's look at the control items and what it does then."""
PERMIT_SECONDS = 1.0
"""The same for polls of one account, whose permits come from one look."""
DISPATCHED = (88.0, 91.0)
"""Seconds by which a batch is put off that is sent to be submitted or polled."""
PUT_OFF, LOOK_SECONDS = 2.0, 45.0
"""Longest time between two looks at what waits for the end of a pause: a submit."""

SENT = "what is sent to be submitted may be submitted"
DUE = "what waits is due when what stops it ends"
ACCOUNT_SECONDS = 400.0
"""Most seconds after which a batch of another account is looked at again."""
PROBE = "a probe is claimed only if there is a token for it"
PROBED_SECONDS = 90.0
"""How long a tick puts off what waits for the outcome of a probe that it has sent."""


@dataclass(frozen=True, slots=True)
class Look:
    """What an invocation has read of the control items, and from when to when by its own clock.

    There are no items if they were read one by one: then nothing is judged.
    """

    began: float
    at: float
    items: dict[str, Wire | None]


class WaitLaws:
    """Judges what is sent, put off and probed."""

    def __init__(self, items: ItemLaws) -> None:
        """Watch the world of these laws."""
        self.items = items
        self.laws, self.world = items.laws, items.world
        self.looks: WeakKeyDictionary[Life, deque[Look]] = WeakKeyDictionary()
        self.contested: WeakKeyDictionary[Life, float] = WeakKeyDictionary()
        """When a write of the bucket did not hold."""
        self._postpone: WeakKeyDictionary[Life, set[Key]] = WeakKeyDictionary()
        """Batches that each invocation has put off to send them."""
        self._claimed: WeakKeyDictionary[Life, set[Key]] = WeakKeyDictionary()
        """Batches that each invocation has claimed to poll them."""
        has_events = os.environ["COMPLETION_EVENTS"] == "yes"
        self.longest_behind = PUT_OFF_FOR if has_events else 0.0
        """Seconds for which a poll waits."""
        self.burst = items.burst
        self.bursts = {
            "first": self.burst,
            "submit": max(1, self.burst // 2),
            "poll": self.burst - self.burst // 10,
        }
        self.world.dynamodb.lookers.append(self._look)
        self.world.dynamodb.readers.append(self._read)
        self.world.dynamodb.watchers.append(self._judge)
        put = self.world.sqs.put

        def sent(name: str, body: str, delay: float = 0.0) -> None:
            life = self.world.kernel.life()
            if name == "SubmitQueue" and life is not None:
                self._judge_sent(life, json.loads(body))
            put(name, body, delay)

        self.world.sqs.put = sent  # type: ignore[method-assign]

    def _look(self, keys: list[Key], is_whole: bool) -> None:  # noqa: FBT001 - called by position
        life = self.world.kernel.life()
        if life is None or keys[0][0] != CONTROL_PK:
            return
        found = {sk: self.world.dynamodb.items.get((pk, sk)) for pk, sk in keys if is_whole}
        look = Look(self.world.called_at(), self.world.clock(), found)
        self.looks.setdefault(life, deque(maxlen=40)).append(look)

    def _read(self, key: Key, item: Wire | None) -> None:
        life = self.world.kernel.life()
        if life is not None and item is None and key == (CONTROL_PK, "RATE"):
            self.contested[life] = self.world.clock()

    def _recent(self, life: Life) -> list[Look]:
        """The looks that may have decided what an invocation does now."""
        looks = self.looks.get(life, deque())
        seconds = RECENT_SECONDS + sum(self.world.calls.held_up.values())
        recent = [one for one in looks if one.at >= looks[-1].at - seconds]
        return recent if all(one.items for one in recent) else []

    def _free(self, look: Look, kind: str, at: float) -> int:
        """Tokens that an invocation has seen, at its own time."""
        ahead = max(number(look.items.get("RATE"), "filled_at") - 1000 * at, 0.0)
        return int(self.bursts[kind] - -(-ahead // self.items.interval))

    # ── what is sent ──────────────────────────────────────────────────────────────────────────────

    def _judge_sent(self, life: Life, message: dict[str, Any]) -> None:
        key = f"JOB#{message['job_id']}", f"BATCH#{message['number']}"
        items = self.world.dynamodb.items
        batch, job = items.get(key), items.get((key[0], "META"))
        if batch is None or job is None or key not in self._postpone.get(life, ()):
            return
        if batch["state"]["S"] != "ready" or "isolating" in batch or self._is_over(job):
            return  # Nothing is submitted.
        kind = "first" if batch["work"]["S"].endswith("first") else "submit"
        looks = self._recent(life)
        if looks and all(self._free(one, kind, one.at) < 1 for one in looks):
            self.laws.broken(SENT, f"{key}: there is no token")
        names = {name for one in looks for name in one.items if name in self._names(key, job)}
        for name in sorted(names):
            if all(self._stops(name, one, job) for one in looks if name in one.items):
                self.laws.broken(SENT, f"{key}: {name}")

    def _names(self, key: Key, job: Wire) -> set[str]:
        """Sort keys of the control items that may stop a job's submits."""
        model = job["plan"]["M"]["model"]["S"]
        return {"RATE", "STACK", "RATE#OUTSTANDING", "PAUSE", f"PAUSE#{model}"}

    def _stops(self, name: str, look: Look, job: Wire) -> bool:
        item, now = look.items[name], look.at
        if item is None:
            return False
        match name:
            case "RATE":
                return number(item, "hold_until") > now
            case "STACK":
                return number(item, "held_since") > 0
            case "RATE#OUTSTANDING":
                return job["plan"]["M"]["model"]["S"] in item.get("full_models", {}).get("SS", ())
            case _:
                return _lasts(item, now) and number(item, "next_probe") > now

    def _is_over(self, job: Wire) -> bool:
        """Whether a job's batches end without a call."""
        control = job.get("control", {}).get("M", {})
        is_cancelled = bool(control.get("cancelled", {}).get("S", ""))
        is_late = 0 < number(job, "deadline_at") < self.world.clock() + 30
        return "error" in job or is_cancelled or is_late

    # ── what is put off ───────────────────────────────────────────────────────────────────────────

    def _judge(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        life = self.world.kernel.life()
        if life is None or old is None or new is None:
            return
        if key[0] == CONTROL_PK and "nonce" in old and old["nonce"] == new.get("nonce"):
            self._judge_probe(life, key, old)
            return
        if number(new, "polls") > number(old, "polls"):
            self._claimed.setdefault(life, set()).add(key)
        is_claimed = key in self._claimed.get(life, ())
        if not key[1].startswith("BATCH#") or not self._is_put_off(old, new, is_claimed=is_claimed):
            return
        job = self.world.dynamodb.items[key[0], "META"]
        now, due = self.world.called_at(), number(new, "due_at")
        if DISPATCHED[0] <= due - now <= DISPATCHED[1]:
            self._postpone.setdefault(life, set()).add(key)
            return
        if self._is_foreign(job):
            if not now < due < now + ACCOUNT_SECONDS:
                self.laws.broken(DUE, f"{key}: of another account, in {due - now:.1f} s")
        elif not (self._is_held(job) or self._is_over(job)):
            self._judge_due(life, key, old, job, due)

    def _judge_due(self, life: Life, key: Key, old: Wire, job: Wire, due: float) -> None:
        now, looks = self.world.called_at(), self._looks_for(life, old)
        if not looks:
            return
        if due < min(now, looks[0].began) - 5 and number(old, "due_at") < now:
            self.laws.broken(DUE, f"{key}: {now - due:.1f} s ago")
        kind = old["work"]["S"].partition("#")[2]
        spans = [span for one in looks for span in self._spans(life, job, one, kind)]
        spans += [(now, now + self.longest_behind)] * (kind == "poll")
        if kind == "poll" and number(old, "due_at") > now:  # A message named more than had tokens.
            spans.append((now, now + 1))
        if not any(low - 0.1 <= due <= high + 0.1 for low, high in spans):
            told = [f"{low - now:.1f} to {high - now:.1f}" for low, high in spans]
            self.laws.broken(DUE, f"{key} ({kind}): in {due - now:.1f} s, not {sorted(set(told))}")

    def _looks_for(self, life: Life, batch: Wire) -> list[Look]:
        """The looks that may have decided that a batch is put off."""
        looks = self._recent(life)
        if (
            not looks
            or batch["state"]["S"] != "queued"
            or any(name.startswith("PAUSE#") for name in looks[-1].items)
        ):
            return looks
        return [one for one in looks if one.at >= looks[-1].at - PERMIT_SECONDS]

    def _is_put_off(self, old: Wire, new: Wire, *, is_claimed: bool) -> bool:
        names, state = changed(old, new), old["state"]["S"]
        is_held = old.get("held", {}).get("BOOL", False)
        if is_held or "isolating" in old or "ending" in old or "due_at" not in new:
            return False
        if is_claimed and state == "queued":
            return False  # The claim failed.
        is_claim = number(new, "claims") > number(old, "claims")
        is_moved = {"due_at"} <= names <= {"due_at", "paused", "claims"}
        return is_moved and not is_claim and state in {"ready", "queued"}

    def _is_foreign(self, job: Wire) -> bool:
        """Whether the stack has another account than a job."""
        return bool(job["plan"]["M"]["account"]["S"] != os.environ["CLOUDFLARE_ACCOUNT_ID"])

    def _is_held(self, job: Wire) -> bool:
        control = job.get("control", {}).get("M", {})
        return number(control, "held_since") > 0 or number(control, "resumed_at") > 0

    def _spans(self, life: Life, job: Wire, look: Look, kind: str) -> Iterator[tuple[float, float]]:
        """When a batch may be due that is put off, for each reason to do so."""
        now, early = self.world.clock(), look.began
        for name in look.items.keys() & self._names(("", ""), job):
            item = look.items[name]
            if item is None:
                continue
            if name == "RATE" and number(item, "hold_until") > early:
                yield _after(number(item, "hold_until"), number(item, "hold_until"), early, 10)
            if name == "STACK" and number(item, "held_since"):
                yield _after(early + PUT_OFF, now + PUT_OFF, early, 1)
            if name == "RATE#OUTSTANDING" and self._stops(name, look, job):
                yield _after(early + 48, now + 1_800, early, 24)
            is_tick = life.name.startswith("Poll") and kind != "poll"
            if name == "PAUSE" and _lasts(item, early):
                if kind == "poll":
                    yield from self._spans_of_pause(item, early)
                else:
                    yield _after(early + 1, now + PUT_OFF, early, 1)
            if name.startswith("PAUSE#"):
                yield from self._spans_of_wait(item, early, is_tick=is_tick)
        is_contested = self.contested.get(life, 0.0) >= early
        if is_contested or self._free(look, kind, early) < 1:
            yield early + 4, now + 6

    def _spans_of_pause(self, pause: Wire, early: float) -> Iterator[tuple[float, float]]:
        now, probe = self.world.clock(), number(pause, "next_probe")
        until = number(pause, "until") or inf
        low = min(max(probe, early + 1), early + LOOK_SECONDS, until)
        yield _after(low, min(max(probe, now + 1), now + LOOK_SECONDS, until), early, 10)

    def _spans_of_wait(
        self, wait: Wire, early: float, *, is_tick: bool
    ) -> Iterator[tuple[float, float]]:
        now, until = self.world.clock(), number(wait, "next_probe")
        if until > early or not is_tick:
            yield _after(max(until, early + 1), max(until, now), early, 15)
        if until <= now:
            yield _after(early + PROBED_SECONDS, now + PROBED_SECONDS, early, 0)

    def _judge_probe(self, life: Life, key: Key, old: Wire) -> None:
        """Judge that a call may follow a probe that is claimed."""
        looks = self._recent(life)
        if not looks:
            return
        look, now = looks[-1], self.world.clock()
        if self._free(look, "first", now) < 1 or number(look.items["RATE"], "hold_until") > now:
            self.laws.broken(PROBE, f"{key[1]}")


def _after(low: float, high: float, early: float, within: float) -> tuple[float, float]:
    """A span that ends at random up to some seconds later, or a tenth of the wait."""
    return low, high + 1 + max(within, (high - early) / 10)


def _lasts(pause: Wire, now: float) -> bool:
    until = number(pause, "until")
    return not until or now < until

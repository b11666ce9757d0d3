"""Laws of completion events: what each may change, and what holds of bills, calls and delays where all of them come."""

from __future__ import annotations

import json
from collections import Counter
from statistics import mean
from typing import TYPE_CHECKING

from tests.simulation.cloudflare import events
from tests.simulation.cloudflare.events import LOST_REPLIES, Events
from tests.simulation.worlds.judges import accepted_again
from tests.support.aws.wire_items import number, submissions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.worlds.judges import Laws
    from tests.simulation.worlds.plans import Plan
    from tests.simulation.worlds.users import Dropped

TOLD = "an event makes its batch due, and changes nothing else"
OWNED = "an id belongs to the batch that it was given to first"
IDLE = "nothing is pulled while nothing is outstanding"
ONCE = "where every event comes, no batch is billed twice"
FOUND = "where every event comes, no submit ends unknown"
CALLS = "where every event comes, a batch of a known model costs two calls"
SOON = "where every event comes, answers are collected soon"

MAY_CHANGE = {"told_at", "due_at", "work"}
"""Attributes of a batch that an event may change."""
OUTSTANDING = {"submitting", "queued"}
IDLE_SECONDS = 180.0
"""Seconds after the last outstanding batch within which something may still be pulled."""
CALLS_EACH, CALLS_BESIDE = 2.1, 5
"""Calls for each batch of a model that is known, and so many more for a few batches."""
KNOWN_FROM = 3
"""Answers from which on a model's events are known to come."""
MEAN_SECONDS, MOST_SECONDS, LEAST_BATCHES = 3.0, 8.0, 20
"""From ready to collected, beside the event's own delay: the mean, 95 of 100; and how many batches are judged."""
SET_UP_CALLS = 60
"""Calls a minute from which on a stack can set its queue up at once; with fewer, its first submits have no events."""
FAST_CALLS = 200
"""Calls a minute from which on delays are judged: with fewer, answers wait for calls."""


class EventLaws:
    """Judges each write and each pull, and at the end what a world with sound events came to."""

    def __init__(self, laws: Laws, given: Events) -> None:
        """Watch the world of these laws."""
        self.laws, self.world, self.events = laws, laws.world, given
        self.answered: Counter[str] = Counter()
        """Answers that were collected, by model."""
        self.of_known: set[str] = set()
        """Ids of batches that were accepted when their model was known."""
        self.waits: list[float] = []
        """Seconds from ready to collected, of each batch."""
        self._outstanding: set[Key] = set()
        self._busy_at = self.world.kernel.now
        self.world.dynamodb.watchers.append(self._watch)
        self.world.on_call.append(self._call)

    def _call(self, path: str, _query: str, _body: bytes) -> None:
        now = self.world.kernel.now
        if self._outstanding:
            self._busy_at = now
        if path.endswith("/messages/pull") and now > self._busy_at + IDLE_SECONDS:
            self.laws.broken(IDLE, f"for {now - self._busy_at:.0f} s")

    def _watch(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        if key[0].startswith("ID#") and new is not None:
            owner = {name: (old or {}).get(name) for name in ("job_id", "number")}
            if owner["job_id"] and any(new.get(name) != value for name, value in owner.items()):
                self.laws.broken(OWNED, f"{key}: {owner}, {new}")
        if not (key[0].startswith("JOB#") and key[1].startswith("BATCH#")):
            return
        now = self.world.kernel.now
        is_outstanding = new is not None and new["state"]["S"] in OUTSTANDING
        (self._outstanding.add if is_outstanding else self._outstanding.discard)(key)
        if is_outstanding or (old or {}).get("state", {}).get("S") in OUTSTANDING:
            self._busy_at = now
        if old is None or new is None:
            return
        if number(new, "told_at") and old.get("told_at") != new.get("told_at"):
            changed = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
            if new["state"] != {"S": "queued"} or not changed <= MAY_CHANGE:
                self.laws.broken(TOLD, f"{key}: {sorted(changed)}")
        moved, model = (old["state"]["S"], new["state"]["S"]), self._model(key)
        if moved == ("queued", "done"):
            self._note_wait(old, now)
            self.answered[model] += 1
        if moved == ("submitting", "queued") and self.answered[model] >= KNOWN_FROM:
            self.of_known.add(submissions(new)[-1]["request_id"]["S"])

    def _model(self, key: Key) -> str:
        plan = self.world.dynamodb.items.get((key[0], "META"), {}).get("plan", {"M": {}})["M"]
        return str(plan.get("model", {}).get("S", ""))

    def _note_wait(self, batch: Wire, now: float) -> None:
        latest = submissions(batch)[-1]
        found = [one for one in self.world.billed if one["request_id"] == latest["request_id"]["S"]]
        if found and found[0]["completes_at"] is not None:
            self.waits.append(now - max(found[0]["completes_at"], float(latest["at"]["N"])))

    # ── at the end ───────────────────────────────────────────────────────────────────────────────────────────────

    def judge(self, dropped: Sequence[Dropped], plan: Plan) -> None:
        """Judge a world that is over."""
        only_drops = len(dropped) == len(plan.acts)
        if not (self.events.is_sound and only_drops and all(fault in LOST_REPLIES for fault in plan.faults)):
            return
        if events.FIND_SUBMITS and self.world.calls_per_minute >= SET_UP_CALLS:
            self.judge_bills()
            for one in dropped:
                self.judge_lines(one.upload.key, (self.world.result(one.upload, "errors.jsonl") or b"").splitlines())
        if plan.is_calm:
            self.judge_calls()
            if self.world.calls_per_minute >= FAST_CALLS:
                self.judge_waits()

    def judge_bills(self) -> None:
        """Judge that no body was accepted twice."""
        for body in accepted_again(self.world.billed):
            self.laws.broken(ONCE, body)

    def judge_lines(self, name: str, lines: Iterable[bytes]) -> None:
        """Judge a job's errors."""
        unknown = [line for line in map(json.loads, lines) if line["error"]["code"] == "submit_unknown"]
        if unknown:
            self.laws.broken(FOUND, f"{name}: {len(unknown)} records")

    def judge_calls(self) -> None:
        """Judge how often models were called for batches that were accepted when their model was known."""
        polls = [one["polls"] for one in self.world.billed if one["request_id"] in self.of_known]
        calls = len(polls) + sum(polls)
        if calls > CALLS_EACH * len(polls) + CALLS_BESIDE:
            self.laws.broken(CALLS, f"{calls} for {len(polls)} batches, {max(polls)} polls of one")

    def judge_waits(self) -> None:
        """Judge how long answers waited."""
        if len(self.waits) < LEAST_BATCHES:
            return
        waits, slow = sorted(self.waits), self.events.slowest
        if mean(waits) > MEAN_SECONDS + slow or waits[len(waits) * 95 // 100] > MOST_SECONDS + slow:
            self.laws.broken(SOON, f"mean {mean(waits):.1f} s, 95 %: {waits[len(waits) * 95 // 100]:.1f} s")

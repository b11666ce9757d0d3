"""Laws of completion events.

What each may change, and what holds of bills, calls and delays where all of them come.
"""

from __future__ import annotations

from collections import Counter
from statistics import mean
from typing import TYPE_CHECKING

from shared.events.subscribe import MOST_NET
from tests.support.aws.wire_items import changed, number, submissions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.cloudflare.events import Events
    from tests.simulation.worlds.judges import Laws
    from tests.simulation.worlds.plans import Plan
    from tests.simulation.worlds.users import Dropped

TOLD = "an event makes its batch due, and changes nothing else"
OWNED = "an id belongs to the batch that it was given to first"
IDLE = "nothing is pulled while nothing is outstanding"
CALLS = "where every event comes, a batch of a known model costs two calls, and one in 15 minutes"
SOON = "where every event comes, answers are collected soon"

MAY_CHANGE = {"told_at", "due_at", "work"}
"""Attributes of a batch that an event may change."""
OUTSTANDING = {"submitting", "queued"}
IDLE_SECONDS = 180.0
"""Seconds after the last outstanding batch within which something may still be pulled."""
CALLS_EACH, CALLS_BESIDE = 2.1, 5
"""Calls for each batch of a model that is known, and so many more for a few batches."""
KNOWN_FROM = 6
"""Answers from which on a model's events and times are known."""
MEAN_SECONDS, MOST_SECONDS, LEAST_BATCHES = 2.0, 5.0, 20
"""From ready to collected, beside the event's delay and the time between two pulls (on average
half of it, for 95 of 100 all of it); and how many batches are judged."""
STARTS = 3
"""Processes that may have to start one after the other until then."""
LEAST_INTERVAL, INTERVAL, LATE_INTERVAL, LATE = 2.0, 15.0, 30.0, 600.0
"""Seconds between two pulls: a sixteenth of a batch's age, at least the first, at most the second,
or from an age of the last on the third."""
FAST_CALLS = 200
"""Calls a minute from which on delays are judged: with fewer, answers wait for calls."""
SCARCE_SECONDS = 24.0
"""Calls are scarce while those of more seconds are used in advance: then polls wait for theirs."""


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
        self.judged: list[tuple[float, float]] = []
        """The same of those that were over while calls were not scarce."""
        self._outstanding: set[Key] = set()
        self._busy_at = self.world.kernel.now
        self._scarce_until = 0.0
        self.world.dynamodb.watchers.append(self._watch)
        self.world.on_call.append(self._call)

    def _call(self, path: str, _query: str, _body: bytes) -> None:
        now = self.world.kernel.now
        if self._outstanding:
            self._busy_at = now
        is_idle = now > self._busy_at + IDLE_SECONDS and not self.world.is_spoilt()
        if path.endswith("/messages/pull") and is_idle:
            self.laws.broken(IDLE, f"for {now - self._busy_at:.0f} s")

    def _watch(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        if key[0].startswith("ID#") and new is not None:
            self._judge_id(key, old or {}, new)
        if key[1].startswith("RATE") and "filled_at" in (new or {}):
            self._scarce_until = max(
                self._scarce_until, number(new, "filled_at") / 1000 - SCARCE_SECONDS
            )
        if not (key[0].startswith("JOB#") and key[1].startswith("BATCH#")):
            return
        is_outstanding = new is not None and _is_polled(new)
        (self._outstanding.add if is_outstanding else self._outstanding.discard)(key)
        if is_outstanding or (old and _is_polled(old)):
            self._busy_at = self.world.kernel.now
        if old is not None and new is not None:
            self._judge_told(key, old, new)
            self._note_batch(key, old, new)

    def _judge_id(self, key: Key, old: Wire, new: Wire) -> None:
        owner = {name: old.get(name) for name in ("job_id", "number")}
        if owner["job_id"] and any(new.get(name) != value for name, value in owner.items()):
            self.laws.broken(OWNED, f"{key}: {owner}, {new}")

    def _judge_told(self, key: Key, old: Wire, new: Wire) -> None:
        if not number(new, "told_at") or old.get("told_at") == new.get("told_at"):
            return
        names = changed(old, new)
        if new["state"] != {"S": "queued"} or not names <= MAY_CHANGE:
            self.laws.broken(TOLD, f"{key}: {sorted(names)}")

    def _note_batch(self, key: Key, old: Wire, new: Wire) -> None:
        moved, model = (old["state"]["S"], new["state"]["S"]), self._model(key)
        if moved == ("queued", "done"):
            self._note_wait(old, self.world.kernel.now)
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
            accepted = float(latest["at"]["N"])
            ready = max(found[0]["completes_at"], accepted)
            self.waits.append(now - ready)
            if self._scarce_until > ready:
                self.of_known.discard(latest["request_id"]["S"])
                return
            age = ready - accepted
            interval = max(LEAST_INTERVAL, min(age / 16, INTERVAL if age < LATE else LATE_INTERVAL))
            self.judged.append((now - ready, interval))

    # ── at the end ────────────────────────────────────────────────────────────────────────────────

    def judge(self, dropped: Sequence[Dropped], plan: Plan) -> None:
        """Judge a world that is over."""
        if not self.events.is_sound or not plan.is_calm or len(dropped) != len(plan.acts):
            return
        self.judge_calls()
        if self.world.calls_per_minute >= FAST_CALLS:
            self.judge_waits(plan.awkward.cold_start_seconds)

    def judge_calls(self) -> None:
        """Judge how often models that were known were called for each batch."""
        known = [one for one in self.world.billed if one["request_id"] in self.of_known]
        polls = sum(one["polls"] for one in known)
        nets = sum((one["completes_at"] - one["time"]) // MOST_NET for one in known)
        if polls > (CALLS_EACH - 1) * len(known) + nets + CALLS_BESIDE:
            self.laws.broken(CALLS, f"{polls} polls of {len(known)} batches")

    def judge_waits(self, start_seconds: float) -> None:
        """Judge how long answers waited, where a process starts in so many seconds."""
        if len(self.judged) < LEAST_BATCHES:
            return
        usual, waited = (
            mean(interval for _, interval in self.judged),
            mean(wait for wait, _ in self.judged),
        )
        slow = self.events.slowest + STARTS * start_seconds
        beyond = sorted(wait - interval for wait, interval in self.judged)
        late = beyond[len(beyond) * 95 // 100]
        if waited > MEAN_SECONDS + usual / 2 + slow or late > MOST_SECONDS + slow:
            self.laws.broken(
                SOON, f"mean {waited:.1f} s, 95 %: {late:.1f} s beyond a pull's interval"
            )


def _is_polled(batch: Wire) -> bool:
    """Whether a batch is outstanding, or waits to be divided or ended."""
    return batch["state"]["S"] in OUTSTANDING or (
        not batch.keys().isdisjoint({"isolating", "ending"}) and batch["state"]["S"] == "ready"
    )

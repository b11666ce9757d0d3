"""Laws of what is shared: outstanding batches of models, calls of polls and of probes.

docs/limits.md says how much each may have of it. What a tick counts it has counted some seconds
before it writes it, so counts are judged by the least and the most that there was meanwhile.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from dropbatch.core.names import CONTROL_PK
from shared.aws.queues import SUBMIT_GRACE_SECONDS
from tests.support.aws.wire_items import changed, number, submissions

if TYPE_CHECKING:
    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.worlds.item_laws import ItemLaws

MINUTES, LEAST = 15, 2
"""A model may have as many batches outstanding as half of the calls of these minutes."""
COUNTED_SECONDS = 15.0
"""Before a tick begins, from when on what was outstanding is remembered: the index may lag."""
OVERDUE_SECONDS, MOST_FIRSTS = 60.0, 8
"""Submits of first batches in a row while a poll has been due for so long."""
MOST_TRIES = 6
"""Probes of one outage in a row."""
LONGEST_STEP = 300.0
BEFORE_SECONDS = 10.0
"""By how much a batch may be due before it is written that it is: the decision takes some time."""

SLACK = 2.0
"""Seconds that a decision may take."""

FULL = "a model may have its share of outstanding batches, and no more"
PAST = "nothing is made due before the present"
POLLS = "polls take turns with first batches"
BACKS_OFF = "an outage is probed more and more rarely"
CLAIM = "each claim counts"
CLOCK = "a paused clock stands still as long as a batch waits"


class Outstanding:
    """How many batches each model has had outstanding of late."""

    def __init__(self, calls_per_minute: int) -> None:
        """None yet."""
        self.share = calls_per_minute / 2 * MINUTES
        self.now: Counter[str] = Counter()
        self._changes: deque[tuple[float, str, int]] = deque(maxlen=2_000)

    def note(self, at: float, model: str, more: int) -> None:
        """A model has one more, or one less."""
        self.now[model] += more
        self._changes.append((at, model, more))

    def wrong(self, named: set[str], since: float) -> set[str]:
        """Models that are called full although they never were since then."""
        if len(self._changes) == self._changes.maxlen and self._changes[0][0] > since:
            return set()
        least, most, counts = Counter(self.now), Counter(self.now), Counter(self.now)
        for at, model, more in reversed(self._changes):
            if at < since:
                break
            counts[model] -= more
            least[model], most[model] = (
                min(least[model], counts[model]),
                max(most[model], counts[model]),
            )
        always, once = (
            {one for one in most if self._is_full(one, counts)} for counts in (least, most)
        )
        return (named - once) | (always - named)

    def _is_full(self, model: str, counts: Counter[str]) -> bool:
        others = counts.total() - counts[model]
        return counts[model] >= LEAST and counts[model] + others / 2 >= self.share


class ShareLaws:
    """Judges each write by what was promised to others."""

    def __init__(self, items: ItemLaws) -> None:
        """Watch the world of these laws."""
        self.items, self.laws, self.world = items, items.laws, items.world
        calls = self.world.calls_per_minute
        self.outstanding = Outstanding(calls)
        self.polls_have_a_share = items.burst // 10 > 0
        self.firsts = 0
        """First batches that were submitted since the last poll."""
        self._polls: dict[Key, float] = {}
        """When batches are to be polled that have an id."""
        self._tries: dict[str, tuple[str, int]] = {}
        """By pause: its last step, and how many probes in a row had it."""
        self.world.dynamodb.watchers.append(self._judge)

    def _judge(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        if key[1].startswith("BATCH#"):
            self._note_batch(key, old, new)
        life = self.world.kernel.life()
        if life is None:
            return
        if key[0] == CONTROL_PK:
            self._judge_control(key[1], old or {}, new or {})
        elif new is not None:
            self._judge_item(key, old or {}, new)

    # ── items ─────────────────────────────────────────────────────────────────────────────────────

    def _judge_item(self, key: Key, old: Wire, new: Wire) -> None:
        if number(new, "refusals") > number(old, "refusals"):
            # Without a connection nothing is known of the API, and nothing was billed.
            self._tries.clear()
        if key[1] == "META" or "due_at" not in new:
            return
        has_job = (key[0], "META") in self.world.dynamodb.items
        if old and not has_job and number(new, "claims") <= number(old, "claims"):
            self.laws.broken(CLAIM, f"{key}: its job is missing")
        due, now = number(new, "due_at"), self.world.called_at()
        grace = SUBMIT_GRACE_SECONDS if "." in key[1] else 0.0
        soonest = number(new, "created_at") + grace - 0.001
        if old:
            soonest = min(number(old, "due_at"), now - BEFORE_SECONDS)
        if due < soonest:
            self.laws.broken(PAST, f"{key}: {now - due:.1f} s ago")
        if old and {"paused"} <= changed(old, new) <= {"due_at", "paused", "claims"}:
            self._judge_clock(key, old, new, now)

    def _judge_clock(self, key: Key, old: Wire, new: Wire, now: float) -> None:
        """Judge that a batch that is put off counts as paused for no longer than it waits."""
        accepted = [number(one, "at") for one in submissions(new)][-1:]
        since = max([number(new, "ready_at") or number(new, "created_at"), *accepted])
        due, was, paused = number(new, "due_at"), number(old, "paused"), number(new, "paused")
        decided = now - sum(self.world.calls.held_up.values())  # at the earliest
        waits = due - min(number(old, "due_at"), decided)
        most = min(was + max(waits, 0.0), max(due - since, was))
        if not min(was, due - since) - SLACK <= paused <= most + SLACK:
            told = f"{was:.0f}, then {paused:.0f} s, {waits:.0f} and {due - since:.0f}"
            self.laws.broken(CLOCK, f"{key}: {told}")

    def _note_batch(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        was, polled = _is_polled(old), _is_polled(new)
        if was != polled and (job := self.world.dynamodb.items.get((key[0], "META"))) is not None:
            model = job["plan"]["M"]["model"]["S"]
            self.outstanding.note(self.world.kernel.now, model, 1 if polled else -1)
        if self.polls_have_a_share:
            return
        if number(new, "polls") > number(old, "polls"):
            self.firsts = 0
        if new is None or not polled or new["state"]["S"] != "queued":
            self._polls.pop(key, None)
        else:
            self._polls[key] = number(new, "due_at")
        if old and new and new["state"]["S"] == "submitting" != old["state"]["S"]:
            self._judge_first(old)

    def _judge_first(self, batch: Wire) -> None:
        """Judge that a poll does not wait for many first batches in a row."""
        if self._is_token_refused():
            return  # Each is a probe, as a poll would be.
        now = self.world.kernel.now
        overdue = min(self._polls.values(), default=now) + OVERDUE_SECONDS < now
        self.firsts = self.firsts + 1 if overdue and batch["work"]["S"].endswith("first") else 0
        if self.firsts > MOST_FIRSTS:
            self.laws.broken(POLLS, f"{self.firsts} first batches, and no poll")

    def _is_token_refused(self) -> bool:
        items = self.world.dynamodb.items.items()
        pauses = (item for (pk, sk), item in items if pk == CONTROL_PK and sk.startswith("PAUSE"))
        return any(item["reason"]["S"] == "token_refused" for item in pauses)

    # ── control items ─────────────────────────────────────────────────────────────────────────────

    def _judge_control(self, name: str, old: Wire, new: Wire) -> None:
        if name == "RATE#OUTSTANDING":
            if not self.world.calls.awkward.unprocessed:  # Else a tick cannot read every model.
                self._judge_watch(old, new)
            return
        is_claim = old.get("nonce") == new.get("nonce")
        if name.startswith("PAUSE") and is_claim and new["reason"]["S"] == "outage":
            step, times = self._tries.get(name, ("", 0))
            times = times + 1 if step == new["step"]["N"] else 1
            self._tries[name] = new["step"]["N"], times
            if times > MOST_TRIES and number(new, "step") < LONGEST_STEP:
                self.laws.broken(BACKS_OFF, f"{name}: {times} probes, each after {step} s")
        elif name.startswith("PAUSE"):
            self._tries.pop(name, None)

    def _judge_watch(self, old: Wire, new: Wire) -> None:
        if new.get("ticked_at") != old.get("ticked_at"):
            named = set(new.get("full_models", {}).get("SS", ()))
            since = min(number(new, "ticked_at"), self.world.kernel.now) - COUNTED_SECONDS
            for model in sorted(self.outstanding.wrong(named, since)):
                self.laws.broken(FULL, f"{model}: {dict(self.outstanding.now)}")


def _is_polled(batch: Wire | None) -> bool:
    return batch is not None and batch.get("work", {}).get("S", "").endswith("poll")

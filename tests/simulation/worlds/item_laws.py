"""Laws of each item and each call.

No update is lost, no item contradicts itself, each call is permitted.

They need no knowledge of what a transition is for: only what each invocation has read of an item
before it writes it, and what the documents promise of every item, permit and wait.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dropbatch.core.names import CONTROL_PK
from tests.simulation.worlds import pacing_laws
from tests.simulation.worlds.judges import CALLS_IN_FIVE_MINUTES
from tests.simulation.worlds.release_laws import ReleaseLaws
from tests.simulation.worlds.share_laws import ShareLaws
from tests.simulation.worlds.wait_laws import WaitLaws
from tests.simulation.worlds.world import FINAL
from tests.support.aws.wire_items import changed, number, submissions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.kernel import Life
    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.worlds.judges import Laws

TIMES = frozenset(
    {
        *("due_at", "work", "claims", "paused", "held", "lease_until", "status", "reading"),
        *("calls_fail_since", "watched_from", "watched_until", "ticked_at", "wait", "ttl"),
        "held_since",  # of waits that two refusals begin at once
        *("busy_until", "pull_at", "youngest_at"),  # of events: when to look again, who sets up
    }
)
"""Attributes that say when an item is looked at, and what was told of it."""
ATOMIC = frozenset({"filled_at", "hold_until", "told_at"})
"""What is increased by a write, whatever it is, or written only where it is not there."""
UNREAD = ("RATE#TIMES", "RATE#OUTSTANDING", "STACK", "KNOWN", "EVENTS#")
"""Control items that are replaced unread, as `shared.pacing` and `shared.events` explain."""
GROWING = {"attempt": 1, "given_up": 1, "polls": 1, "unknowable": 1, "claims": 1}
"""Counts of a batch, and by how much one write may increase each; none but claims ever falls."""
LEASED = frozenset(
    {"state", "output", "errors", "retry", "batches", "sums", "sweep", "lease_until"}
)
"""What only the invocation changes that has a job's lease, once its upload is read."""
LEASED_WHILE = {
    ("splitting", "splitting"): frozenset({"lease_until"}),
    **{("splitting", state): frozenset[str]() for state in ("in_progress", *FINAL)},
    **{("finalizing", state): frozenset[str]() for state in FINAL},
}
"""The same by the states before and after a write, where it is less.

Whoever has read an upload to its end, or written all files of a job, may say so after its lease,
too; of another one that does, the write comes too late.
"""
CONDITIONS = frozenset({"attempt"})
"""Counts that writes name as a condition too."""
ONCE = ("total", "error", "ended_at")
"""What a job's item holds never changes again, once it is known."""
BROUGHT = ("state", "part", "records")
"""What the item of a batch that is done never changes again: its lines may have been handed out."""
MOST_WRITES, WITHIN_SECONDS = 40, 60.0
"""No batch is written more often within so many seconds."""
WRITES_WHILE_BEHIND = 3
"""More such writes for each second that a clock is behind."""
MAX_HOLD_SECONDS = 900.0
"""Longest wait after a refusal for too many calls, and of a model without capacity."""
MAX_PROBE_SECONDS = 1_800.0
"""Longest time between a pause's beginning and its probe."""
MIN_WAIT_SECONDS = 7.0
"""Shortest such wait."""
DAY = 86_400


class ItemLaws:
    """Judges each write by what its invocation had read."""

    def __init__(self, laws: Laws) -> None:
        """Watch the table and the calls of a world."""
        self.laws = laws
        self.world = laws.world
        self.seen: WeakKeyDictionary[Life, dict[Key, Wire]] = WeakKeyDictionary()
        """What each invocation has last read of each item, or written to it."""
        self.probes: WeakKeyDictionary[Life, set[str]] = WeakKeyDictionary()
        """Sort keys of the pauses and waits whose probe each invocation has claimed."""
        self.tokens: WeakKeyDictionary[Life, int] = WeakKeyDictionary()
        calls = self.world.calls_per_minute
        self.burst = max(1, calls // 2)
        self.interval = -(-60_000 // calls)
        if not self.world.is_through_worker:
            self.interval = max(self.interval, -(-300_000 // (CALLS_IN_FIVE_MINUTES - self.burst)))
        """The rate budget's two numbers, written once more."""
        self.holders: dict[Key, Life] = {}
        """Who holds the lease of each job, and of each batch that is being submitted."""
        self.claimed: dict[Key, Life] = {}
        """Who has claimed each batch last to isolate its bad records."""
        self._written: dict[Key, deque[float]] = {}
        self._most_writes = MOST_WRITES + int(
            WRITES_WHILE_BEHIND * self.world.calls.awkward.clock_behind_seconds
        )
        self._moments: WeakKeyDictionary[Life, int] = WeakKeyDictionary()
        before = self.world.calls.before

        def call(life: Life, operation: str) -> None:
            if before is not None:
                before(life, operation)
            if operation == "api.call":
                self._judge_call(life)

        self.world.calls.before = call
        WaitLaws(self)
        ShareLaws(self)
        ReleaseLaws(laws, self.burst)
        self.world.dynamodb.readers.append(self._read)
        self.world.dynamodb.missed.append(self._miss)
        self.world.dynamodb.watchers.append(self._judge)

    def _read(self, key: Key, item: Wire | None) -> None:
        task = self.world.kernel.task
        if task is not None and item is not None:
            self._seen_by(task.life)[key] = task.notes[key] = item

    def _seen_by(self, life: Life) -> dict[Key, Wire]:
        found = self.seen.get(life)
        if found is None:
            found = self.seen[life] = {}
        return found

    def _own(self) -> dict[Key, Wire]:
        """What the running task has last read of each item, or written to it."""
        task = self.world.kernel.task
        assert task is not None, "nothing runs"
        return task.notes

    def _miss(self, key: Key) -> None:
        if (task := self.world.kernel.task) is not None:
            self._seen_by(task.life).pop(key, None)
            task.notes.pop(key, None)

    def _judge(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        task = self.world.kernel.task
        if task is None:
            return
        life, seen, own = task.life, self._seen_by(task.life), self._own()
        if old is not None and new is not None and not key[1].startswith(UNREAD):
            self._judge_update(key, own.get(key) or seen.get(key, old), old, new)
        if old is not None and new is not None and changed(old, new) == {"due_at", "claims"}:
            self._judge_failure(life, key, old, new)
        if key[0] == CONTROL_PK:
            self._judge_control(life, key[1], old, new)
        elif new is not None and key[1] == "META":
            self._judge_job(life, key, old, new)
        elif new is not None and key[0].startswith("JOB#"):
            self._judge_batch(life, key, old, new)
        if new is None:
            seen.pop(key, None)
            own.pop(key, None)
        else:
            seen[key] = own[key] = new

    def _judge_update(self, key: Key, seen: Wire, old: Wire, new: Wire) -> None:
        if seen is old:
            return
        others = changed(seen, old)
        counted = (GROWING.keys() - CONDITIONS).intersection(self.world.dynamodb.named)
        lost = others & (changed(old, new) | counted) - TIMES - ATOMIC
        if lost == {"ending"} and old["ending"]["M"]["code"] == new["ending"]["M"]["code"]:
            return  # Two end it alike, and versions differ in how they write it.
        if lost:
            told = f"{key}: {sorted(lost)}, read before another invocation wrote them"
            self.laws.broken("no update is lost", told)

    def _judge_failure(self, life: Life, key: Key, old: Wire, new: Wire) -> None:
        """Judge that a failed message counts as a claim only of what waits to be begun."""
        if not life.name.startswith("Submit") or number(new, "claims") < number(old, "claims"):
            return
        begun = "splitting" if key[1] == "META" else "ready"
        if old["state"]["S"] != begun or number(old, "lease_until") > self.world.kernel.now:
            told = f"{key}: {old['state']['S']}"
            self.laws.broken("a failure is counted for what waits only", told)

    # ── jobs and batches ──────────────────────────────────────────────────────────────────────────

    def _judge_job(self, life: Life, key: Key, old: Wire | None, new: Wire) -> None:
        is_leased = number(old, "lease_until") > self.world.kernel.now
        moved = (old or new)["state"]["S"], new["state"]["S"]
        touched = LEASED_WHILE.get(moved, LEASED) & changed(old or {}, new)
        if is_leased and touched and self.holders.get(key, life) is not life:
            self.laws.broken("only who has the lease changes a job", f"{key}: {sorted(touched)}")
        # Who has read on prolongs its lease, even one that has run out.
        goes_on = self.holders.get(key) is life
        if number(new, "lease_until") != number(old, "lease_until"):
            self.holders[key] = life
        now, read = self.world.kernel.now, self._own().get(key) or self.seen[life].get(key)
        is_claimed = number(old, "lease_until") <= now < number(new, "lease_until")
        if read and is_claimed and not goes_on and number(new, "claims") <= number(read, "claims"):
            self.laws.broken("each claim counts", f"{key}")
        if old and old["state"]["S"] in FINAL and changed(old, new) == {"due_at"}:
            self.laws.broken("each claim counts", f"{key}: its cleanup")
        for name in ONCE:
            if old and name in old and old[name] != new.get(name):
                told = f"{key}: {name} {old[name]}, {new.get(name)}"
                self.laws.broken("what a job knows stays", told)
        if old and _fraction(new) < _fraction(old):
            self.laws.broken("fraction_done never falls", f"{key}")
        if old and _lines(new) < _lines(old):
            self.laws.broken("a result file never shrinks", f"{key}")

    def _judge_batch(self, life: Life, key: Key, old: Wire | None, new: Wire) -> None:
        state, was = new["state"]["S"], old["state"]["S"] if old else ""
        is_divided, is_ending = number(new, "pieces") > 0, "ending" in new
        if state == "submitting" and (is_divided or is_ending or "isolating" in new):
            self.laws.broken("what is ended or split is not submitted", f"{key}")
        is_accepted = bool(submissions(new)) and was == "submitting"
        is_both = is_divided and (is_ending or "part" in new or is_accepted)
        if is_both or (state == "divided" and not is_divided):
            told = f"{key}: {state}, {number(new, 'pieces'):g} pieces"
            self.laws.broken("a batch is split or ended, not both", told)
        if old is not None:
            if was == "done" and any(old.get(name) != new.get(name) for name in BROUGHT):
                self.laws.broken("what a batch has brought stays", f"{key}")
            self._judge_polled(life, key, old, new)
            self._judge_counts(key, self._own().get(key) or self.seen[life].get(key, old), old, new)
        is_leased = was == "submitting" and number(old, "fence") > self.world.kernel.now
        if state == "submitting" != was:
            self._judge_permit(life, key)
            self.holders[key] = life
        elif is_leased and self.holders[key] is not life:
            law = "nobody else tries a batch before its submit lease ends"
            self.laws.broken(law, f"{key}: to {state}")
        if old is not None:
            self._judge_wait_of(life, key, old, new)
        times = self._written.setdefault(key, deque(maxlen=self._most_writes))
        times.append(self.world.kernel.now)
        if len(times) == self._most_writes and times[-1] - times[0] < WITHIN_SECONDS:
            told = f"{key}: {self._most_writes} times within a minute"
            self.laws.broken("no batch is written without end", told)
            times.clear()

    def _judge_polled(self, life: Life, key: Key, old: Wire, new: Wire) -> None:
        """Judge that a batch with an id, whose answer may come."""
        law, was = "what has an id is polled while it may not be submitted", old["state"]["S"]
        is_ended = "ending" in new or "isolating" in new
        if is_ended or new["state"]["S"] != "ready":
            return
        is_soon = number(new, "due_at") <= number(new, "ready_at") + 10.0  # by one clock
        # One that failed for capacity, which waits, has no answer.
        if was == "queued" and is_soon:
            hours = float(os.environ["BATCH_DEADLINE_HOURS"])
            since = max((number(one, "at") for one in submissions(old)), default=0.0)
            is_overdue = self.world.kernel.now > since + hours * 3_600
            for reason in self._waiting(life, key):
                if reason == "OUTSTANDING" and is_overdue:  # It has a place itself.
                    continue
                probe = number(self.seen[life].get((CONTROL_PK, reason)), "next_probe")
                if not 0 < probe <= self.world.kernel.now:  # It may be that probe.
                    self.laws.broken(law, f"{key}: {reason}")

    def _judge_wait_of(self, life: Life, key: Key, old: Wire, new: Wire) -> None:
        """Judge that the clock of a batch stands still as long as its job is paused."""
        moved, stays = number(new, "due_at") - number(old, "due_at"), old["state"] == new["state"]
        paused = number(new, "paused")
        accepted = [number(one, "at") for one in submissions(new)][-1:]
        since = max([number(new, "ready_at") or number(new, "created_at"), *accepted])
        right = max(min(number(old, "paused") + moved, number(new, "due_at") - since), 0.0)
        is_moved = stays and number(new, "due_at") > 0 and old.get("held") != new.get("held")
        if paused < 0 or (is_moved and abs(paused - right) > 1):
            told = f"{key}: moved by {moved:g} s, paused {paused:g} s"
            self.laws.broken("a paused clock stands still", told)
        is_claim = "isolating" in old and "claims" in self.world.dynamodb.named
        if is_claim and stays and moved > 0:
            is_more = number(new, "claims") > number(old, "claims")
            is_counted = is_more or self.claimed.get(key) is life
            if number(old, "due_at") <= self.world.kernel.now and not is_counted:
                self.laws.broken("each claim counts", f"{key}: its isolation")
            self.claimed[key] = life

    def _judge_counts(self, key: Key, seen: Wire, old: Wire, new: Wire) -> None:
        is_undone = new["state"]["S"] == "ready" and "submission" in new.keys() - old.keys()
        for name, most in GROWING.items():
            more = number(new, name) - number(old, name)
            if name == "given_up" and is_undone:  # It was not sent, and has its id again.
                more += 1
            # A submit counts from the claims that it read; a wait may have reset them since.
            if name == "claims":
                more = min(more, number(new, name) - number(seen, name))
            if more > most or (more < 0 and name != "claims"):
                self.laws.broken("counts of a batch grow by one", f"{key}: {name} by {more:g}")
        is_begun = new["state"]["S"] == "submitting" != old["state"]["S"]
        if (number(new, "attempt") > number(old, "attempt")) != is_begun:
            self.laws.broken("each submit is an attempt of its own", f"{key}")
        claimed = is_begun or number(new, "polls") > number(old, "polls")
        if claimed and number(new, "claims") <= number(seen, "claims"):
            self.laws.broken("each claim counts", f"{key}")

    # ── permits ───────────────────────────────────────────────────────────────────────────────────

    def _judge_permit(self, life: Life, key: Key) -> None:
        """Judge that a submit followed the control items that its invocation has read."""
        laws = {
            "STACK": "a paused stack submits nothing",
            "OUTSTANDING": "a model has no more outstanding batches than it may",
        }
        for reason in self._waiting(life, key):
            if not reason.startswith("RATE"):  # Judged when the token is taken.
                law = laws.get(reason, "no call is made in a pause but its probe")
                self.laws.broken(law, f"{key}: {reason}")

    def _waiting(self, life: Life, key: Key) -> Iterator[str]:
        """Why a batch may not be submitted now."""
        now, seen = self.world.kernel.now, self.seen.get(life, {})
        probes = self.probes.get(life, set())
        for name in self._waits(seen, key):
            item = seen.get((CONTROL_PK, name), {})
            until = number(item, "until") or float("inf")
            if item and name not in probes and now < until:
                yield name
        if number(seen.get((CONTROL_PK, "STACK")), "held_since"):
            yield "STACK"
        full = seen.get((CONTROL_PK, "RATE#OUTSTANDING"), {}).get("full_models", {})
        if self._model(seen, key) in full.get("SS", ()):
            yield "OUTSTANDING"
        if number(seen.get((CONTROL_PK, "RATE")), "hold_until") > now:
            yield "RATE"

    def _waits(self, seen: dict[Key, Wire], key: Key) -> list[str]:
        return ["PAUSE", f"PAUSE#{self._model(seen, key)}"]

    def _model(self, seen: dict[Key, Wire], key: Key) -> str:
        job = seen.get((key[0], "META"))
        return str(job["plan"]["M"]["model"]["S"]) if job else ""

    def _judge_call(self, life: Life) -> None:
        """Judge that an invocation has taken a token for each call."""
        moments = self._moments[life] = self._moments.get(life, 0) + 1
        if moments > 2 * self.tokens.get(life, 0):
            told = f"{life.name}: {(moments + 1) // 2} calls"
            self.laws.broken("each call of the API has its token", told)

    def _judge_control(self, life: Life, name: str, old: Wire | None, new: Wire | None) -> None:
        now = self.world.kernel.now
        if name.startswith("PAUSE"):
            key, has_probe = (CONTROL_PK, name), name in self.probes.get(life, ())
            read = self._own().get(key) or self.seen[life].get(key)
            for law in pacing_laws.broken_by(read, old, new, now, has_probe=has_probe):
                self.laws.broken(law, f"{name}: {new}")
        if new is None:
            return
        if name == "RATE":
            self._judge_rate(life, name, old, new)
        elif name.startswith("PAUSE"):
            self._judge_wait(name, new, "next_probe", now + MAX_PROBE_SECONDS)
            if "until" in new and not now < number(new, "until") <= now + DAY + 60:
                self.laws.broken("a quota pause ends at midnight", f"{new}")
        if old is not None and "nonce" in old and old["nonce"] == new.get("nonce"):
            self.probes.setdefault(life, set()).add(name)

    def _judge_wait(self, name: str, new: Wire, moment: str, latest: float) -> None:
        lasts = number(new, moment) - number(new, "since")
        if number(new, moment) > latest or lasts < MIN_WAIT_SECONDS:
            told = f"{name}: {moment} {lasts:g} s after its beginning"
            self.laws.broken("every wait is bounded", told)

    def _judge_rate(self, life: Life, name: str, old: Wire | None, new: Wire) -> None:
        now, was, until = (
            self.world.kernel.now,
            number(old, "hold_until"),
            number(new, "hold_until"),
        )
        soonest = now + MIN_WAIT_SECONDS - self.world.calls.awkward.clock_behind_seconds
        if until > now + MAX_HOLD_SECONDS or was < until < soonest:
            self.laws.broken("every wait is bounded", f"RATE: hold_until {until - now:g}")
        if until < was:
            self.laws.broken("the longest wait counts", "RATE: hold_until")
        if until != was:
            read = self._own().get((CONTROL_PK, name)) or self.seen[life].get((CONTROL_PK, name))
            for law in pacing_laws.broken_by_wait(read, new, now):
                self.laws.broken(law, f"RATE: {new}")
        if (filled := number(new, "filled_at")) == number(old, "filled_at"):
            return
        # Of a full bucket nobody else knows from when on the tokens count.
        before = number(old, "filled_at")
        taken = round((filled - before) / self.interval) if before > 1000 * now else self.burst
        self.tokens[life] = self.tokens.get(life, 0) + taken
        if filled > 1000 * now + self.burst * self.interval:
            told = f"{filled - 1000 * now:g} ms"
            self.laws.broken("no more tokens are taken than the bucket holds", told)
        if number(self.seen.get(life, {}).get((CONTROL_PK, name)), "hold_until") > now:
            self.laws.broken("no token is taken while calls have to wait", f"{life.name}")


def _fraction(job: Wire) -> float:
    return number(job.get("status", {}).get("M", {}), "fraction")


def _lines(job: Wire) -> float:
    """Lines of a job's output so far."""
    return number(job.get("output", {}).get("M"), "lines")

"""The judges of a simulated world.

The laws after each write, and at the end results, bill and promises.

Each violation names its law, so that a run can be told by which law it broke. Judges read the
world's memory; they make no call and change nothing.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from local.workers_ai import expected_result
from shared.errors import RetryableError, UnreadableItemError
from shared.keys import staged
from simulation.services.dynamodb import MAX_ITEM_BYTES, Key, may_have, size_of
from tests.simulation.worlds.answer_laws import (
    Stored,
    judge_cost,
    judge_division,
    judge_given_up,
    judge_known,
)
from tests.simulation.worlds.users import meaning
from tests.simulation.worlds.world import FINAL, World
from tests.support.aws.wire_items import changed, number, submissions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tests.simulation.worlds.users import Dropped

    Item = dict[str, Any]

NEXT_STATES = {
    None: {"ready"},
    "ready": {"ready", "submitting", "done", "divided"},
    "submitting": {"submitting", "ready", "queued"},
    "queued": {"queued", "ready", "done"},
    "done": set(),
    "divided": set(),
}
"""What may follow a batch's state; a final item never changes again."""
NEXT_JOB_STATES = {
    None: {"splitting"},
    "splitting": {"splitting", "in_progress"},
    "in_progress": {"in_progress", "finalizing"},
    "finalizing": {"finalizing", *FINAL},
    "completed": set(),
    "failed": set(),
    "cancelled": set(),
}
MAX_DUE_SECONDS = 8 * 86_400.0
"""No open item is due later than this."""
CODES = {
    *("account_changed", "rejected", "inference_failed", "missing_response", "expired"),
    *("submit_unknown", "cancelled", "internal"),
}
"""Codes with which a good record may end, if faults were injected."""
FAILED_BY_CODE = frozenset(
    ("failed", "3003", "3006", "3030", "5001", "5004", "5006", "5028", "8007")
)
"""With which an accepted batch may fail.

The API's word for it, and the codes that blame the request. The gateway's
2016, 2017, 2029 and 2030 too, which no world plays on polls.
"""
ENDED_RECORDS = ("RecordsSucceeded", "RecordsUnreadable", "RecordsRefused", "RecordsUnanswered")
CALLS_IN_FIVE_MINUTES = 1_200
FIVE_MINUTES = 295.0
"""Seconds, less what a call may come after its token."""
MANIFEST_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A law or a promise that did not hold, where and when."""

    law: str
    detail: str
    at: float


class Laws:
    """Judges each write to the table.

    Attributes:
        violations: what was broken.
    """

    def __init__(self, world: World, events: list[str] | None = None) -> None:
        """Watch a world's table; `events` gets a line for each write and each violation."""
        self.world = world
        self.events = events
        self.violations: list[Violation] = []
        world.dynamodb.watchers.append(self.judge_write)
        Stored(self)

    def broken(self, law: str, detail: str) -> None:
        """Note a violation."""
        self.violations.append(Violation(law, detail, self.world.kernel.now))
        if self.events is not None:
            seconds = self.world.kernel.now - self.world.began
            self.events.append(f"{seconds:10.3f} BROKEN {law}: {detail}")

    def judge_write(self, key: Key, old: Item | None, new: Item | None) -> None:
        """Judge one write by what the item was and is."""
        self._note(key, old or {}, new or {})
        if not key[0].startswith("JOB#"):
            return
        if new is None:
            if old and "ttl" not in old:
                self.broken("an open item is never deleted", f"{key}")
            return
        was, state = old["state"]["S"] if old else None, new["state"]["S"]
        table = NEXT_JOB_STATES if key[1] == "META" else NEXT_STATES
        if was in table and not table[was] and not _is_cleanup(old or {}, new):
            self.broken(
                "a final item never changes", f"{key} {was}: {sorted(changed(old or {}, new))}"
            )
        elif state not in table[was] and table[was]:
            self.broken("only known transitions happen", f"{key}: {was} to {state}")
        self._judge_due(key, new, is_open=bool(table[state]))
        if len(new) > (len(old) if old else 0):
            size = size_of(new) if may_have(new, MAX_ITEM_BYTES // 4) else 0
            if size > MAX_ITEM_BYTES // 4:
                self.broken("no item grows with its job", f"{key}: {size} bytes")
        if old and key[1] != "META":
            if submissions(old) and submissions(old) != submissions(new):
                self._judge_new_id(key, old, new)
            self._judge_given_up(key, old, new)
            judge_division(self, key, old, new)
            judge_known(self, key, old, new)

    def _judge_new_id(self, key: Key, old: Item, new: Item) -> None:
        """Judge that an id is given up by the next submit only, and counted."""
        more = number(new, "given_up") - number(old, "given_up")
        if new["state"]["S"] != "submitting" or more != 1:
            self.broken("an id is given up by the next submit only", f"{key}: {more:g} more")

    def _judge_given_up(self, key: Key, old: Item, new: Item) -> None:
        """Judge that a poll makes a batch fail only by the API's word for it."""
        word: Item = new.get("ending", {})
        is_over = "isolating" in new and "isolating" not in old
        if word and word != old.get("ending"):
            is_over = is_over or word["M"]["code"]["S"] == "rejected"
        cause = new.get("cause", {}).get("S", "")
        if old["state"]["S"] == "queued" and is_over and cause not in FAILED_BY_CODE:
            law = "no paid answer is given up for a code that says nothing of it"
            self.broken(law, f"{key}: {cause or word}")

    def _note(self, key: Key, old: Item, new: Item) -> None:
        if self.events is not None:
            wrote = {name: new.get(name) for name in sorted(changed(old, new))}
            seconds = self.world.kernel.now - self.world.began
            self.events.append(f"{seconds:10.3f} wrote {key}: {wrote}"[:400])

    def _judge_due(self, key: Key, new: Item, *, is_open: bool) -> None:
        has_due = "due_at" in new and "work" in new
        if is_open and not has_due:
            self.broken("an open item has a due time", f"{key}: {new['state']['S']}")
        if not is_open and not has_due and "ttl" not in new:
            self.broken("a final item ends some day", f"{key}: {new['state']['S']}")
        latest = self.world.kernel.now + MAX_DUE_SECONDS
        if is_open and has_due and float(new["due_at"]["N"]) > latest:
            self.broken("an open item is due within days", f"{key}: {new['due_at']['N']}")


def _is_cleanup(old: Item, new: Item) -> bool:
    """Whether only what a finished item's cleanup may change has changed."""
    return changed(old, new) <= {"due_at", "work", "staging", "claims", "lease_until"}


class Ending:
    """Judges a world in which every job should be over."""

    def __init__(self, laws: Laws) -> None:
        """Add to the same violations."""
        self.laws = laws
        self.world = laws.world
        self.lines = 0
        """Of all result files that were judged."""

    def judge(
        self, dropped: list[Dropped], *, may_retry: bool = False, may_count: bool = True
    ) -> None:
        """Judge each job's results, and the bill of all.

        Args:
            dropped: what was dropped.
            may_retry: whether AWS was too slow or gave no answer, so that messages may fail and
                come again.
            may_count: whether each count has reached the metrics.
        """
        for one in dropped:
            if self.world.is_spoilt(one.upload):
                continue
            item = self.world.job(one.upload)
            if item is None or item["state"]["S"] not in FINAL:
                state = item["state"]["S"] if item else "no job"
                self.laws.broken("everything ends", f"{one.upload.key}: {state}")
                continue
            self.judge_results(one, item)
        if not self.world.is_spoilt():
            self.judge_bill()
        self._judge_failures(may_retry=may_retry or self.world.calls.awkward.throttled > 0)
        if may_count and not self.world.is_spoilt():
            self._judge_metrics()

    def _judge_failures(self, *, may_retry: bool) -> None:
        for function in self.world.functions.values():
            for error in function.errors:
                if isinstance(error, RetryableError) and may_retry:
                    continue
                self.laws.broken("no invocation fails", f"{function.name}: {error!r}")
        for failure in self.world.failures:
            if self.world.spoilt and isinstance(failure, UnreadableItemError):
                continue
            if not (isinstance(failure, RetryableError) and may_retry):
                self.laws.broken("no message fails", repr(failure)[:300])
        awkward = self.world.calls.awkward
        if awkward.death or awkward.delivered_twice or may_retry or self.world.spoilt:
            # Each of them uses up a message's deliveries; the ledger does what it asked for.
            return
        for queue in self.world.sqs.queues.values():
            for message in queue.dead:
                told = f"{queue.name}: {message.body[:200]}"
                self.laws.broken("no message becomes a dead letter", told)

    def _judge_metrics(self) -> None:
        """Judge that metrics count each record once."""
        if any(one.deaths for one in self.world.functions.values()):
            return
        counted = sum(self.world.metrics.get(name, 0) for name in ENDED_RECORDS)
        if counted != self.lines:
            told = f"{counted:.0f} counted, {self.lines} in result files"
            self.laws.broken("metrics count each record once", told)

    def judge_results(self, one: Dropped, item: Item) -> None:
        """Judge the results of one job that is over."""
        name = one.upload.key
        manifest_file = self.world.result(one.upload, "manifest.json")
        output = self.world.result(one.upload, "output.jsonl")
        if manifest_file is None:
            self.laws.broken("a job that is over has a manifest", name)
            return
        manifest = json.loads(manifest_file)
        lines = [json.loads(line) for line in (output or b"").splitlines()]
        self.lines += len(lines)
        expected = one.records
        if manifest["error"] or not manifest.get("read_to_end", True):
            expected = expected[: len(lines)]
        if [line["id"] for line in lines] != list(range(len(expected))):
            told = f"{name}: {len(lines)} of {len(expected)}"
            self.laws.broken("each record has exactly one line, in order", told)
            return
        for line, record in zip(lines, expected, strict=True):
            if record is None:
                is_right = not line["success"] and line["error"]["code"] == "invalid_json"
            elif line["success"]:
                is_right = line["result"] == expected_result(one.model, record)
                is_right &= line["external_reference"] == record.get("external_reference")
            else:
                may_fail = one.may_fail or manifest["error"]
                is_right = may_fail and line["error"]["code"] in CODES
            if not is_right:
                self.laws.broken("each line answers its record", f"{name}: {line}")
                return
        self._judge_uncertain(one, manifest)
        judge_given_up(self.laws, one.upload, lines, expected)
        judge_cost(self.laws, one.upload, manifest)
        good = sum(line["success"] for line in lines)
        counts = {"total": len(lines), "succeeded": good, "failed": len(lines) - good}
        if manifest["counts"] != counts:
            self.laws.broken("the manifest counts its lines", f"{name}: {manifest['counts']}")
        if item["state"]["S"] != manifest["state"]:
            told = f"{name}: {item['state']['S']}, {manifest['state']}"
            self.laws.broken("ledger and manifest agree", told)

    def _judge_uncertain(self, one: Dropped, manifest: dict[str, Any]) -> None:
        """Judge that a manifest counts each submit that may have been billed."""
        if manifest["error"]:
            return
        job, items = f"JOB#{one.upload.job_id}", self.world.dynamodb.items.items()
        counted = sum(int(number(item, "unknowable")) for key, item in items if key[0] == job)
        if (listed := manifest["unknowable_submits"]) != counted:
            told = f"{one.upload.key}: {listed} unknowable, {counted} in the ledger"
            self.laws.broken("the manifest counts what may be billed again", told)

    def judge_bill(self) -> None:
        """Judge that what the API billed is what the items of batches tell."""
        owner: dict[str, Key] = {}
        told = unknowable = 0
        dynamodb = self.world.dynamodb
        for key, item in dynamodb.items.items():
            if not key[1].startswith("BATCH#"):
                continue
            unknowable += int(number(item, "unknowable"))
            told += len(submissions(item)) + int(number(item, "given_up"))
            for one in submissions(item):
                request_id = one["request_id"]["S"]
                if request_id and owner.setdefault(request_id, key) != key:
                    both = f"{request_id}: {owner[request_id]}, {key}"
                    self.laws.broken("an id belongs to one batch", both)
        billed = [one["request_id"] for one in self.world.billed]
        if not set(owner) <= set(billed) or not told <= len(billed) <= told + unknowable:
            counted = f"{len(billed)} billed, {told} told, {unknowable} unknowable"
            self.laws.broken("the bill is what the ledger tells", counted)
        self._judge_bodies()
        again = sum(1 for _ in accepted_again(self.world.billed))
        if again and not self.world.has_faults and unknowable == 0:
            self.laws.broken("a batch is billed once", f"{again} batches were accepted again")

    def judge_calls(self) -> None:
        """Judge that in five minutes no more calls are made than the bucket holds and gets."""
        calls = self.world.calls_per_minute
        most = 5 * calls + max(1, calls // 2) * (1 + len(self.world.spoilt)) + 1
        if not self.world.is_through_worker:
            most = min(most, CALLS_IN_FIVE_MINUTES)
        times = sorted(self.world.call_times)
        for before, at in zip(times, times[most:], strict=False):
            if at - before < FIVE_MINUTES:
                told = f"over {most} by {at - self.world.began:.0f} s"
                self.laws.broken("calls stay within the rate", told)
                return

    def _judge_bodies(self) -> None:
        """Judge that each batch was accepted with its own records."""
        bodies = {one["request_id"]: one["sha256"] for one in self.world.billed}
        for key, item in self.world.dynamodb.items.items():
            if not key[1].startswith("BATCH#"):
                continue
            for one in submissions(item):
                request_id = one["request_id"]["S"]
                name = staged(key[0].removeprefix("JOB#"), key[1].removeprefix("BATCH#"))
                stored = self.world.s3.objects.get(name)
                if stored is None or request_id not in bodies:
                    continue
                size = int(item["records"]["M"]["body_size"]["N"])
                if meaning(stored.body[:size]) != bodies[request_id]:
                    told = f"{key}: {request_id}"
                    self.laws.broken("a batch is submitted with its own records", told)


def accepted_again(billed: Iterable[Item]) -> Iterator[str]:
    """Bodies that were accepted again."""
    deadline = 3_600 * float(os.environ["BATCH_DEADLINE_HOURS"])
    before: dict[str, float] = {}
    for one in billed:
        if one["time"] < before.get(one["sha256"], 0.0):
            yield one["sha256"]
        is_late = one["completes_at"] is None or one["completes_at"] > one["time"] + deadline
        before[one["sha256"]] = one["time"] + deadline if is_late else inf


class Promises:
    """Judges what README promises of a stack without faults, all along.

    Calls, first batches, manifests.

    Attributes:
        first_batch: seconds from each upload to its first acceptance.
        manifest: seconds from each job's last answer to its manifest.
    """

    def __init__(self, laws: Laws) -> None:
        """Watch a world's table."""
        self.laws = laws
        self.world = laws.world
        self.first_batch: dict[str, float] = {}
        self.last_done: dict[str, float] = {}
        self.over: dict[str, float] = {}
        laws.world.dynamodb.watchers.append(self._note)

    def _note(self, key: Key, old: Item | None, new: Item | None) -> None:
        if new is None or not key[0].startswith("JOB#"):
            return
        state, was = new["state"]["S"], old["state"]["S"] if old else None
        if key[1] == "META":
            if state in FINAL and was not in FINAL:
                self.over[key[0]] = self.world.kernel.now
        elif state == "queued" and was == "submitting":
            self.first_batch.setdefault(key[0], self.world.kernel.now)
        elif state == "done" and was != "done":
            self.last_done[key[0]] = self.world.kernel.now

    def seconds_of(self, one: Dropped) -> float:
        """Seconds from a drop to the end of its job; infinite if it is not over."""
        return self.over.get(f"JOB#{one.upload.job_id}", inf) - one.upload.at

    def judge_small_drops(self, dropped: list[Dropped], most: float) -> None:
        """Judge that 95 of 100 small drops are over within so many seconds."""
        late = sum(self.seconds_of(one) > most for one in dropped)
        if late > len(dropped) * 5 // 100:
            told = f"{late} of {len(dropped)} after {most:.1f} s"
            self.laws.broken("95 of 100 small drops are over in time", told)

    def judge(self, dropped: list[Dropped], calls_per_minute: int) -> None:
        """Judge the times of jobs that had no faults and no command."""
        first_batch_seconds = 120.0 * (1 + len(dropped) / calls_per_minute)
        for one in dropped:
            job, name = f"JOB#{one.upload.job_id}", one.upload.key
            waited = self.first_batch.get(job, 0.0) - one.upload.at
            if waited > first_batch_seconds:
                self.laws.broken("a job's first batch is submitted in time", f"{name}: {waited} s")
            late = self.over.get(job, 0.0) - self.last_done.get(job, inf)
            if late > MANIFEST_SECONDS:
                self.laws.broken("a manifest follows the last answer in time", f"{name}: {late} s")

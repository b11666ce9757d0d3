"""Laws of what was paid: no answer is given up that can be had; all that was accepted costs."""

from __future__ import annotations

import os
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from functions.poll import doubts
from tests.support.aws.wire_items import number, submissions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulation.services.dynamodb import Key
    from simulation.services.s3 import Version
    from tests.simulation.worlds.judges import Laws
    from tests.simulation.worlds.world import Upload

GIVEN_UP = "no answer that the API has is given up"
RUNS = "no batch is divided while an id of it has its answer, or will have it"
BILLED = "a job costs what was billed for it"
PRECISE, LEAST_PART = Decimal("0.00000002"), 3
"""Dollars, and by how much an estimate of answers that nobody saw may be too low."""
COSTS = "what was accepted has a cost"
USED = "an answer that is stored is used"
KNOWN = "a batch whose id the API has is not submitted again"
NO_REASON = "Workers AI gave no reason."
LOST, NO_ANSWERS = doubts.LOST.message, doubts.NO_ANSWERS.message
LATE = doubts.LATE.message
NAMED = re.compile(rb'"(?:id|index)":\d|"external_reference":"')
"""What says whose an item is: without it nobody knows, and nothing is guessed."""
RAW = re.compile(r"staging/([^/]+)/([^/]+)/raw-(\d+)-\d+")
CLOCKS_SECONDS = 60.0
"""Seconds by which clocks may differ."""
CAPACITY_SECONDS = 10.0
"""A batch that failed for capacity is submitted again later than after these."""
FAILED_SECONDS, LONG_SECONDS = 50.0, 900.0
"""Seconds after which a failure is believed, and one that may be the API's own."""


def judge_given_up(
    laws: Laws, upload: Upload, lines: Sequence[dict[str, Any]], records: Sequence[Any]
) -> None:
    """Judge that the API would not answer now what ended without an answer from it."""
    missing = [
        record
        for line, record in zip(lines, records, strict=True)
        if not line["success"]
        and (
            (line["error"]["code"] == "missing_response" and line["error"]["message"] != NO_ANSWERS)
            or line["error"]["message"] in {LOST, NO_REASON}
        )
    ]
    for record in missing:
        for item in _batches(laws, upload) if record is not None else ():
            for request_id in _ids(item):
                if laws.world.api.would_answer(request_id, record):
                    laws.broken(GIVEN_UP, f"{upload.key}: {record}, in {request_id}")


def judge_division(laws: Laws, key: Key, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Judge that a batch whose id runs is divided only after its deadline or long failures."""
    if "isolating" in old or "isolating" not in new or not submissions(old):
        return
    now, latest = laws.world.kernel.now, submissions(old)[-1]
    hours = float(os.environ["BATCH_DEADLINE_HOURS"])
    since = max(float(latest["at"]["N"]), number(old, "ready_at")) + number(old, "paused")
    is_late = now - since > 3_600 * hours - CLOCKS_SECONDS
    has_failed = _is_believed(old, now)
    if is_late or has_failed:
        return
    ids = {one["request_id"]["S"] for one in submissions(old)}
    for one in laws.world.billed:
        if one["request_id"] in ids and not one["failed"]:
            laws.broken(RUNS, f"{key}: {one['request_id']}")


def _is_believed(batch: dict[str, Any], now: float) -> bool:
    """Whether polls have said for long enough that a batch failed, or of a piece twice."""
    doubt = batch.get("doubt", {"M": {}})["M"]
    kind, times = doubt.get("kind", {"S": ""})["S"], number(doubt, "times")
    lasted = now - number(doubt, "since")
    if kind.startswith(("failed", "refused ")) and "is_shared" not in doubt:
        return "suspected" in batch["records"]["M"] or (times > 3 and lasted > FAILED_SECONDS)
    return times > 3 and lasted > LONG_SECONDS - CLOCKS_SECONDS


def judge_cost(laws: Laws, upload: Upload, manifest: dict[str, Any]) -> None:
    """Judge that accepted batches for which the API never gave an answer are estimated."""
    if (cost := manifest["cost"]) is None:
        return
    unanswered = {
        one["request_id"]
        for one in laws.world.billed
        if not (one["answers"] or one["failed"] or one["inline"])
    }
    # A failure that was believed after several polls counts as one: for all that anybody knows, it
    # cost nothing.
    done = [
        item
        for item in _batches(laws, upload)
        if item["state"]["S"] == "done" and not ("cause" in item and "doubt" in item)
    ]
    never = sum(request_id in unanswered for item in done for request_id in _ids(item))
    if cost["uncollected_batches"] < never or (never and not cost["estimated"]):
        laws.broken(COSTS, f"{upload.key}: {never} batches without an answer, {cost}")
    _judge_bill(laws, upload, manifest)


def _judge_bill(laws: Laws, upload: Upload, manifest: dict[str, Any]) -> None:
    """Judge that a cost is what the API billed for a job, whether its answers came or not.

    Of a submit without an answer nobody knows whether it was billed: the manifest counts it.
    """
    cost, unknowable = manifest["cost"], manifest["unknowable_submits"]
    start, amount = f"{upload.key.removeprefix('inbox/')} ", Decimal(cost["amount"])
    ours = [
        one
        for one in laws.world.billed
        if not one["failed"] and laws.world.sent[one["sha256"]][0]["text"].startswith(start)
    ]
    bills = sorted(map(laws.world.bill_of, ours))
    billed = sum(bills[: max(len(bills) - unknowable, 0)], Decimal())
    is_exact = not (cost["estimated"] or laws.world.has_faults or unknowable)
    if (is_exact and abs(amount - billed) > PRECISE) or amount < billed / LEAST_PART - PRECISE:
        laws.broken(BILLED, f"{upload.key}: {billed} for {len(ours)} batches, {cost}")


class Stored:
    """Judges that an answer that S3 has is used: nobody knows whether the API gives it again."""

    def __init__(self, laws: Laws) -> None:
        """Watch a world's objects, and its table."""
        self.laws = laws
        self.whole: set[tuple[str, ...]] = set()
        """Job, batch and attempt of each stored reply with a good item that says whose it is."""
        laws.world.s3.watchers.append(self._note)
        laws.world.dynamodb.watchers.append(self._judge)

    def _note(self, version: Version) -> None:
        found = RAW.fullmatch(version.key)
        has_good = version.body.count(b'"success":true') > 1  # The envelope's own is one.
        if found and has_good and NAMED.search(version.body):
            self.whole.add(found.groups())

    def _judge(self, key: Key, old: dict[str, Any] | None, new: dict[str, Any] | None) -> None:
        if not old or not new or key[1] == "META" or not submissions(old):
            return
        attempt = submissions(old)[-1]["attempt"]["N"]
        job, number_ = key[0].removeprefix("JOB#"), key[1].removeprefix("BATCH#")
        ending = new.get("ending", {"M": {}})["M"].get("message", {"S": ""})["S"]
        is_unused = ending in {LOST, NO_ANSWERS, LATE} and "part" in new
        is_unused = is_unused and not number(new["part"]["M"], "succeeded")
        is_again = (old["state"]["S"], new["state"]["S"]) == ("ready", "submitting")
        if (job, number_, attempt) in self.whole and (is_again or is_unused):
            self.laws.broken(USED, f"{key}: {ending or 'submitted again'}")


def judge_known(laws: Laws, key: Key, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Judge that no batch is submitted again, before its deadline, whose id the API has."""
    if (old["state"]["S"], new["state"]["S"]) != ("queued", "ready"):
        return
    latest, hours = submissions(old)[-1], float(os.environ["BATCH_DEADLINE_HOURS"])
    now = laws.world.kernel.now
    is_late = (
        now - float(latest["at"]["N"]) - number(old, "paused") > 3_600 * hours - CLOCKS_SECONDS
    )
    wait = number(new, "due_at") - number(new, "ready_at")  # by one clock
    failed_for_capacity = wait > CAPACITY_SECONDS
    if "ending" in new or "isolating" in new or is_late or failed_for_capacity:
        return
    api, request_id = laws.world.api, latest["request_id"]["S"]
    was_unknown = number(old, "calls_fail_since") and api.would_answer(request_id, None)
    if was_unknown or api.is_pending(request_id):
        laws.broken(KNOWN, f"{key}")


def _batches(laws: Laws, upload: Upload) -> Iterator[dict[str, Any]]:
    """The items of a job's batches."""
    dynamodb = laws.world.dynamodb
    for key, item in dynamodb.items.items():
        if key[0] == f"JOB#{upload.job_id}" and key[1].startswith("BATCH#"):
            yield item


def _ids(item: dict[str, Any]) -> list[str]:
    return [one["request_id"]["S"] for one in submissions(item) if one["request_id"]["S"]]

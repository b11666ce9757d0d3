"""Keys of the ledger's items, its `due` index, and items that cannot be read or worked on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dropbatch.core.names import FINAL_JOB_STATES, JobState
from shared.aws.attribute_values import attribute
from shared.aws.dynamodb import Table
from shared.models import BatchState, DueKind

LIFE_SECONDS = 90 * 86_400  # That an item is kept after its end; a job's is its tombstone


@dataclass(frozen=True, slots=True)
class DueEntry:
    """One entry of the `due` index."""

    job_id: str  # the job
    number: str  # the batch's number; empty for the job itself
    due_at: float | None  # as read from the index; None if a message named the item

    @property
    def key(self) -> dict[str, Any]:
        """The item's key."""
        return batch_key(self.job_id, self.number) if self.number else job_key(self.job_id)


def job_key(job_id: str) -> dict[str, Any]:
    """Key of a job's item."""
    return {"pk": {"S": f"JOB#{job_id}"}, "sk": {"S": "META"}}


def batch_key(job_id: str, number: str) -> dict[str, Any]:
    """Key of a batch's item."""
    return {"pk": {"S": f"JOB#{job_id}"}, "sk": {"S": f"BATCH#{number}"}}


class DueItems(Table):
    """Due items of the one table."""

    def due(self, work: DueKind, now: float, limit: int) -> tuple[list[DueEntry], float | None]:
        """The due items of one kind, oldest first; and when the next one after them will be due.

        The index may lag, so every claim checks the item itself.
        """
        items = self.call("query", **_of_kind(work), Limit=limit + 1)["Items"]
        times = [_due_at(item) for item in items]
        entries = [
            DueEntry(
                item["pk"]["S"].removeprefix("JOB#"),
                item["sk"]["S"].removeprefix("BATCH#") if item["sk"]["S"] != "META" else "",
                at,
            )
            for item, at in zip(items, times, strict=True)
        ]
        due = sum(at <= now for at in times[:limit])
        return entries[:due], times[due] if due < len(times) else None

    def count_by_job(self, work: DueKind, most: int) -> Counter[str]:
        """The number of items of one kind of work per job, due or not, up to about `most`."""
        counted: Counter[str] = Counter()
        for page in self.pages(**_of_kind(work), ProjectionExpression="pk"):
            counted.update(item["pk"]["S"].removeprefix("JOB#") for item in page["Items"])
            if counted.total() >= most:
                break
        return counted

    def count_open(self, work: DueKind, most: int) -> int:
        """The number of items of one kind of work, due or not, counted up to about `most`."""
        counted = 0
        for page in self.pages(**_of_kind(work), Select="COUNT"):
            counted += page["Count"]
            if counted >= most:
                break
        return counted

    def claims_of(self, due: DueEntry) -> int:
        """How often an item was claimed, whatever else it holds; 0 if it does not say."""
        return _claims(self.get(due.key) or {})

    def is_over(self, due: DueEntry) -> bool:
        """Whether a job is in a final state, whatever else its item holds."""
        state = (self.get(due.key) or {}).get("state", {}).get("S")
        return state in FINAL_JOB_STATES

    def unclaimed(self, job_id: str, number: str, now: float) -> tuple[DueEntry, int] | None:
        """When an item that the submit function works on is due, and its claims; None while leased.

        None too if it has got further: then the function failed after the write that counts.
        """
        item = self.get(DueEntry(job_id, number, None).key) or {}
        begun = attribute(BatchState.READY.value if number else JobState.SPLITTING.value)
        if item.get("state") != begun or float(item.get("lease_until", {}).get("N", "0")) > now:
            return None
        return DueEntry(job_id, number, float(item["due_at"]["N"])), _claims(item)

    def set_aside(self, due: DueEntry, claims: int, due_at: float) -> bool:
        """Claim an item of any kind and size that is still due when the index said."""
        values = {"due_at": int(due_at), "claims": claims}
        return self._change_raw(due, "SET due_at = :due_at, claims = :claims", values)

    def retire(self, due: DueEntry, now: float) -> bool:
        """End an item that could not be read or written for days; its other attributes stay."""
        state = BatchState.DONE if due.number else JobState.FAILED
        settings = "SET #state = :state, completed_at = :now, #ttl = :ttl"
        update = f"{settings} REMOVE due_at, #work, lease_until"
        values = {"state": state.value, "now": int(now), "ttl": int(now) + LIFE_SECONDS}
        return self._change_raw(due, update, values, ("state", "ttl", "work"))

    def forget_cleanup(self, due: DueEntry) -> bool:
        """Leave the staged objects of a job that cannot be read to the bucket's lifecycle rule."""
        return self._change_raw(due, "REMOVE due_at, #work", {}, ["work"])

    def _change_raw(
        self, due: DueEntry, update: str, values: Mapping[str, object], names: Sequence[str] = ()
    ) -> bool:
        """Change an item of any kind; False if it was worked on meanwhile."""
        seen = {**values, "seen": due.due_at}
        return self.change_if(due.key, update, "due_at = :seen", seen, {of: of for of in names})


def _of_kind(work: DueKind) -> dict[str, Any]:
    """The partition of the index with one kind of work, as query arguments."""
    return {
        "IndexName": "due",
        "KeyConditionExpression": "#work = :work",
        "ExpressionAttributeNames": {"#work": "work"},
        "ExpressionAttributeValues": {":work": {"S": work}},
    }


def _due_at(item: Mapping[str, Any]) -> float:
    return float(item["due_at"]["N"])


def _claims(item: Mapping[str, Any]) -> int:
    claims = item.get("claims", {}).get("N", "0")
    return int(claims) if claims.isdecimal() else 0

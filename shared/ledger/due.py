"""Due items in the ledger: the `due` index, and items that cannot be read or worked on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shared.aws.attribute_values import attribute
from shared.aws.dynamodb import ConditionFailedError, Table
from shared.ledger.item_keys import LIFE_SECONDS, DueEntry
from shared.models import BatchState, DueKind, JobState

if TYPE_CHECKING:
    from collections.abc import Mapping


class DueItems(Table):
    """What is due in the one table."""

    def due(self, work: DueKind, now: float, limit: int) -> tuple[list[DueEntry], float | None]:
        """What of one kind is due, oldest first, and when the next of it will be.

        The index may lag, so every claim checks the item itself.

        Args:
            work: the kind.
            now: Unix seconds.
            limit: entries to look at.

        Returns:
            What is due, at most `limit`; and when the first entry behind it is due: None if there is none.
        """
        page = self.call(
            "query",
            IndexName="due",
            KeyConditionExpression="#work = :work",
            ExpressionAttributeNames={"#work": "work"},
            ExpressionAttributeValues={":work": {"S": work.value}},
            Limit=limit + 1,
        )
        times = [float(item["due_at"]["N"]) for item in page["Items"]]
        entries = [
            DueEntry(
                item["pk"]["S"].removeprefix("JOB#"),
                item["sk"]["S"].removeprefix("BATCH#") if item["sk"]["S"] != "META" else "",
                at,
            )
            for item, at in zip(page["Items"], times, strict=True)
        ]
        due = sum(at <= now for at in times[:limit])
        return entries[:due], times[due] if due < len(times) else None

    def count_by_job(self, work: DueKind, most: int) -> Counter[str]:
        """Items of one kind of work by their job, due or not, counted up to about `most`."""
        counted: Counter[str] = Counter()
        position: dict[str, Any] = {}
        while counted.total() < most:
            page = self.call(
                "query",
                IndexName="due",
                KeyConditionExpression="#work = :work",
                ExpressionAttributeNames={"#work": "work"},
                ExpressionAttributeValues={":work": {"S": work.value}},
                ProjectionExpression="pk",
                **position,
            )
            counted.update(item["pk"]["S"].removeprefix("JOB#") for item in page["Items"])
            if "LastEvaluatedKey" not in page:
                break
            position = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
        return counted

    def count_open(self, work: DueKind, most: int) -> int:
        """Items of one kind of work, due or not, counted up to about `most`."""
        counted = 0
        position: dict[str, Any] = {}
        while counted < most:
            page = self.call(
                "query",
                IndexName="due",
                KeyConditionExpression="#work = :work",
                ExpressionAttributeNames={"#work": "work"},
                ExpressionAttributeValues={":work": {"S": work.value}},
                Select="COUNT",
                **position,
            )
            counted += page["Count"]
            if "LastEvaluatedKey" not in page:
                break
            position = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
        return counted

    def claims_of(self, due: DueEntry) -> int:
        """How often an item was claimed, whatever else it holds; 0 where it does not say."""
        return _claims(self.get(due.key) or {})

    def unclaimed(self, job_id: str, number: str, now: float) -> tuple[DueEntry, int] | None:
        """When an open item is due and how often it was claimed; None while somebody holds it."""
        item = self.get(DueEntry(job_id, number, None).key) or {}
        held = item.get("state") == attribute(BatchState.SUBMITTING.value)
        if "due_at" not in item or held or float(item.get("lease_until", {}).get("N", "0")) > now:
            return None
        return DueEntry(job_id, number, float(item["due_at"]["N"])), _claims(item)

    def set_aside(self, due: DueEntry, claims: int, due_at: float) -> bool:
        """Claim an item that could not be read or written, if it is due as the index said.

        Only two short numbers are replaced, so that this works for an item that is as large as DynamoDB allows.
        """
        return self._change_raw(
            due,
            "SET due_at = :due_at, claims = :claims",
            {":due_at": attribute(int(due_at)), ":claims": attribute(claims)},
        )

    def retire(self, due: DueEntry, now: float) -> bool:
        """End an item that could not be read or written for days; its other attributes stay for whoever looks."""
        state = BatchState.DONE if due.number else JobState.FAILED
        return self._change_raw(
            due,
            "SET #state = :state, completed_at = :now, #ttl = :ttl REMOVE due_at, #work, lease_until",
            {
                ":state": attribute(state.value),
                ":now": attribute(int(now)),
                ":ttl": attribute(int(now) + LIFE_SECONDS),
            },
            {"#state": "state", "#ttl": "ttl", "#work": "work"},
        )

    def _change_raw(
        self, due: DueEntry, update: str, values: dict[str, Any], names: dict[str, str] | None = None
    ) -> bool:
        try:
            self.call(
                "update_item",
                Key=due.key,
                UpdateExpression=update,
                ConditionExpression="due_at = :seen",
                ExpressionAttributeValues={**values, ":seen": attribute(due.due_at)},
                **({"ExpressionAttributeNames": names} if names else {}),
            )
        except ConditionFailedError:
            return False  # it was worked on meanwhile
        return True


def _claims(item: Mapping[str, Any]) -> int:
    claims = item.get("claims", {}).get("N", "0")
    return int(claims) if claims.isdecimal() else 0

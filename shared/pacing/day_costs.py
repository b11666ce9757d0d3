"""What all jobs of a stack cost in one UTC day together (`MaxCostPerDay`), in one control item a day.

A submit reserves what its batch will probably cost before it claims the batch; the batch's item keeps the reservation
(`Reservation`), and when the batch is final, what it really cost takes its place. The item is written whole, on the
condition that nobody wrote it since it was read. So a write that is sent twice counts once, and of two functions that
reserve the same money one reads again. An operator's lift depends on nothing that it has read, so no other prevents it.

| who dies | what follows |
| --- | --- |
| after the reservation, before the claim of the batch | the next try reserves again: counted twice, for that day only |
| after the claim, before the POST | the batch keeps its reservation, and the next try of the same day uses it again |
| after the batch is final, before its cost is noted | the reservation stays counted instead, for that day only |

A new day has a new item, so nothing is counted for ever. A batch counts for the day on which it was submitted last. Of
functions whose clocks differ at midnight, each counts for the day of its own clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shared.aws.attribute_values import attribute, attributes
from shared.aws.dynamodb import ConditionFailedError
from shared.models import Reservation
from shared.observability import logger
from shared.pacing.control_items import ControlItems
from shared.pacing.controls import control_key
from shared.pacing.cost_limit import MAX_COST_LOOK_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_dynamodb import DynamoDBClient

DAY_SECONDS, WAIT_NOTED_SECONDS = 86_400, 60.0
KEPT_DAYS = 30
"""Days after which a day's item is deleted."""
CHANGE_TRIES = 5
"""Times a change is tried again immediately that another function was quicker with."""


class Room(StrEnum):
    """Whether a day's limit allows a batch."""

    ALLOWED = "allowed"
    WAIT = "wait"  # Until it is known what the outstanding batches cost.
    NONE = "none"  # For the rest of the day.


@dataclass(frozen=True, slots=True)
class DayCosts:
    """The costs of one day, in billionths of a US dollar.

    Attributes:
        spent: what was submitted on that day and is known.
        reserved: what batches that were submitted on that day and are not final will probably cost.
        lifted: whether an operator has lifted the limit for that day.
        waited_at: when a batch last had to wait until it is known what others cost, Unix seconds.
        writes: how often it was written.
        last: which batch's change was the last.
    """

    spent: int = 0
    reserved: int = 0
    lifted: bool = False
    waited_at: float = 0.0
    writes: int = 0
    last: str = ""


def day_of(now: float) -> str:
    """The UTC day of a time: YYYY-MM-DD."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"


class DayLimit(ControlItems):
    """The stack's limit for each day."""

    def __init__(self, client: DynamoDBClient, table: str, limit: int) -> None:
        """Use a ready client. `limit`: billionths of a US dollar."""
        super().__init__(client, table)
        self.limit = limit

    def day(self, day: str) -> DayCosts:
        """The costs of a day."""
        return self.readable(self.get(_key(day)), DayCosts) or DayCosts()

    def reserve(self, name: str, amount: int, held: Reservation | None, submits: int, now: float) -> Reservation | Room:
        """Reserve what a batch will probably cost, once for each of its submits.

        Args:
            name: the batch's.
            amount: what it costs; more than the limit is reserved as the limit, so that a new day allows it. A limit of
                0 allows nothing.
            held: what the batch reserved before.
            submits: submits of the batch that may be paid, before this one.
            now: Unix seconds.

        Returns:
            The reservation, or why there is none.
        """
        limit, day = self.limit, day_of(now)
        if held and (held.day, held.submits) == (day, submits):
            return held
        before = held if held and held.day == day else Reservation(day, 0, 0)
        wanted = Reservation(day, min(amount, limit), submits, before.counted + before.amount)
        seen = self.day(day)
        for _ in range(CHANGE_TRIES):
            if seen.last == f"{name} {submits}":
                return wanted  # This is another try of the same submit.
            if not seen.lifted:
                if not limit:
                    return Room.NONE
                # What an earlier submit of the batch reserved may be paid for, and counts as spent from now on.
                if seen.spent + before.amount + wanted.amount > limit:
                    return Room.NONE
                if seen.spent + seen.reserved + wanted.amount > limit:
                    self._note_wait(day, seen, now)
                    return Room.WAIT
            changed = replace(
                seen, spent=seen.spent + before.amount, reserved=seen.reserved - before.amount + wanted.amount
            )
            if self._put(day, seen, replace(changed, last=f"{name} {submits}")):
                return wanted
            seen = self.day(day)
        return Room.WAIT

    def _note_wait(self, day: str, seen: DayCosts, now: float) -> None:
        """Note for those who look that a batch waits. Lost if another write is quicker: the batch looks again."""
        if now - seen.waited_at > WAIT_NOTED_SECONDS:
            self._put(day, seen, replace(seen, waited_at=now))

    def is_awaited(self, now: float) -> bool:
        """Whether batches wait until it is known what others cost, so far as they have looked."""
        seen = self.day(day_of(now))
        is_noted = now - seen.waited_at < MAX_COST_LOOK_SECONDS + WAIT_NOTED_SECONDS
        return is_noted and seen.reserved > 0 and not seen.lifted

    def settle(self, name: str, held: Reservation, amount: int, now: float) -> None:
        """Note what a batch cost that is final, in place of what it reserved. A day that is over is left as it is."""
        if held.day != day_of(now):
            return

        def settled(seen: DayCosts) -> DayCosts:
            spent = seen.spent + amount - held.counted
            return replace(seen, spent=max(spent, 0), reserved=max(seen.reserved - held.amount, 0), last=name)

        if not self._change(held.day, settled):
            job_id, _, number = name.partition(" ")
            logger.warning("cost of a batch not noted", job_id=job_id, number=number)

    def lift_day(self, now: float) -> None:
        """Lift the limit for the rest of a day, whatever others write meanwhile.

        Raises:
            StorageError: DynamoDB failed.
        """
        day = day_of(now)
        if not self._lift(day) and not self._put(day, DayCosts(), DayCosts(lifted=True)):
            self._lift(day)  # Another function was quicker to write the day's first costs.

    def _lift(self, day: str) -> bool:
        """Lift the limit of a day that has costs; whether it has."""
        try:
            self.call(
                "update_item",
                Key=_key(day),
                UpdateExpression="SET lifted = :lifted, writes = writes + :one",
                ConditionExpression="attribute_exists(pk)",
                ExpressionAttributeValues={":lifted": {"BOOL": True}, ":one": attribute(1)},
            )
        except ConditionFailedError:
            return False
        return True

    def _change(self, day: str, change: Callable[[DayCosts], DayCosts]) -> bool:
        for _ in range(CHANGE_TRIES):
            seen = self.day(day)
            if self._put(day, seen, change(seen)):
                return True
        return False

    def _put(self, day: str, seen: DayCosts, new: DayCosts) -> bool:
        """Write a day's costs, if nobody has since they were read; a write that was sent twice counts once."""
        new = replace(new, writes=seen.writes + 1)
        ttl = int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) + KEPT_DAYS * DAY_SECONDS
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(pk)"}
        if seen.writes:
            values = {":seen": attribute(seen.writes)}
            condition = {"ConditionExpression": "writes = :seen", "ExpressionAttributeValues": values}
        try:
            self.call("put_item", Item={**_key(day), **attributes(new), "ttl": attribute(ttl)}, **condition)
        except ConditionFailedError as error:
            return error.sent_again and self.day(day) == new
        return True


def _key(day: str) -> dict[str, Any]:
    return control_key(f"COST#{day}")

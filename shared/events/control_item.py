"""The control item of an account's events.

Its queue, its subscriptions, what was refused, and when to pull next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shared.aws.attribute_values import attribute, attributes, read
from shared.aws.dynamodb import ConditionFailedError, Table
from shared.errors import UnreadableItemError
from shared.observability import count_broken_law, logger
from shared.pacing.controls import control_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_dynamodb import DynamoDBClient

ASIDE_SECONDS = (60.0, 300.0, 900.0, 3_600.0)
"""Seconds for which nothing is pulled after the first, second.

Third and each further refusal in a row.
"""
CACHED_STATE_SECONDS = 5.0
STALE_SECONDS = 60.0
"""Seconds after which a pull that was planned and not made counts no longer."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of one model's events.

    Attributes:
        id: Cloudflare's; empty if there is none.
        at: when it was made, Unix seconds.
        again_at: when one that failed is tried again, Unix seconds.
        problem: why there is none; empty if there is one.
    """

    id: str = ""
    at: float = 0.0
    again_at: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class EventsState:
    """What the control item holds. Times are Unix seconds; 0: never.

    Attributes:
        queue_id: Cloudflare's id of the queue; empty if there is none.
        queue_name: its name.
        made_at: when it was made or found.
        is_off: whether an operator switched events off.
        version: of the operator's command that was carried out last.
        refused_at: when the set-up was refused.
        refusal: what the API said then.
        refused_until: until when it is not tried again.
        aside_until: until when nothing is pulled, because a pull was refused.
        aside_step: refusals in a row.
        busy_until: until when a function sets something up.
        youngest_at: when the youngest batch was accepted.
        pull_at: when to pull next.
        pulls_until: when the last of the pulls comes for which messages are on their way.
        quiet_until: until when no batch can be over, as far as was known when the youngest was
            accepted.
        pulled_at: when the queue was last pulled until it was empty.
        subscriptions: by model; each is an attribute of the item, named as the model.
    """

    queue_id: str = ""
    queue_name: str = ""
    made_at: float = 0.0
    is_off: bool = False
    version: str = ""
    refused_at: float = 0.0
    refusal: str = ""
    refused_until: float = 0.0
    aside_until: float = 0.0
    aside_step: int = 0
    busy_until: float = 0.0
    youngest_at: float = 0.0
    pull_at: float = 0.0
    pulls_until: float = 0.0
    quiet_until: float = 0.0
    pulled_at: float = 0.0
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    def needs_set_up(self, model: str, now: float) -> bool:
        """Whether the queue, or the subscription of a model, is to be made now."""
        if self.is_off or self.refused_until > now:
            return False
        known = self.subscriptions.get(model)
        if not self.queue_id or known is None:
            return True
        # A subscription that is older than the queue was for one that somebody deleted.
        return known.at < self.made_at if known.id else known.again_at <= now

    def can_pull(self, now: float) -> bool:
        """Whether there is a queue that may be read now."""
        return self.is_read_on and self.aside_until <= now

    @property
    def is_read_on(self) -> bool:
        """Whether there is a queue that is read, now or later."""
        return bool(self.queue_id) and not self.is_off


class EventsItem(Table):
    """Reads and writes the item of one account."""

    def __init__(self, client: DynamoDBClient, table: str, account: str) -> None:
        """Use a ready client; nothing is read yet."""
        super().__init__(client, table)
        self.key = control_key(f"EVENTS#{account}")
        self.cached: tuple[float, EventsState] = (0.0, EventsState())

    def recent(self, now: float) -> EventsState:
        """What was known a few seconds ago at most.

        Raises:
            StorageError: DynamoDB failed.
        """
        read_at, state = self.cached
        if now - read_at >= CACHED_STATE_SECONDS:
            state = self.state()
            self.cached = now, state
        return state

    def state(self) -> EventsState:
        """What is known. An item that cannot be read is deleted.

        So that the next submit sets everything up again.

        Raises:
            StorageError: DynamoDB failed.
        """
        item = self.get(self.key) or {}
        models = {name: wire for name, wire in item.items() if name.startswith("@")}
        try:
            subscriptions = {name: read(wire["M"], Subscription) for name, wire in models.items()}
            found = {name: wire for name, wire in item.items() if name not in models}
            return replace(read(found, EventsState), subscriptions=subscriptions)
        except (UnreadableItemError, KeyError):
            logger.exception("control item of events deleted, because it cannot be read")
            count_broken_law()
            self.call("delete_item", Key=self.key)
            return EventsState()

    def claim(self, now: float, until: float) -> bool:
        """Claim the set-up; False if another function has it.

        Raises:
            StorageError: DynamoDB failed.
        """
        free = "attribute_not_exists(busy_until) OR busy_until <= :now"
        return self.change({"busy_until": until}, free, {"now": now})

    def claim_pull(self, seen: EventsState, next_at: float, pulls_until: float) -> bool:
        """Plan the next pull, which claims this one.

        False if another function did, or a batch is to be seen sooner.

        Args:
            seen: the item as it was read.
            next_at: when to pull next, Unix seconds.
            pulls_until: until when messages for pulls will be on their way.

        Raises:
            StorageError: DynamoDB failed.
        """
        same = (
            "pull_at = :seen"
            if seen.pull_at
            else "(attribute_not_exists(pull_at) OR pull_at = :seen)"
        )
        return self.change(
            {"pull_at": next_at, "pulls_until": pulls_until}, same, {"seen": seen.pull_at}
        )

    def put_off_pull(self, seen: float, next_at: float) -> None:
        """Plan a pull that is due for later; a batch that is to be seen sooner keeps its time.

        Raises:
            StorageError: DynamoDB failed.
        """
        self.change({"pull_at": next_at}, "pull_at = :seen", {"seen": seen})

    def expect_pull(self, at: float, now: float) -> None:
        """Have the queue pulled at a time, or sooner, for a batch that was just accepted.

        Raises:
            StorageError: DynamoDB failed.
        """
        later = "attribute_not_exists(pull_at) OR pull_at > :at OR pull_at < :stale"
        values = {"at": at, "stale": now - STALE_SECONDS}
        young = {"youngest_at": now, "pulls_until": 0.0}
        if not self.change({"pull_at": at, "quiet_until": at, **young}, later, values):
            self.change(young)

    def pull_now(self, now: float) -> None:
        """Have the queue pulled now, although no batch can be over yet.

        Raises:
            StorageError: DynamoDB failed.
        """
        self.change({"pull_at": now}, "pull_at > :now", {"now": now})

    def note_subscription(self, model: str, subscription: Subscription) -> None:
        """Store a model's subscription, and give up the claim.

        Raises:
            StorageError: DynamoDB failed.
        """
        self._write({model: {"M": attributes(subscription)}, "busy_until": attribute(0.0)})

    def change(
        self,
        changes: Mapping[str, object],
        condition: str = "",
        values: Mapping[str, object] | None = None,
    ) -> bool:
        """Write attributes; False if the condition did not hold.

        Args:
            changes: attributes and their new values.
            condition: on the item, with placeholders.
            values: of these placeholders, without their colons.

        Raises:
            StorageError: DynamoDB failed.
        """
        return self._write(
            {name: attribute(value) for name, value in changes.items()}, condition, values
        )

    def _write(
        self,
        wired: Mapping[str, Any],
        condition: str = "",
        values: Mapping[str, object] | None = None,
    ) -> bool:
        self.cached = (0.0, EventsState())
        names = {f"#n{index}": name for index, name in enumerate(wired)}
        try:
            self.call(
                "update_item",
                Key=self.key,
                UpdateExpression="SET "
                + ", ".join(f"{short} = :v{index}" for index, short in enumerate(names)),
                ExpressionAttributeNames=names,
                ExpressionAttributeValues={
                    **{f":v{index}": wire for index, wire in enumerate(wired.values())},
                    **{f":{name}": attribute(value) for name, value in (values or {}).items()},
                },
                **({"ConditionExpression": condition} if condition else {}),
            )
        except ConditionFailedError:
            return False
        return True

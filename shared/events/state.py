"""What is known of an account's events, in one control item; and whose an id is.

An item that cannot be read is deleted: the next submit sets everything up again. Models are
attributes of the item, named as the model; their number is bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shared.aws.attribute_values import attribute, attributes, read
from shared.aws.dynamodb import Table, call_dynamodb
from shared.errors import StorageError, UnreadableItemError
from shared.events.messages import MAX_ID_CHARACTERS
from shared.observability import count_broken_law, logger
from shared.pacing.breaker import control_key

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

COME_FOR = 86_400.0  # Seconds after an event of a model in which its batches wait for theirs
NOTED_EVERY = 3_600.0  # Seconds after which the time of a model's last event is written again
ANEW_EVERY = 300.0  # Seconds between two set-ups of the queue
CACHED_FOR = 5.0
OVERDUE = 60.0  # Seconds after which a pull that was planned and not made counts no longer
MAX_MODELS = 100
ID_LIFE = 30 * 86_400


@dataclass(frozen=True, slots=True)
class ModelEvents:
    """The events of one model."""

    id: str = ""  # of its subscription; empty if there is none
    again_at: float = 0.0  # when one that was refused is tried again, Unix seconds
    problem: str = ""  # why there is none; empty if there is one
    told_at: float = 0.0  # when an event of it came last; 0: none, or one was missing since


NONE = ModelEvents()


@dataclass(frozen=True, slots=True)
class EventsState:
    """What the control item holds. Times are Unix seconds; 0: never."""

    queue_id: str = ""  # Cloudflare's id of the queue; empty if there is none
    made_at: float = 0.0  # when it was made, or found
    refusal: str = ""  # what the last set-up or pull was refused with; empty if it was not
    again_at: float = 0.0  # when a set-up that was refused is tried again
    busy_until: float = 0.0  # until when a function sets something up
    pull_at: float = 0.0  # when to pull next
    youngest_at: float = 0.0  # when the youngest batch was accepted whose event is expected
    models: dict[str, ModelEvents] = field(default_factory=dict)  # the models that were asked for

    def needs_queue(self, now: float) -> bool:
        """Whether the queue is to be made, or looked after because it cannot be read."""
        if not self.queue_id:
            return now >= self.again_at
        return bool(self.refusal) and now >= max(self.made_at + ANEW_EVERY, self.again_at)

    def needs_set_up(self, model: str, now: float) -> bool:
        """Whether the queue, or the subscription of a model, is to be made now."""
        if self.needs_queue(now):
            return True
        known = self.models.get(model)
        is_room = known is not None or len(self.models) < MAX_MODELS
        is_wanted = known is None or (not known.id and now >= known.again_at)
        return bool(self.queue_id) and is_room and is_wanted

    def come(self, model: str, now: float) -> bool:
        """Whether a model's batches wait for events."""
        is_read = bool(self.queue_id) and not self.refusal
        return is_read and self.models.get(model, NONE).told_at > now - COME_FOR


class EventsItem(Table):
    """Reads and writes the item of one account. Calls raise `StorageError` if DynamoDB fails."""

    def __init__(self, client: DynamoDBClient, table: str, account: str) -> None:
        super().__init__(client, table)
        self.key = control_key(f"EVENTS#{account}")
        self.cached: tuple[float, EventsState] = (0.0, EventsState())

    def recent(self, now: float) -> EventsState:
        """What was known a few seconds ago at most."""
        read_at, state = self.cached
        if now - read_at >= CACHED_FOR:
            state = self.state()
            self.cached = now, state
        return state

    def state(self) -> EventsState:
        """What is known; an item that cannot be read is deleted."""
        item = self.get(self.key) or {}
        by_model = {name: wire for name, wire in item.items() if name.startswith("@")}
        try:
            models = {name: read(wire["M"], ModelEvents) for name, wire in by_model.items()}
            whole = {name: wire for name, wire in item.items() if name not in by_model}
            return replace(read(whole, EventsState), models=models)
        except (UnreadableItemError, KeyError):
            logger.exception("control item of events deleted, because it cannot be read")
            count_broken_law()
            self.delete()
            return EventsState()

    def delete(self) -> None:
        """Forget everything."""
        self.cached = (0.0, EventsState())
        self.call("delete_item", Key=self.key)

    def claim_set_up(self, now: float, until: float) -> bool:
        """Claim the set-up; False if another function has it."""
        free = "attribute_not_exists(busy_until) OR busy_until <= :now"
        return self.change({"busy_until": until}, free, now=now)

    def note_queue(self, queue_id: str, now: float, forgotten: Collection[str]) -> None:
        """Note a queue that was made or found, which models are not subscribed to yet."""
        made = {"queue_id": queue_id, "made_at": now, "refusal": "", "again_at": 0.0}
        self.change({**made, **dict.fromkeys(forgotten)})

    def note_model(self, model: str, known: ModelEvents) -> None:
        """Store a model's subscription, and give up the claim."""
        self.change({model: known, "busy_until": 0.0})

    def note_told(self, state: EventsState, model: str, at: float) -> None:
        """Note when an event of a model came, Unix seconds; 0: one did not come."""
        known = state.models.get(model, NONE)
        if known.id and (not at or known.told_at < at - NOTED_EVERY):
            told = replace(known, told_at=at)
            self.change({model: told}, "#n0.id = :known", known=known.id)

    def claim_pull(self, seen: float, next_at: float, youngest_at: float) -> bool:
        """Plan the next pull, which claims this one; False if another function did."""
        planned = {"pull_at": next_at, "youngest_at": youngest_at}
        return self.change(planned, "pull_at = :seen", seen=seen)

    def expect_pull(self, at: float, now: float) -> None:
        """Have the queue pulled at a time, or sooner, for a batch that was just accepted."""
        later = "attribute_not_exists(pull_at) OR pull_at > :at OR pull_at < :overdue"
        times = {"at": at, "overdue": now - OVERDUE}
        if not self.change({"pull_at": at, "youngest_at": now}, later, **times):
            self.change({"youngest_at": now})

    def change(self, changes: Mapping[str, object], condition: str = "", **values: object) -> bool:
        """Write attributes, or remove those that are None; False if the condition did not hold."""
        self.cached = (0.0, EventsState())
        names = {f"n{index}": name for index, name in enumerate(changes)}
        kept = {short: changes[name] for short, name in names.items() if changes[name] is not None}
        gone = [f"#{short}" for short in names if short not in kept]
        update = "SET " + ", ".join(f"#{short} = :{short}" for short in kept)
        update += f" REMOVE {', '.join(gone)}" if gone else ""
        return self.change_if(self.key, update, condition, {**kept, **values}, names)


@dataclass(frozen=True, slots=True)
class Owner:
    """The batch that an id was given to."""

    job_id: str
    number: str
    model: str


class Ids(Table):
    """Whose each id is, each in an item that is written once the batch is `queued`."""

    def assign(self, request_id: str, owner: Owner, now: float) -> None:
        """Note whose an id is."""
        if len(request_id.encode()) <= MAX_ID_CHARACTERS:
            ttl = attribute(int(now) + ID_LIFE)
            self.call("put_item", Item={**_key(request_id), **attributes(owner), "ttl": ttl})

    def owners(self, ids: Collection[str]) -> dict[str, Owner]:
        """Whose at most 100 ids are, with one call; without those that nobody has."""
        keys = [_key(one) for one in ids if len(one.encode()) <= MAX_ID_CHARACTERS]
        if not keys:
            return {}
        wanted = {self.table: {"Keys": keys, "ConsistentRead": True}}
        answer = call_dynamodb(self.client, "batch_get_item", RequestItems=wanted)
        if answer.get("UnprocessedKeys"):
            raise StorageError("DynamoDB did not read all ids")
        found: dict[str, Owner] = {}
        for item in answer["Responses"].get(self.table, []):
            try:
                found[item["pk"]["S"].removeprefix("ID#")] = read(item, Owner)
            except UnreadableItemError:
                logger.exception("item of an id not readable")
        return found


def _key(request_id: str) -> dict[str, Any]:
    return {"pk": {"S": f"ID#{request_id}"}, "sk": {"S": "ID"}}

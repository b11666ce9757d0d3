"""Which batch an id belongs to: one item for each id, written by whoever comes first.

The function that submits writes the batch, after the batch is `queued`; whoever reads an event of an id that no batch
has writes what the event says. Each write returns the item as it is afterwards, so one of the two sees the other,
whatever their order. A lost item costs a batch its events, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.aws.attribute_values import attribute, read
from shared.aws.dynamodb import ConditionFailedError, Table, call_dynamodb
from shared.errors import UnreadableItemError
from shared.observability import logger

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shared.workers_ai.queue_messages import Event

ID_LIFE_SECONDS = 30 * 86_400
"""Seconds that an item is kept."""
MAX_ID_BYTES = 1_000
"""Bytes of the longest id that is noted: a key has a limit."""
MAX_LISTED_ID = 900
"""Bytes of the longest id that is listed."""
MAX_ORPHANS = 1_000
"""Orphans that one search looks at: as many as are noted in an hour."""
MAX_LOOKED_UP = 100
"""Keys of one read."""


@dataclass(frozen=True, slots=True)
class KnownId:
    """What is known of an id.

    Attributes:
        job_id: the job that it belongs to; empty for an orphan, an id that no batch has.
        number: the batch's number.
        round: the batch's round in which it was accepted.
        model: the model, if an event came before the batch was noted.
        at: when the batch was accepted, Unix seconds.
        queued_at: Unix seconds of its event `queued`, by Cloudflare's clock; 0 if none came before.
        over_at: of the event that said that it is over; likewise.
        listed: whether it is listed for searches.
    """

    job_id: str = ""
    number: str = ""
    round: int = 0
    model: str = ""
    at: float = 0.0
    queued_at: float = 0.0
    over_at: float = 0.0
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Orphan:
    """An id of a model's batch that no batch has, as it is listed for searches. Times are Unix seconds.

    Attributes:
        id: the id.
        at: when the batch was accepted, as its first event says.
        polled: whether a search has seen its answer: each is asked for it once.
        next_at: when a search polls it again.
        misses: polls that did not find it.
        claimed_until: until when a search polls it.
    """

    id: str
    at: float
    polled: bool = False
    next_at: float = 0.0
    misses: int = 0
    claimed_until: float = 0.0


class Ids(Table):
    """The ids of the one table. Calls raise `StorageError` if DynamoDB fails."""

    def assign(self, request_id: str, job_id: str, number: str, round_: int, now: float) -> KnownId:
        """Note the batch of an id; return the item as it is then: it has what events said before."""
        given = {"job_id": job_id, "number": number, "at": now, **({"round": round_} if round_ else {})}
        return self._note(request_id, given, now)

    def note(self, event: Event, now: float, *, listed: bool) -> KnownId:
        """Note what an event says of an id that no batch had, and that it was listed before.

        Returns:
            The item as it is then: now a batch may have it.
        """
        given = {"model": event.model, "over_at" if event.is_over else "queued_at": event.at}
        if listed:
            given["listed"] = True
        return self._note(event.request_id, given, now)

    def list_orphan(self, event: Event, now: float) -> None:
        """List an id that no batch has, under its model and time."""
        item = {**_orphan_key(event.model, event.at, event.request_id), "id": attribute(event.request_id)}
        more = {"at": attribute(event.at), "ttl": attribute(int(now) + ID_LIFE_SECONDS)}
        self.create({**item, **more})

    def orphans(self, model: str, since: float, until: float) -> list[Orphan]:
        """The orphans of a model whose first event is of this time, Unix seconds, at most `MAX_ORPHANS`."""
        values = {":pk": f"ORPHANS#{model}", ":since": _moment(since), ":until": f"{_moment(until)}~"}
        found: list[Orphan] = []
        for page in self.pages(
            KeyConditionExpression="pk = :pk AND sk BETWEEN :since AND :until",
            ExpressionAttributeValues={name: {"S": value} for name, value in values.items()},
            Limit=MAX_ORPHANS,
            ConsistentRead=True,
        ):
            found += [read(item, Orphan) for item in page["Items"]]
            if len(found) >= MAX_ORPHANS:
                break
        return found

    def claim_orphan(self, model: str, orphan: Orphan, until: float) -> bool:
        """Claim an orphan to be polled; False if another search did since it was read."""
        seen = "claimed_until = :seen" if orphan.claimed_until else "attribute_not_exists(claimed_until)"
        given = {":seen": attribute(orphan.claimed_until)} if orphan.claimed_until else {}
        try:
            self.call(
                "update_item",
                Key=_orphan_key(model, orphan.at, orphan.id),
                UpdateExpression="SET claimed_until = :until",
                ConditionExpression=seen,
                ExpressionAttributeValues={":until": attribute(until), **given},
                ReturnValues="ALL_NEW",
            )
        except ConditionFailedError:
            return False
        return True

    def note_orphan(self, model: str, orphan: Orphan, now: float) -> None:
        """Note what a search has learned of an orphan, and give up its claim."""
        given = {"polled": orphan.polled, "next_at": orphan.next_at, "misses": orphan.misses}
        given["claimed_until"] = now
        self.call(
            "update_item",
            Key=_orphan_key(model, orphan.at, orphan.id),
            UpdateExpression="SET " + ", ".join(f"{name} = :{name}" for name in given),
            ExpressionAttributeValues={f":{name}": attribute(value) for name, value in given.items()},
        )

    def mark(self, marker: str, job_id: str, number: str, now: float) -> None:
        """Note which batch has a marker."""
        given = {"job_id": job_id, "number": number, "ttl": int(now) + ID_LIFE_SECONDS}
        self.call("put_item", Item={**_mark_key(marker), **{name: attribute(one) for name, one in given.items()}})

    def marked(self, marker: str) -> KnownId:
        """The batch that has a marker."""
        return _known(self.get(_mark_key(marker)) or {})

    def look_up(self, ids: Collection[str]) -> dict[str, KnownId | None]:
        """What is known of at most `MAX_LOOKED_UP` ids, with one call; None for an id that DynamoDB did not read."""
        wanted = {one: _key(one) for one in ids if _is_short(one)}
        if not wanted:
            return {}
        answer = call_dynamodb(
            self.client,
            "batch_get_item",
            RequestItems={self.table: {"Keys": list(wanted.values()), "ConsistentRead": True}},
        )
        items = {item["pk"]["S"]: item for item in answer["Responses"].get(self.table, [])}
        unread = {key["pk"]["S"] for key in answer.get("UnprocessedKeys", {}).get(self.table, {}).get("Keys", ())}
        return {
            one: None if (pk := key["pk"]["S"]) in unread else _known(items.get(pk, {})) for one, key in wanted.items()
        }

    def _note(self, request_id: str, given: Mapping[str, object], now: float) -> KnownId:
        if not _is_short(request_id):
            return KnownId()
        wired = {name: attribute(value) for name, value in {**given, "ttl": int(now) + ID_LIFE_SECONDS}.items()}
        answer = self.call(
            "update_item",
            Key=_key(request_id),
            UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in wired),
            ExpressionAttributeNames={f"#{name}": name for name in wired},
            ExpressionAttributeValues={f":{name}": wire for name, wire in wired.items()},
            ReturnValues="ALL_NEW",
        )
        return _known(answer["Attributes"])


def _known(item: Mapping[str, Any]) -> KnownId:
    """What an item holds; an orphan's, if it cannot be read: then its events are lost, and nothing else."""
    try:
        return read(item, KnownId)
    except UnreadableItemError:
        logger.exception("item of an id not readable")
        return KnownId()


def _is_short(request_id: str) -> bool:
    return 0 < len(request_id.encode()) <= MAX_ID_BYTES


def _orphan_key(model: str, at: float, request_id: str) -> dict[str, Any]:
    return {"pk": {"S": f"ORPHANS#{model}"}, "sk": {"S": f"{_moment(at)}#{request_id[:MAX_LISTED_ID]}"}}


def _moment(at: float) -> str:
    """A time as text that sorts."""
    return f"{max(at, 0.0):017.3f}"


def _mark_key(marker: str) -> dict[str, Any]:
    return {"pk": {"S": f"MARK#{marker}"}, "sk": {"S": "ID"}}


def _key(request_id: str) -> dict[str, Any]:
    return {"pk": {"S": f"ID#{request_id}"}, "sk": {"S": "ID"}}

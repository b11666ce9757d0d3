"""Which batch an id belongs to: one item for each id, written by whoever comes first.

The function that submits writes the batch, after the batch is `queued`; whoever reads an event of
an id that no batch has writes what the event says. Each write returns the item as it is afterwards,
so one of the two sees the other, whatever their order. A lost item costs a batch its events, and
nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.aws.attribute_values import attribute, read
from shared.aws.dynamodb import Table, call_dynamodb
from shared.errors import UnreadableItemError
from shared.observability import logger

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from shared.workers_ai.queue_messages import Event

ID_LIFE_SECONDS = 30 * 86_400
"""Seconds that an item is kept."""
MAX_ID_BYTES = 1_000
"""Bytes of the longest id that is noted: a key has a limit."""
MAX_LOOKED_UP = 100
"""Keys of one read."""


@dataclass(frozen=True, slots=True)
class KnownId:
    """What is known of an id.

    Attributes:
        job_id: the job that it belongs to; empty for an id that no batch has.
        number: the batch's number.
        attempt: the attempt of the batch that was accepted.
        at: when the batch was accepted, Unix seconds.
        over_at: Unix seconds of the event that said that it is over, by Cloudflare's clock; 0 if
            none came before.
    """

    job_id: str = ""
    number: str = ""
    attempt: int = 0
    at: float = 0.0
    over_at: float = 0.0


class Ids(Table):
    """The ids of the one table. Calls raise `StorageError` if DynamoDB fails."""

    def assign(
        self, request_id: str, job_id: str, number: str, attempt: int, now: float
    ) -> KnownId:
        """Note the batch of an id; return the item as it is then.

        It has what events said before.
        """
        given = {
            "job_id": job_id,
            "number": number,
            "at": now,
            "attempt": attempt,
        }
        return self._note(request_id, given, now)

    def note(self, event: Event, now: float) -> KnownId:
        """Note that a batch is over whose id no batch had; return the item as it is then.

        Now a batch may have it.
        """
        return self._note(event.request_id, {"over_at": event.at}, now)

    def look_up(self, ids: Collection[str]) -> dict[str, KnownId | None]:
        """What is known of at most `MAX_LOOKED_UP` ids, with one call.

        None for an id that DynamoDB did not read.
        """
        wanted = {one: _key(one) for one in ids if _is_short(one)}
        if not wanted:
            return {}
        answer = call_dynamodb(
            self.client,
            "batch_get_item",
            RequestItems={self.table: {"Keys": list(wanted.values()), "ConsistentRead": True}},
        )
        items = {item["pk"]["S"]: item for item in answer["Responses"].get(self.table, [])}
        unread = {
            key["pk"]["S"]
            for key in answer.get("UnprocessedKeys", {}).get(self.table, {}).get("Keys", ())
        }
        return {
            one: None if (pk := key["pk"]["S"]) in unread else _known(items.get(pk, {}))
            for one, key in wanted.items()
        }

    def _note(self, request_id: str, given: Mapping[str, object], now: float) -> KnownId:
        if not _is_short(request_id):
            return KnownId()
        wired = {
            name: attribute(value)
            for name, value in {**given, "ttl": int(now) + ID_LIFE_SECONDS}.items()
        }
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
    """What an item holds; nobody's, if it cannot be read.

    Then its events are lost, and nothing else.
    """
    try:
        return read(item, KnownId)
    except UnreadableItemError:
        logger.exception("item of an id not readable")
        return KnownId()


def _is_short(request_id: str) -> bool:
    return 0 < len(request_id.encode()) <= MAX_ID_BYTES


def _key(request_id: str) -> dict[str, Any]:
    return {"pk": {"S": f"ID#{request_id}"}, "sk": {"S": "ID"}}

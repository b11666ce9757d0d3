"""What other ids of the account are answered: by that, doubt about one id is judged.

An id that is lost looks like any id while no id is found, and a batch that failed by a bad record
looks like any batch while all fail. Both decide about paid answers, so one item remembers when a
poll last got a known reply, and which id was last said to have failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shared.aws.dynamodb import Table
from shared.errors import StorageError
from shared.observability import logger
from shared.pacing.breaker import control_key

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

KEY = control_key("KNOWN")
PENDING_EVERY_SECONDS = 60.0
"""Seconds between two notes of pending replies by one process; every answer is noted."""


class Known(Table):
    """The item of known replies."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        """Use a ready client; nothing is read yet."""
        super().__init__(client, table)
        self._noted_at = 0.0

    def note(self, now: float, *, pending: bool) -> None:
        """Note that a poll got a known reply; a failure costs nothing but the note."""
        if pending and 0 <= now - self._noted_at < PENDING_EVERY_SECONDS:
            return
        try:
            self._set("answered_at", {"N": repr(now)})
        except StorageError as error:
            logger.warning("known reply not noted", reason=str(error))
        else:
            self._noted_at = now

    def answered_at(self) -> float:
        """When a poll last got a known reply, Unix seconds; 0 if none did."""
        item = self.get(KEY) or {}
        return float(item.get("answered_at", {}).get("N", "0"))

    def note_failed(self, kind: str, request_id: str, now: float) -> tuple[bool, float]:
        """Note that an id is said to have failed.

        Return whether the one noted before is another with the same reply, and when it was noted.
        """
        before = (self.get(KEY) or {}).get("failed", {}).get("M", {})
        noted = {"kind": {"S": kind}, "id": {"S": request_id}, "at": {"N": repr(now)}}
        self._set("failed", {"M": noted})
        is_other = before.get("kind") == noted["kind"] and before.get("id") != noted["id"]
        return is_other, float(before.get("at", {}).get("N", "0"))

    def _set(self, name: str, wire: dict[str, Any]) -> None:
        self.call(
            "update_item",
            Key=KEY,
            UpdateExpression=f"SET #{name} = :{name}",
            ExpressionAttributeNames={f"#{name}": name},
            ExpressionAttributeValues={f":{name}": wire},
        )

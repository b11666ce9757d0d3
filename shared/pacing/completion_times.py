"""How long batches of each model took, stored in one control item per model. `poll_schedule` decides what follows.

A bound is written into a random slot, with one unconditional update that reads nothing. In time it replaces another
bound; a lost update costs one bound. All of this only makes polling better, so nothing here ever fails: without the
table, the last known times are used, or those assumed for an unknown model.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core import keys
from shared.aws.attribute_values import attribute, plain
from shared.aws.dynamodb import call_dynamodb
from shared.errors import StorageError
from shared.observability import logger
from shared.pacing import poll_schedule
from shared.pacing.controls import control_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_dynamodb import DynamoDBClient

READ_EVERY, READ_UNKNOWN_EVERY = 30.0, 1.0
"""Seconds for which a process caches what it read; the second, if that was nothing: the first answer changes it."""


class CompletionTimes:
    """Reads and writes the stored times; caches what it read."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        """Use a ready client; nothing is read yet."""
        self.client = client
        self.table = table
        self.known: dict[str, tuple[float, poll_schedule.Distribution]] = {}

    def first_poll(self, model: str, number: str, now: float) -> float:
        """Seconds from acceptance to the first poll of a batch of a model."""
        return poll_schedule.first_poll(self._spread(model, now), number, random.random())  # noqa: S311 - spreads load

    def next_poll(self, model: str, age: float, now: float) -> float:
        """Seconds until a batch of a model, pending at this age, is polled."""
        return poll_schedule.next_poll(self._spread(model, now), age, random.random())  # noqa: S311 - spreads load

    def percentile(self, model: str, share: float, now: float) -> float:
        """Seconds in which this share of a model's batches is finished; 0 if nothing is known of it."""
        spread = self._spread(model, now)
        return 0.0 if spread == poll_schedule.ASSUMED else poll_schedule.percentile(spread, share)

    def note(self, model: str, number: str, after: float, by: float, now: float) -> None:
        """Store a batch's bound, if the batch is one of those sampled.

        Args:
            model: its model.
            number: its number.
            after: its age when it was last seen pending, 0 if it never was.
            by: its age when it was first seen finished.
            now: Unix seconds.
        """
        if not poll_schedule.is_sampled(number):
            return
        try:
            call_dynamodb(
                self.client,
                "update_item",
                TableName=self.table,
                Key=_key(model),
                UpdateExpression="SET #slot = :bound",
                ExpressionAttributeNames={"#slot": f"b{random.randrange(poll_schedule.SAMPLES)}"},  # noqa: S311
                ExpressionAttributeValues={":bound": attribute((int(after), round(by), int(now)))},
            )
        except StorageError as error:
            logger.warning("completion time not remembered", reason=str(error))

    def _spread(self, model: str, now: float) -> poll_schedule.Distribution:
        read_at, spread = self.known.get(model, (0.0, poll_schedule.ASSUMED))
        if now - read_at < (READ_UNKNOWN_EVERY if spread == poll_schedule.ASSUMED else READ_EVERY):
            return spread
        try:
            item = call_dynamodb(self.client, "get_item", TableName=self.table, Key=_key(model)).get("Item", {})
            bounds = (_bound(wire) for name, wire in item.items() if name.startswith("b"))
            spread = poll_schedule.distribution(tuple(bound for bound in bounds if bound), now)
        except StorageError as error:
            logger.warning("completion times not read", reason=str(error))
        self.known[model] = (now, spread)
        return spread


def _bound(wire: Mapping[str, Any]) -> poll_schedule.Bound | None:
    """A stored bound; None for one that cannot be read."""
    try:
        bound: poll_schedule.Bound = msgspec.convert(plain(wire), poll_schedule.Bound)
    except msgspec.ValidationError:
        return None
    return bound


def _key(model: str) -> dict[str, dict[str, str]]:
    return control_key(keys.completion_times(model)[1])

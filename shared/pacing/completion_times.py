"""How long batches of each model took, and how long its answers are.

Stored in one control item per model.

`poll_schedule` decides what follows from the times, `dropbatch.core.cost_limit` what follows from
the lengths.

A bound is written into a random slot, with one unconditional update that reads nothing. In time it
replaces another bound; a lost update costs one bound. All of this only makes polling better, so
nothing here ever fails: without the table, the last known times are used, or none.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core import names
from shared.aws.attribute_values import attribute, plain
from shared.aws.dynamodb import Table
from shared.errors import StorageError
from shared.observability import logger
from shared.pacing import poll_schedule
from shared.pacing.controls import control_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mypy_boto3_dynamodb import DynamoDBClient

KEPT_LENGTHS = 10
"""Batches of a model whose answers' lengths are kept."""
READ_EVERY, READ_UNKNOWN_EVERY = 30.0, 1.0
"""Seconds for which a process caches what it read; the second, if that was nothing.

The first answer changes it.
"""
TENTHS_BELOW = 20.0
"""Seconds below which an age is stored in tenths."""


class CompletionTimes(Table):
    """Reads and writes the stored times; caches what it read."""

    def __init__(self, client: DynamoDBClient, table: str, least: float = 0.0) -> None:
        """Use a ready client; nothing is read yet.

        Args:
            client: DynamoDB client.
            table: the ledger's table.
            least: seconds between two polls of a batch at least.
        """
        super().__init__(client, table)
        self.least = least
        self.known: dict[str, tuple[float, list[float]]] = {}
        self.lengths: dict[str, list[int]] = {}

    def first_poll(self, model: str, number: str, now: float) -> float:
        """Seconds from acceptance to the first poll of a batch of a model."""
        chance = random.random()  # noqa: S311 - spreads load
        return max(poll_schedule.first_poll(self._times(model, now), number, chance), self.least)

    def next_poll(self, model: str, age: float, now: float) -> float:
        """Seconds until a batch of a model, pending at this age, is polled."""
        chance = random.random()  # noqa: S311 - spreads load
        return max(poll_schedule.next_poll(self._times(model, now), age, chance), self.least)

    def percentile(self, model: str, share: float, now: float) -> float:
        """Seconds in which this share of a model's batches is finished.

        0 if nothing is known of it.
        """
        return poll_schedule.percentile(self._times(model, now), share)

    def answer_tokens(self, model: str, now: float) -> list[int]:
        """Tokens of an answer of a model, as the mean of each of some batches.

        Empty if nothing is known of it.
        """
        self._times(model, now)
        return self.lengths.get(model, [])

    def note(
        self, model: str, number: str, after: float, by: float, now: float, answer_tokens: int = 0
    ) -> None:
        """Store a batch's bound and the length of its answers.

        If the batch is one of those sampled.

        Args:
            model: its model.
            number: its number.
            after: its age when it was last seen pending, 0 if it never was.
            by: its age when it was first seen finished.
            now: Unix seconds.
            answer_tokens: tokens of its answers, on average; 0 if none were reported.
        """
        if not poll_schedule.is_sampled(number):
            return
        slot = random.randrange(poll_schedule.SAMPLES)  # noqa: S311 - in time it replaces another
        names, values = (
            {"#slot": f"b{slot}"},
            {":bound": attribute((stored_age(after), stored_age(by), int(now)))},
        )
        change = "SET #slot = :bound"
        if answer_tokens:
            names["#answers"], values[":tokens"] = (
                f"a{slot % KEPT_LENGTHS}",
                attribute(answer_tokens),
            )
            change += ", #answers = :tokens"
        try:
            self.call(
                "update_item",
                Key=_key(model),
                UpdateExpression=change,
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=values,
            )
        except StorageError as error:
            logger.warning("completion time not remembered", reason=str(error))

    def _times(self, model: str, now: float) -> list[float]:
        read_at, times = self.known.get(model, (0.0, []))
        if now - read_at < (READ_EVERY if times else READ_UNKNOWN_EVERY):
            return times
        try:
            item = self.call("get_item", Key=_key(model)).get("Item", {})
            bounds = tuple(
                bound
                for name, wire in item.items()
                if name.startswith("b") and (bound := _bound(wire))
            )
            times = poll_schedule.times_of(bounds, now)
            lengths = (plain(wire) for name, wire in item.items() if name.startswith("a"))
            self.lengths[model] = [length for length in lengths if isinstance(length, int)]
        except StorageError as error:
            logger.warning("completion times not read", reason=str(error))
        self.known[model] = (now, times)
        return times


def stored_age(seconds: float) -> float:
    """An age as it is stored: of a quick batch in tenths of a second, else in seconds."""
    return round(seconds, 1) if seconds < TENTHS_BELOW else round(seconds)


def _bound(wire: Mapping[str, Any]) -> poll_schedule.Bound | None:
    """A stored bound; None for one that cannot be read."""
    try:
        bound: poll_schedule.Bound = msgspec.convert(plain(wire), poll_schedule.Bound)
    except msgspec.ValidationError:
        return None
    return bound


def _key(model: str) -> dict[str, dict[str, str]]:
    return control_key(names.completion_times(model)[1])

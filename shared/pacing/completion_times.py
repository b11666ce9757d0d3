"""How long batches of each model took, and how long its answers are, stored in one control item per model.

`poll_schedule` decides what follows from the times, `dropbatch.core.cost_limit` what follows from the lengths.

A bound is written into a random slot, with one unconditional update that reads nothing. In time it replaces another
bound; a lost update costs one bound. Of a model that works in order, the item has also the earliest batch that was just
found pending, so that every function knows it. All of this only makes polling better, so nothing here ever fails:
without the table, the last known times are used, or those assumed for an unknown model.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core import keys
from shared.aws.attribute_values import attribute, plain
from shared.aws.dynamodb import ConditionFailedError, Table
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
"""Seconds for which a process caches what it read; the second, if that was nothing: the first answer changes it."""
SIGHTING_READ_EVERY = 3.0
"""Seconds for which a process caches what other functions have found pending."""
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
        self.known: dict[str, tuple[float, poll_schedule.Distribution]] = {}
        self.in_order: dict[str, bool] = {}
        """Whether batches of a model finish in the order in which they were accepted."""
        self.pending: dict[str, poll_schedule.Sighting] = {}
        """By model, the earliest batch that was just found pending."""
        self.pending_read: dict[str, float] = {}
        """When it was read, Unix seconds."""
        self.newest: dict[str, int] = {}
        """When each model's newest bound was written, Unix seconds."""
        self.lengths: dict[str, list[int]] = {}

    def first_poll(self, model: str, number: str, now: float) -> float:
        """Seconds from acceptance to the first poll of a batch of a model."""
        spread = self._spread(model, now)
        rested = now - self.newest.get(model, 0) >= poll_schedule.REST_SECONDS
        chance = random.random()  # noqa: S311 - spreads load
        return max(poll_schedule.first_poll(spread, number, chance, rested=rested), self.least)

    def next_poll(self, model: str, age: float, now: float) -> float:
        """Seconds until a batch of a model, pending at this age, is polled."""
        spread, in_order = self._spread(model, now), self.in_order.get(model, False)
        chance = random.random()  # noqa: S311 - spreads load
        return max(poll_schedule.next_poll(spread, age, chance, in_order=in_order), self.least)

    def percentile(self, model: str, share: float, now: float) -> float:
        """Seconds in which this share of a model's batches is finished; 0 if nothing is known of it."""
        spread = self._spread(model, now)
        return 0.0 if spread == poll_schedule.ASSUMED else poll_schedule.percentile(spread, share)

    def answer_tokens(self, model: str, now: float) -> list[int]:
        """Tokens of an answer of a model, as the mean of each of some batches; empty if nothing is known of it."""
        self._spread(model, now)
        return self.lengths.get(model, [])

    def note_pending(self, model: str, accepted: float, now: float) -> None:
        """Note that a batch was found pending, for those behind it, if the model works in order."""
        known = self.pending.get(model)
        seen = poll_schedule.earlier_pending(known, (now, accepted))
        if not self.in_order.get(model) or seen == known:
            return
        self.pending[model] = seen
        values = {":seen": now, ":accepted": accepted, ":old": now - poll_schedule.SEEN_SECONDS}
        try:
            self.call(
                "update_item",
                Key=_key(model),
                UpdateExpression="SET pending_seen = :seen, pending_accepted = :accepted",
                ConditionExpression="attribute_not_exists(pending_seen) OR pending_seen <= :old"
                " OR pending_accepted >= :accepted",
                ExpressionAttributeValues={name: attribute(value) for name, value in values.items()},
            )
        except ConditionFailedError:
            self.pending_read.pop(model, None)  # Another function has found an earlier one.
        except StorageError as error:
            logger.warning("pending batch not noted", reason=str(error))

    def seconds_behind(self, model: str, accepted: float, now: float) -> float:
        """Seconds for which a batch is not polled, because an earlier one was just found pending; 0: it is polled."""
        if not self.in_order.get(model):
            return 0.0
        if random.random() < poll_schedule.ASKED_ANYWAY:  # noqa: S311 - a sample
            return 0.0
        return poll_schedule.seconds_behind(self._pending(model, now), accepted, now)

    def _pending(self, model: str, now: float) -> poll_schedule.Sighting | None:
        """The earliest batch of a model that any function has just found pending."""
        known = self.pending.get(model)
        if now - self.pending_read.get(model, 0.0) < SIGHTING_READ_EVERY:
            return known
        self.pending_read[model] = now
        try:
            item = self.call("get_item", Key=_key(model)).get("Item", {})
            seen, accepted = (float(item[name]["N"]) for name in ("pending_seen", "pending_accepted"))
        except (KeyError, ValueError):
            return known  # None has been found pending, or what is there is no sighting.
        except StorageError as error:
            logger.warning("pending batch not read", reason=str(error))
            return known
        if seen <= now:
            self.pending[model] = poll_schedule.earlier_pending(known, (seen, accepted))
        return self.pending.get(model)

    def note(self, model: str, number: str, after: float, by: float, now: float, answer_tokens: int = 0) -> None:
        """Store a batch's bound and the length of its answers, if the batch is one of those sampled.

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
        names, values = {"#slot": f"b{slot}"}, {":bound": attribute((stored_age(after), stored_age(by), int(now)))}
        change = "SET #slot = :bound"
        if answer_tokens:
            names["#answers"], values[":tokens"] = f"a{slot % KEPT_LENGTHS}", attribute(answer_tokens)
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

    def _spread(self, model: str, now: float) -> poll_schedule.Distribution:
        read_at, spread = self.known.get(model, (0.0, poll_schedule.ASSUMED))
        if now - read_at < (READ_UNKNOWN_EVERY if spread == poll_schedule.ASSUMED else READ_EVERY):
            return spread
        try:
            item = self.call("get_item", Key=_key(model)).get("Item", {})
            found = (_bound(wire) for name, wire in item.items() if name.startswith("b"))
            bounds = tuple(bound for bound in found if bound)
            spread = poll_schedule.distribution(bounds, now)
            self.in_order[model] = poll_schedule.is_in_order(bounds, now)
            self.newest[model] = max((at for _, _, at in bounds), default=0)
            lengths = (plain(wire) for name, wire in item.items() if name.startswith("a"))
            self.lengths[model] = [length for length in lengths if isinstance(length, int)]
        except StorageError as error:
            logger.warning("completion times not read", reason=str(error))
        self.known[model] = (now, spread)
        return spread


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
    return control_key(keys.completion_times(model)[1])

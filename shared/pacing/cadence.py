"""When to poll a pending batch, from how long the last 40 batches of its model took.

The promise: without events a batch of a known model costs some three calls, and its answer waits
a third of its time; a job's first batches cost one more, and wait less, because somebody waits for
a small job. Worth its lines, because polls are most of the calls of a rate budget.

The rule: poll when a third (`SHARE`; for a job's first batches `SOON_SHARE`) of the batches that
were still pending at this age were finished. Where none is known that took longer, the batch is
polled when it is twice as old. A time is known between two polls and counts as their middle; one
that was finished at its first poll counts as quicker, so that a model that became faster is seen.

The times are in one control item for each model: each is written into a random slot, with one
update that reads nothing. Nothing here ever fails: without the table, what is known is used.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from shared.aws.attribute_values import plain
from shared.aws.dynamodb import Table
from shared.errors import StorageError
from shared.observability import logger
from shared.pacing.breaker import control_key

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

SHARE, SOON_SHARE = 0.34, 0.2  # Of the pending batches that should be finished at the next poll
FIRST_POLL, UNKNOWN_POLL = 1.8, 22.0  # To the first poll of a model's first batches, and others
SCOUTS = 6  # How many of a job's batches are its first ones
MIN_WAIT, MAX_WAIT = 0.6, 900.0  # Seconds between two polls
MIN_SHARE = 0.15  # The same in ages of the batch
MAX_FIRST_WAIT = 300.0  # Seconds, below this age: a stall that is over must not hide speed
HELD_POLL_SECONDS = 300.0  # To the next poll of a paused job's batch
QUICKER = 0.8
JITTER = 0.1
SLOTS = 40  # Times that are kept: with them an item stays below 1 KB, one write unit
LIFE, LONG, LONG_LIFE = 14 * 86_400, 900.0, 6 * 3_600  # In which a time counts; that of a stall
READ_EVERY, READ_UNKNOWN_EVERY = 30.0, 1.0  # For which what was read is cached; if it was nothing
PRECISE_BELOW = 20.0  # Seconds below which an age is stored in tenths

Bound = tuple[float, float, int]
"""A batch's age when last seen pending (0: never), when first seen finished, and when that was."""


def times_of(bounds: tuple[Bound, ...], now: float) -> list[float]:
    """How long batches took, ascending, as far as it still counts.

    Of one that was finished at its first poll nobody knows more than that it was quicker: it counts
    as the mean of those that were, or as a fifth quicker where none was.
    """
    counting = [one for one in bounds if now - one[2] < (LIFE if one[1] <= LONG else LONG_LIFE)]
    times = [(after + by) / 2 for after, by, _ in counting if after]
    for by in sorted(by for after, by, _ in counting if not after):
        quicker = [one for one in times if one <= by * QUICKER]
        times.append(sum(quicker) / len(quicker) if quicker else by * QUICKER)
    return sorted(times)


def quantile(times: list[float], share: float) -> float:
    """The time in which this share of the batches is finished; 0 if none is known."""
    return times[min(int(share * len(times)), len(times) - 1)] if times else 0.0


def first_poll(times: list[float], number: str, chance: float) -> float:
    """Seconds from acceptance to the first poll of the batch with a number."""
    if not times and not _is_first(number):
        return UNKNOWN_POLL * (1 + JITTER * chance)
    return next_poll(times, number, 0.0, chance)


def next_poll(times: list[float], number: str, age: float, chance: float) -> float:
    """Seconds until a batch that is pending at this age is polled; `chance` spreads batches."""
    longer = [one for one in times if one > age]
    share = SOON_SHARE if _is_first(number) else SHARE
    wait = quantile(longer, share) - age if longer else max(age, FIRST_POLL)
    latest = min(MAX_WAIT, max(age, MAX_FIRST_WAIT)) / (1 + JITTER)
    return min(max(wait, MIN_WAIT, MIN_SHARE * age), latest) * (1 + JITTER * chance)


def _is_first(number: str) -> bool:
    return int(number[:8]) < SCOUTS


def stored_age(seconds: float) -> float:
    """An age as it is stored: of a quick batch in tenths of a second, else in seconds."""
    return round(seconds, 1) if seconds < PRECISE_BELOW else round(seconds)


class Cadence(Table):
    """Reads and writes the stored times; caches what it read."""

    def __init__(self, client: DynamoDBClient, table: str, least: float = 0.0) -> None:
        super().__init__(client, table)
        self.least = least
        self.known: dict[str, tuple[float, list[float]]] = {}

    def first_poll(self, model: str, number: str, now: float) -> float:
        """Seconds from acceptance to the first poll of a batch of a model."""
        return max(first_poll(self._times(model, now), number, _chance()), self.least)

    def next_poll(self, model: str, number: str, age: float, now: float) -> float:
        """Seconds until the batch with a number, of a model, pending at this age, is polled."""
        return max(next_poll(self._times(model, now), number, age, _chance()), self.least)

    def quantile(self, model: str, share: float, now: float) -> float:
        """Seconds in which this share of a model's batches is finished; 0 if nothing is known."""
        return quantile(self._times(model, now), share)

    def note(self, model: str, after: float, by: float, now: float) -> None:
        """Store at which age a batch was last seen pending (0: never) and first seen finished."""
        slot = random.randrange(SLOTS)  # noqa: S311 - in time it replaces another
        bound = stored_age(after), stored_age(by), int(now)
        try:
            self.change_if(_key(model), f"SET b{slot} = :bound", "", {"bound": bound})
        except StorageError as error:
            logger.warning("completion time not remembered", reason=str(error))

    def _times(self, model: str, now: float) -> list[float]:
        read_at, times = self.known.get(model, (0.0, []))
        if now - read_at < (READ_EVERY if times else READ_UNKNOWN_EVERY):
            return times
        try:
            item = self.call("get_item", Key=_key(model)).get("Item", {})
        except StorageError as error:
            logger.warning("completion times not read", reason=str(error))
        else:
            bounds = (_bound(wire) for name, wire in item.items() if name.startswith("b"))
            times = times_of(tuple(one for one in bounds if one), now)
        self.known[model] = (now, times)
        return times


def _chance() -> float:
    return random.random()  # noqa: S311 - spreads load


def _bound(wire: Mapping[str, Any]) -> Bound | None:
    try:
        bound: Bound = msgspec.convert(plain(wire), Bound)
    except msgspec.ValidationError:
        return None
    return bound


def _key(model: str) -> dict[str, dict[str, str]]:
    return control_key(f"RATE#TIMES#{model}")

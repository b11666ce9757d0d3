"""Whether the events of a model come, so that its polls may wait for them.

One control item for each model.

An event that was pulled after the answer was found counts if its message was sent in time; an
answer counts against the model only once the queue was pulled and had no event for it. So an idle
stack learns nothing, and forgets nothing. Nothing here ever fails: without the table, polls come as
without events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from shared.aws.attribute_values import attribute, plain
from shared.aws.dynamodb import ConditionFailedError, Table
from shared.errors import StorageError
from shared.observability import logger
from shared.pacing.controls import control_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mypy_boto3_dynamodb import DynamoDBClient

ANSWERS = 20
"""Answers that are remembered of each model."""
MIN_TOLD, MAX_UNTOLD_SHARE = 3, 1 / ANSWERS
"""Answers that had an event, at least, and the share that may have had none."""
IN_TIME_SECONDS = 10.0
"""Seconds after the poll that found an answer within which its event must have been sent."""
NEW_SECONDS = 60.0
"""Seconds after a subscription in which accepted batches do not count against its events."""
FIRST_ASIDE_SECONDS, MAX_ASIDE_SECONDS = 3_600.0, 86_400.0
"""Seconds for which a model's polls come as without events, after an event that did not come.

Doubled each time.
"""
CACHED_SECONDS = 10.0
ASIDE = ("overdue_at", "aside_until", "aside_seconds")
TIMES = (*ASIDE, "seen_at")
"""Attributes of an item, besides its answers."""


class Answer(NamedTuple):
    """One answer: when it was found, Unix seconds, and whether it had an event."""

    at: float
    told: bool


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of a model's events.

    Attributes:
        answers: the last ones, in no order.
        overdue_at: when the answer was found whose event put the model aside last, Unix seconds; 0:
            none ever.
        aside_until: until when its events are not waited for, Unix seconds.
        aside_seconds: for how long.
        seen_at: when the youngest batch was accepted of which any event has come, Unix seconds.
    """

    answers: tuple[Answer, ...] = ()
    overdue_at: float = 0.0
    aside_until: float = 0.0
    aside_seconds: float = 0.0
    seen_at: float = 0.0

    def overdue(self, pulled_at: float) -> float:
        """When the latest answer was found whose event is overdue, though it was waited for.

        0 if there is none.

        Args:
            pulled_at: when the queue was last pulled until it was empty, Unix seconds.
        """
        return max(
            (one.at for one in self._without_event(pulled_at) if one.at > self.aside_until),
            default=0.0,
        )

    def come(self, pulled_at: float, now: float, least: int = MIN_TOLD) -> bool:
        """Whether the events come, as at least so many answers show."""
        if self.aside_until > now:
            return False
        told = sum(one.told and one.at > self.overdue_at for one in self.answers)
        untold = sum(one.at > self.overdue_at for one in self._without_event(pulled_at))
        return told >= least and untold <= MAX_UNTOLD_SHARE * (told + untold)

    def put_aside(self, overdue_at: float, now: float) -> Record:
        """The same, put aside for longer if that is repeated within a day."""
        is_repeated = self.aside_seconds > 0 and now - self.aside_until < MAX_ASIDE_SECONDS
        seconds = (
            min(2 * self.aside_seconds, MAX_ASIDE_SECONDS) if is_repeated else FIRST_ASIDE_SECONDS
        )
        return replace(
            self, overdue_at=overdue_at, aside_until=now + seconds, aside_seconds=seconds
        )

    def _without_event(self, pulled_at: float) -> Iterable[Answer]:
        return (
            one for one in self.answers if not one.told and one.at + IN_TIME_SECONDS < pulled_at
        )


class Coming(Table):
    """Reads and writes the records of an account's models; caches what it read."""

    def __init__(self, client: DynamoDBClient, table: str, account: str) -> None:
        """Use a ready client; nothing is read yet."""
        super().__init__(client, table)
        self.account = account
        self.known: dict[str, tuple[float, Record]] = {}

    def come(self, model: str, pulled_at: float, now: float) -> bool:
        """Whether the events of a model come; an event that is overdue puts the model aside.

        Args:
            model: model id.
            pulled_at: when the queue was last pulled until it was empty, Unix seconds.
            now: Unix seconds.
        """
        return self._recent(model, pulled_at, now).come(pulled_at, now)

    def comes(self, model: str, accepted: float, pulled_at: float, now: float) -> bool:
        """Whether the event of a batch comes.

        Those of its model do, also since it was accepted, Unix seconds.
        """
        if self._recent(model, pulled_at, now).seen_at < accepted:
            self.known.pop(model)  # One may have come meanwhile.
        record = self._recent(model, pulled_at, now)
        return record.seen_at >= accepted and record.come(pulled_at, now)

    def _recent(self, model: str, pulled_at: float, now: float) -> Record:
        """What was known some seconds ago at most; nothing if DynamoDB failed."""
        read_at, record = self.known.get(model, (0.0, Record()))
        if now - read_at < CACHED_SECONDS:
            return record
        try:
            record = self._read(model)
            if overdue_at := record.overdue(pulled_at):
                record = record.put_aside(overdue_at, now)
                self._put_aside(model, record)
        except StorageError as error:
            logger.warning("events of a model not judged", reason=str(error))
            record = Record()
        self.known[model] = now, record
        return record

    def note(self, model: str, request_id: str, at: float, *, told: bool) -> None:
        """Note an answer found at a time, Unix seconds.

        Its place follows from the id, so a later note replaces it.
        """
        slot = f"a{crc32(request_id.encode()) % ANSWERS}"
        try:
            self._set(model, {slot: attribute((at, int(told)))})
        except StorageError as error:
            logger.warning("event of an answer not remembered", reason=str(error))

    def note_seen(self, model: str, accepted: float) -> None:
        """Note that an event has come of a batch that was accepted at a time, Unix seconds."""
        try:
            self._set(
                model,
                {"seen_at": attribute(accepted)},
                "attribute_not_exists(seen_at) OR seen_at < :v0",
            )
        except ConditionFailedError:
            return

    def forget_aside(self, model: str) -> None:
        """Have answers from now on decide whether a model's events come, also if it was put aside.

        Raises:
            StorageError: DynamoDB failed.
        """
        self.known.pop(model, None)
        self._set(model, {name: attribute(0.0) for name in ("aside_until", "aside_seconds")})

    def _read(self, model: str) -> Record:
        item = self.get(self._key(model)) or {}
        answers = (
            _answer(wire) for name, wire in item.items() if name[:1] == "a" and name[1:].isdigit()
        )
        told = {name: float(item[name]["N"]) for name in TIMES if name in item}
        return Record(tuple(one for one in answers if one), **told)

    def _put_aside(self, model: str, record: Record) -> None:
        """Store it, unless another function did for this event or a later one."""
        logger.warning("events do not come", model=model, seconds=record.aside_seconds)
        wired = {name: attribute(getattr(record, name)) for name in ASIDE}
        try:
            self._set(model, wired, "attribute_not_exists(overdue_at) OR overdue_at < :v0")
        except ConditionFailedError:
            return

    def _set(self, model: str, wired: Mapping[str, Any], condition: str = "") -> None:
        self.call(
            "update_item",
            Key=self._key(model),
            UpdateExpression="SET "
            + ", ".join(f"{name} = :v{index}" for index, name in enumerate(wired)),
            ExpressionAttributeValues={
                f":v{index}": wire for index, wire in enumerate(wired.values())
            },
            **({"ConditionExpression": condition} if condition else {}),
        )

    def _key(self, model: str) -> dict[str, Any]:
        return control_key(f"EVENTS#{self.account}#{model}")


def _answer(wire: Mapping[str, Any]) -> Answer | None:
    """A stored answer; None for one that cannot be read."""
    found = plain(wire)
    if not isinstance(found, list) or len(found) != len(Answer._fields):
        return None
    at, told = found
    return Answer(float(at), bool(told)) if isinstance(at, int | float) else None

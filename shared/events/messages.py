"""A message of the queue as data: which batch it says is over.

Pure; accepts whatever is in a queue. A body comes as JSON, as JSON in a text, or as base64 of it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import msgspec

from shared.workers_ai.results import Counter

MAX_EVENT_BYTES = 8_192  # Of a message's body; documented ones have under 600
MAX_ID_CHARACTERS = 1_000
ID_PREFIX = "req-"  # Events name a batch with it, replies without
OVER = frozenset({"succeeded", "failed"})


@dataclass(frozen=True, slots=True)
class Event:
    """What says that a batch is over."""

    request_id: str  # the batch's id, without `ID_PREFIX`
    deliveries: int  # of its message, this one included; 0 if nobody says


class Message(msgspec.Struct, frozen=True):
    """A pulled message, its members unread: an odd one spoils neither it nor the others."""

    lease_id: msgspec.Raw = msgspec.Raw(b"null")
    body: msgspec.Raw = msgspec.Raw(b"null")
    attempts: msgspec.Raw = msgspec.Raw(b"0")


class _CountedMessage(Message, frozen=True):
    """One of a reply whose length nobody knows: many small ones must not fill the memory."""

    def __post_init__(self) -> None:
        _counter.count()


class _Pulled(msgspec.Struct, frozen=True):
    """What a pull returns."""

    messages: list[_CountedMessage] = []


_counter = Counter()
_decode_pulled = msgspec.json.Decoder(_Pulled).decode
_decode = msgspec.json.Decoder().decode


def messages_in(pulled: msgspec.Raw, most: int) -> list[Message]:
    """The messages that a pull returns."""
    return list(_counter.decode(_decode_pulled, pulled, most).messages)


def bare_id(request_id: str) -> str:
    """An id as it is compared: without the prefix that only events have."""
    return request_id.removeprefix(ID_PREFIX)


def event_in(message: Message) -> Event | None:
    """The event of a batch that is over; None if the message holds none."""
    if len(memoryview(message.body)) > MAX_EVENT_BYTES:
        return None
    try:
        told = _decode(message.body)
        if isinstance(told, str):
            is_json = told.lstrip()[:1] == "{"
            told = _decode(told if is_json else base64.b64decode(told, validate=True))
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error, ValueError, RecursionError):
        return None
    if not isinstance(told, dict) or not isinstance(kind := told.get("type"), str):
        return None
    of, _, last = kind.rpartition(".")
    payload = told.get("payload")
    given = map(payload.get, ("requestId", "request_id")) if isinstance(payload, dict) else ()
    texts = (one for one in given if isinstance(one, str) and len(one) <= MAX_ID_CHARACTERS)
    request_id = next(texts, "")
    if last not in OVER or not of.endswith("batch") or not request_id:
        return None
    return Event(bare_id(request_id), _deliveries(message))


def _deliveries(message: Message) -> int:
    try:
        return msgspec.json.decode(message.attempts, type=int)
    except msgspec.MsgspecError:
        return 0

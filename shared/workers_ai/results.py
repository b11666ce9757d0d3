"""A batch's results, parsed to their end in one pass. Pure: knows no HTTP and no batch.

Either shape (`responses`, `results`), with or without the envelope. Members whose form depends on
the model stay bytes. Objects take far more memory than the bytes they are read from, 30 times as
much in the worst case. So the items of a large reply are counted while they are read, and nothing
else that is large is decoded.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, TypeVar, cast

import msgspec

from dropbatch.core.formats.base import NULL, begins

SMALL_REPLY_BYTES = 3_000_000
"""Decoded without counting: whatever it holds takes 120 MB at most."""
MAX_MEMBER_BYTES = 1_000_000
"""A larger single member, such as an item's error, counts as absent."""
_WHOLE_NUMBER = re.compile("[0-9]{1,18}")
MAX_UNKNOWN_BYTES = 3_000_000
"""Bytes of members with unknown names that are kept of one large reply."""

COMPLETED_WORDS = frozenset(
    {"", "completed", "complete", "succeeded", "success", "done", "finished"}
)
"""Status words beside which an array is the whole answer, even one without items."""
FAILED_WORDS = frozenset({"failed", "error", "errored", "cancelled", "canceled"})
_ITEMS = re.compile(rb'\[\s*\{\s*"(?:id|index)"\s*:\s*"?[0-9]')
"""An array of items that stands where the object with the array should."""
_DENIALS = frozenset({"false", "0", "0.0", "no"})
"""What `success` may be of an item that failed, as text."""

Scalar = int | float | str | bool | None


class TooManyItemsError(Exception):
    """A reply has more items than any answer to what was sent."""


class Item(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The API's answer to one request: the known members; absent ones have their defaults."""

    id: Scalar = None
    index: Scalar = None
    external_reference: msgspec.Raw = NULL
    success: Scalar | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw = NULL
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    errors: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    message: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def extra_members(self) -> dict[str, msgspec.Raw]:
        """The members besides id, reference, success and result."""
        if self.error is self.errors is self.message is msgspec.UNSET:
            return {}  # nearly always
        present = {"error": self.error, "errors": self.errors, "message": self.message}
        return {name: raw for name, raw in present.items() if raw is not msgspec.UNSET}


class _CountedItem(Item):
    def __post_init__(self) -> None:
        """Count it."""
        _counter.count()


class _Counted(msgspec.Struct):
    def __post_init__(self) -> None:
        """Count it."""
        _counter.count()


class Counter:
    """Counts what a decoder makes. One at a time: a decoder knows nothing of its caller."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._left = 0

    def count(self) -> None:
        """Count one object; raises `TooManyItemsError`."""
        self._left -= 1
        if self._left < 0:
            raise TooManyItemsError

    def decode(self, decode: Callable[[Any], Decoded], content: Any, most: int) -> Decoded:
        """Decode content that holds at most so many items."""
        with self._lock:  # A decoder holds the interpreter nearly all the time anyway.
            self._left = most
            return decode(content)


_counter = Counter()


class UnusualItem(Item):
    """An item with unknown members."""

    more: dict[str, msgspec.Raw] = {}

    def extra_members(self) -> dict[str, msgspec.Raw]:
        """The same, with the unknown ones."""
        return {**super().extra_members(), **self.more}


def plain_results(items: Iterable[Item | None]) -> list[msgspec.Raw]:
    """The results of those items that are good and have no further members."""
    return [
        item.result
        for item in items
        if item is not None
        and (item.success is True or item.success is msgspec.UNSET)
        and item.error is item.errors is item.message is msgspec.UNSET
        and type(item) is not UnusualItem
    ]


def has_failed(item: Item) -> bool:
    """Whether an item says that it failed (`success` may be a text), or has an error."""
    if str(item.success).lower() in _DENIALS:
        return True
    others = item.extra_members()
    word = decode_member(others.get("status", NULL))
    if isinstance(word, str) and word.lower() in FAILED_WORDS:
        return True
    return any(decode_member(others.get(name, NULL)) for name in ("error", "errors"))


def is_placeholder(item: Item, *, unfinished: bool) -> bool:
    """Whether an item only holds an answer's place; not a success of a finished batch."""
    return item.result == NULL and (unfinished or item.success is not True) and not has_failed(item)


def place_of(item: Item) -> int | None:
    """The place of the record that an item names; None if neither `index` nor `id` is a number."""
    for name in (item.index, item.id):
        if type(name) is int:
            return name
        if type(name) is float and name.is_integer():
            return int(name)
        if type(name) is str and _WHOLE_NUMBER.fullmatch(name):
            return int(name)
    return None


def items_with_extras(items: Mapping[int, Item]) -> Iterator[tuple[int, Item]]:
    """Those items, by their keys, that have members besides id, reference, success and result."""
    for key, item in items.items():
        is_usual = item.error is item.errors is item.message is msgspec.UNSET
        if is_usual and type(item) is not UnusualItem:
            continue  # nearly always, so without a call
        if item.extra_members():
            yield key, item


@dataclass(frozen=True, slots=True)
class Answer:
    """A batch's results: a reply, parsed to its end as JSON with `responses` or `results`."""

    body: bytes | mmap.mmap
    items: list[Item]  # one that is not an object names no record
    usage: msgspec.Raw | msgspec.UnsetType
    status: str = ""  # the API's own word, in lower case
    request_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    unfinished: bool = False  # the items may not be all
    refused: bool = False  # its envelope says that the call has not succeeded


Members = dict[str, msgspec.Raw]
Array = TypeVar("Array", list[Item], list[_CountedItem])
Decoded = TypeVar("Decoded")


class _Facts(msgspec.Struct):
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    status: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    request_id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Inner(_Facts, Generic[Array]):
    responses: Array | msgspec.UnsetType = msgspec.UNSET
    results: Array | msgspec.UnsetType = msgspec.UNSET


class _Reply(_Inner[Array], Generic[Array]):
    result: _Inner[Array] | msgspec.UnsetType = msgspec.UNSET
    success: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _UnusualInner(_Facts):
    responses: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    results: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _UnusualReply(_UnusualInner):
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    success: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _KnownMembers(msgspec.Struct):
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    index: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    success: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    external_reference: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    errors: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    message: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_plain = msgspec.json.Decoder(_Reply[list[Item]]).decode
_decode_counted = msgspec.json.Decoder(_Reply[list[_CountedItem]]).decode
_decode_unusual = msgspec.json.Decoder(_UnusualReply).decode
_decode_unusual_inner = msgspec.json.Decoder(_UnusualInner).decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_only = msgspec.json.Decoder(tuple[msgspec.Raw]).decode  # It stops at a second element.
_count_objects = msgspec.json.Decoder(list[_Counted | None]).decode
_decode_known = msgspec.json.Decoder(_KnownMembers).decode
_decode_one = msgspec.json.Decoder(Members).decode
_decode_any = msgspec.json.Decoder().decode

_UNREADABLE = (msgspec.ValidationError, UnicodeDecodeError)
"""Something has an unexpected type; it may still be JSON."""


def parse_answer(body: bytes | mmap.mmap, most: int | None = None) -> Answer:
    """Parse a batch's results to their end; raises `TooManyItemsError`, or an error of msgspec."""
    items, facts, refused = _items_of(body, most)
    if most is not None and len(items) > most:
        raise TooManyItemsError
    said = decode_member(facts.status) if begins(facts.status, b'"') else ""
    word = said.lower() if isinstance(said, str) else ""
    unfinished = word not in COMPLETED_WORDS and word not in FAILED_WORDS
    return Answer(body, items, facts.usage, word, facts.request_id, unfinished, refused)


def _items_of(body: bytes | mmap.mmap, most: int | None) -> tuple[list[Item], _Facts, bool]:
    """A reply's items, what it says beside them, and whether its envelope refuses the call."""
    if most is not None and len(body) > SMALL_REPLY_BYTES:
        try:
            counted, facts, refused = _array_of(_counter.decode(_decode_counted, body, most))
        except _UNREADABLE:
            return _unusual_array_of(body, most)
        return cast("list[Item]", counted), facts, refused
    try:
        return _array_of(_decode_plain(body))
    except _UNREADABLE:
        return _unusual_array_of(body, None)


def _array_of(outer: _Reply[Array]) -> tuple[Array, _Facts, bool]:
    bare = outer.responses is not msgspec.UNSET or outer.results is not msgspec.UNSET
    inner = outer if bare or outer.result is msgspec.UNSET else outer.result
    arrays = [one for one in (inner.responses, inner.results) if one is not msgspec.UNSET]
    if not arrays:
        raise msgspec.ValidationError("a reply without responses or results")
    return max(arrays, key=len), _with_status(inner, outer), begins(outer.success, b"f")


def _unusual_array_of(body: bytes | mmap.mmap, most: int | None) -> tuple[list[Item], _Facts, bool]:
    """The same where something has an unexpected type, such as an item that is not an object."""
    outer = _decode_unusual(body)
    inner: _UnusualInner = outer
    bare = begins(outer.responses, b"[") or begins(outer.results, b"[")
    if not bare and (result := only_object(outer.result)) is not None:
        inner = _decode_unusual_inner(result)
    arrays = [
        one
        for one in (inner.responses, inner.results)
        if isinstance(one, msgspec.Raw) and begins(one, b"[")
    ]
    bare_result = outer.result if isinstance(outer.result, msgspec.Raw) else None
    if not arrays and bare_result and _ITEMS.match(memoryview(bare_result)):
        arrays = [bare_result]
    if not arrays:
        raise msgspec.ValidationError("a reply without responses or results")
    array = max(arrays, key=lambda one: len(memoryview(one)))
    if most is not None:
        # Of a large reply only objects (and nulls) can be counted before they take memory.
        _counter.decode(_count_objects, array, most)
    left = MAX_UNKNOWN_BYTES if len(body) > SMALL_REPLY_BYTES else len(body)
    items = []
    for raw in _decode_raws(array):
        known, more = _members_of(raw, left)
        left -= more
        items.append(_item_of(known))
    return items, _with_status(inner, outer), begins(outer.success, b"f")


def _with_status(inner: _Facts, outer: _Facts) -> _Facts:
    """What is said beside the items; the status may stand beside the envelope's members."""
    if inner.status is msgspec.UNSET:
        inner.status = outer.status
    return inner


def _members_of(raw: msgspec.Raw, left: int) -> tuple[Members, int]:
    """An item's members, and the bytes of unknown ones, which are left out above `left`."""
    try:
        known = _decode_known(raw)
        members = {
            name: value
            for name, value in msgspec.structs.asdict(known).items()
            if value is not msgspec.UNSET
        }
        unknown = len(memoryview(raw)) - sum(len(memoryview(value)) for value in members.values())
        return (_decode_one(raw), unknown) if unknown <= left else (members, 0)
    except _UNREADABLE:
        return {}, 0


def _item_of(members: Members) -> Item:
    """An item with unknown members, or members of unexpected types."""
    item = UnusualItem(more=members)
    for name in ("id", "index", "success"):
        if name in members:
            setattr(item, name, decode_member(members.pop(name)))
    for name in ("external_reference", "result"):
        if name in members:
            setattr(item, name, members.pop(name))
    return item


def only_object(raw: msgspec.Raw | msgspec.UnsetType) -> msgspec.Raw | None:
    """The object that a member is, or that is the only element of its array; else None."""
    if begins(raw, b"["):
        try:
            (raw,) = _decode_only(raw)  # type: ignore[arg-type]  # a Raw is bytes to msgspec
        except msgspec.ValidationError:
            return None
    return raw if isinstance(raw, msgspec.Raw) and begins(raw, b"{") else None


def decode_member(raw: msgspec.Raw | bytes | msgspec.UnsetType) -> Any:
    """A member's value; None if it is absent, too large, not valid text, or out of range."""
    if raw is msgspec.UNSET or len(memoryview(raw)) > MAX_MEMBER_BYTES:
        return None
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

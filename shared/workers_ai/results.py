"""A completed batch's reply, parsed to its end in one pass. Pure: knows no HTTP and no batch.

Either shape (`responses`, `results`), with or without the envelope. Members whose form depends on the model stay bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from dropbatch.core.formats.base import NULL, begins

if TYPE_CHECKING:
    import mmap


class Item(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The API's answer to one request: the known members; absent ones have their defaults."""

    id: Any = None
    index: Any = None
    external_reference: msgspec.Raw = NULL
    success: Any = True
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


class UnusualItem(Item):
    """An item with unknown members."""

    more: dict[str, msgspec.Raw] = {}

    def extra_members(self) -> dict[str, msgspec.Raw]:
        """The same, with the unknown ones."""
        return {**super().extra_members(), **self.more}


@dataclass(frozen=True, slots=True)
class Answer:
    """A batch's results: a complete reply, parsed to its end as JSON with `responses` or `results`.

    Attributes:
        body: the reply as it came.
        items: its `responses` or `results`; an element that is not an object is an item that names no record.
        usage: as the API reports it.
    """

    body: bytes | mmap.mmap
    items: list[Item]
    usage: msgspec.Raw | msgspec.UnsetType


Members = dict[str, msgspec.Raw]
Array = TypeVar("Array", list[Item], list[Members])


class _Inner(msgspec.Struct, Generic[Array]):
    responses: Array | msgspec.UnsetType = msgspec.UNSET
    results: Array | msgspec.UnsetType = msgspec.UNSET
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Reply(_Inner[Array], Generic[Array]):
    result: _Inner[Array] | msgspec.UnsetType = msgspec.UNSET
    success: Any = None


class _UnusualInner(msgspec.Struct):
    responses: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    results: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _UnusualReply(_UnusualInner):
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    success: Any = None


_decode_plain = msgspec.json.Decoder(_Reply[list[Item]]).decode
_decode_members = msgspec.json.Decoder(_Reply[list[Members]]).decode
_decode_unusual = msgspec.json.Decoder(_UnusualReply).decode
_decode_unusual_inner = msgspec.json.Decoder(_UnusualInner).decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_one = msgspec.json.Decoder(Members).decode
_decode_any = msgspec.json.Decoder().decode

_UNREADABLE = (msgspec.ValidationError, UnicodeDecodeError)
"""Something has an unexpected type; it may still be JSON."""


def parse_answer(body: bytes | mmap.mmap) -> Answer:
    """Parse a completed batch's reply to its end.

    Raises:
        msgspec.MsgspecError: not JSON, or without `responses` and `results`, or with `"success":false`.
        UnicodeDecodeError: its keys are not valid text.
        RecursionError: nested too deeply.
    """
    try:
        items, usage = _array_of(_decode_plain(body))
        return Answer(body, items, usage)
    except _UNREADABLE:
        pass
    try:
        every, usage = _array_of(_decode_members(body))
    except _UNREADABLE:
        every, usage = _unusual_array_of(body)
    return Answer(body, list(map(_item_of, every)), usage)


def _array_of(outer: _Reply[Array]) -> tuple[Array, msgspec.Raw | msgspec.UnsetType]:
    bare = outer.responses is not msgspec.UNSET or outer.results is not msgspec.UNSET
    inner = outer if bare or outer.result is msgspec.UNSET else outer.result
    array = inner.results if inner.responses is msgspec.UNSET else inner.responses
    if array is msgspec.UNSET or outer.success is False:
        raise msgspec.ValidationError("a reply without responses or results")
    return array, inner.usage


def _unusual_array_of(body: bytes | mmap.mmap) -> tuple[list[Members], msgspec.Raw | msgspec.UnsetType]:
    """The same for replies in which something has an unexpected type, such as an item that is not an object."""
    outer = _decode_unusual(body)
    inner: _UnusualInner = outer
    bare = begins(outer.responses, b"[") or begins(outer.results, b"[")
    if not bare and (result := only_object(outer.result)) is not None:
        inner = _decode_unusual_inner(result)
    array = inner.responses if begins(inner.responses, b"[") else inner.results
    if not begins(array, b"[") or outer.success is False:
        raise msgspec.ValidationError("a reply without responses or results")
    return [_members_of(raw) for raw in _decode_raws(array)], inner.usage  # type: ignore[arg-type]


def _members_of(raw: msgspec.Raw) -> Members:
    try:
        return _decode_one(raw)
    except _UNREADABLE:
        return {}  # not an object, or its keys are not valid text: it answers no record


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
    """The object that a member is, or that is the only element of its array; None if there is none."""
    if begins(raw, b"["):
        elements = _decode_raws(raw)  # type: ignore[arg-type]  # a Raw is bytes to msgspec
        raw = elements[0] if len(elements) == 1 else msgspec.UNSET
    return raw if isinstance(raw, msgspec.Raw) and begins(raw, b"{") else None


def decode_member(raw: msgspec.Raw | bytes) -> Any:  # noqa: ANN401  # any JSON value
    """A member's value; None if it is not valid text, or a number out of range."""
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None

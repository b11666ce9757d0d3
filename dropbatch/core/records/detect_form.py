"""Detects an upload's form from its first unpacked bytes: JSON Lines, the API's document, or a lone array. Pure.

The expressions for strings exclude raw control characters, as JSON does: a line feed inside a string is not JSON. That
distinguishes a broken first line of JSON Lines from a document that continues over several lines.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

HEAD_BYTES = 12 << 20
"""Unpacked bytes that are read: more than the largest record, so that a first line that can be sent is complete."""

BOM = b"\xef\xbb\xbf"

STRING = rb'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"'
_SPACE = re.compile(rb"[ \t\r\n]*+")
_KEY = re.compile(STRING, re.DOTALL)
_TOKEN = re.compile(STRING + rb"|[{}\[\]\"]", re.DOTALL)
_LAX_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_LAX_KEY = re.compile(_LAX_STRING, re.DOTALL)
_LAX_TOKEN = re.compile(_LAX_STRING + rb"|[{}\[\]\"]", re.DOTALL)
_SCALAR = re.compile(rb"[^,{}\[\]\"\s]++")

_decode = msgspec.json.Decoder().decode


def detect_form(head: bytes, *, complete: bool) -> tuple[str, int]:
    """The form of an upload and the offset at which its records begin.

    Args:
        head: the first unpacked bytes, `HEAD_BYTES` of them or all.
        complete: whether the head is the whole upload.

    Returns:
        `jsonl` with the offset of the first line, `object` or `array` with the offset after the array's bracket.
    """
    start = len(BOM) if head.startswith(BOM) else 0
    first = _skip_space(head, start)
    if head[first : first + 1] not in {b"{", b"["}:
        return "jsonl", start
    line_end = head.find(b"\n", first)
    if complete or line_end >= 0:
        line = head[first : line_end if line_end >= 0 else len(head)]
        try:
            value = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            alone = complete and (line_end < 0 or not head[line_end:].strip(b" \t\r\n"))
            if not alone or not _is_document(value):
                return "jsonl", start
    found = _array_start(head, first)
    if found is None:
        return "jsonl", start
    if complete and _has_more(head, first):
        return "jsonl", start
    return found


def end_of_value(data: bytes, start: int, *, strict: bool = True) -> int | None:
    """Offset after the JSON value that begins at `start`, found by its brackets alone; None if the data ends before it.

    Args:
        data: the text.
        start: where the value begins.
        strict: whether a string with a raw control character counts as unterminated.
    """
    opening = data[start : start + 1]
    if opening == b'"':
        match = (_KEY if strict else _LAX_KEY).match(data, start)
        return match.end() if match else None
    if opening not in {b"{", b"["}:
        match = _SCALAR.match(data, start)
        return match.end() if match and match.end() < len(data) else None
    depth = 0
    for match in (_TOKEN if strict else _LAX_TOKEN).finditer(data, start):
        token = data[match.start()]
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
            if depth == 0:
                return match.end()
        elif match.end() - match.start() == 1:
            return None  # A string that does not end in this data.
    return None


def _is_document(value: object) -> bool:
    if isinstance(value, dict):
        return isinstance(value.get("requests"), list)
    return isinstance(value, list) and (not value or isinstance(value[0], dict))


def _has_more(head: bytes, first: int) -> bool:
    """Whether another value follows the first: then the text is not a single document."""
    end = end_of_value(head, first)
    return end is not None and bool(head[end:].strip(b" \t\r\n"))


def _array_start(head: bytes, first: int) -> tuple[str, int] | None:
    """Where the array of requests begins, if the text begins like a document."""
    if head[first : first + 1] == b"[":
        return ("array", first + 1) if head[_skip_space(head, first + 1) :][:1] in {b"{", b"]"} else None
    found = (at for key, at in _values(head, first) if key == b'"requests"' and head[at : at + 1] == b"[")
    at = next(found, None)
    return None if at is None else ("object", at + 1)


def whole_members(beginning: bytes) -> bytes:
    """The members at the beginning of an object that are whole, as an object; empty if there are none."""
    whole = []
    for key, begin in _values(beginning, _skip_space(beginning, 0)):
        end = end_of_value(beginning, begin)
        member = b"%b:%b" % (key, beginning[begin:end])
        if end is not None and _is_json(b"{%b}" % member):
            whole.append(member)
    return b"{%b}" % b",".join(whole) if whole else b""


def _is_json(text: bytes) -> bool:
    try:
        _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _values(text: bytes, first: int) -> Iterator[tuple[bytes, int]]:
    """The keys of the object that begins at `first`, each with the offset of its value, as far as they are whole."""
    at = _skip_space(text, first + 1)
    while text[first : first + 1] == b"{" and (key := _KEY.match(text, at)):
        at = _skip_space(text, key.end())
        if text[at : at + 1] != b":":
            return
        at = _skip_space(text, at + 1)
        yield key.group(), at
        end = end_of_value(text, at)
        if end is None:
            return
        at = _skip_space(text, end)
        if text[at : at + 1] != b",":
            return
        at = _skip_space(text, at + 1)


def _skip_space(data: bytes, at: int) -> int:
    match = _SPACE.match(data, at)
    return match.end() if match else at

"""Detects an upload's form by its first bytes: JSON Lines, the API's document, or an array."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import BOM, UNDECODABLE, is_json
from dropbatch.core.read.lines import without_lone_surrogates
from dropbatch.core.read.unpack import (
    SIGNATURE_BYTES,
    decompress,
    detect_compression,
    reject_foreign_format,
)

HEAD_BYTES = 12 << 20
"""Unpacked bytes that are read: more than the largest record, and all of a document."""


_STRING = rb'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"'
_KEY = re.compile(_STRING, re.DOTALL)
_TOKEN = re.compile(_STRING + rb"|[{}\[\]\"]", re.DOTALL)
_SCALAR = re.compile(rb"[^,{}\[\]\"\s]++")
_SPACE = re.compile(rb"[ \t\r\n]*+")
_DOCUMENT = re.compile(rb'(\{\s*"requests"\s*:\s*)?\[\s*[{\]]')
"""How a document begins that is too large or broken."""
_TOO_LARGE = (
    f"A JSON document may have {HEAD_BYTES >> 20} MB, unpacked. Upload a larger one as "
    "JSON Lines, one request a line: "
    "`jq -c '.requests[]'` of the API's document, `jq -c '.[]'` of an array."
)
_TWICE = "The document has two members named requests. Write all requests in one."

_decode = msgspec.json.Decoder().decode


def detect_form(head: bytes, *, complete: bool) -> tuple[str, int]:
    """`jsonl`, `object` or `array`, and the offset of its text; or `UploadRefused`."""
    start = len(BOM) if head.startswith(BOM) else 0
    text = head[start:]
    if complete and (form := _form_of(text)):
        if form == "object" and _has_two(text, b'"requests"'):
            raise UploadRefused("broken_document", _TWICE)
        return form, start
    opening = _DOCUMENT.match(text.lstrip())
    if not opening or is_json(text.lstrip().partition(b"\n")[0]) or (complete and _has_more(text)):
        return "jsonl", start
    if not complete:
        raise UploadRefused("broken_document", _TOO_LARGE)
    return ("object" if opening[1] else "array"), start


def _form_of(text: bytes) -> str:
    """The form of a whole document; empty if it is none."""
    try:
        value = _decode(without_lone_surrogates(text))
    except UNDECODABLE:
        return ""
    if isinstance(value, dict):
        return "object" if isinstance(value.get("requests"), list) else ""
    return "array" if isinstance(value, list) and (not value or isinstance(value[0], dict)) else ""


def _has_two(text: bytes, name: bytes) -> bool:
    """Whether an object has a member twice; the count is quick, and nearly always decides."""
    return text.count(name) > 1 and [key for key, _ in _values(text)].count(name) > 1


def _has_more(text: bytes) -> bool:
    """Whether another value follows the first: then the text is not a single document."""
    end = end_of_value(text, _skip_space(text, 0))
    return end is not None and bool(text[end:].strip())


def end_of_value(data: bytes, start: int) -> int | None:
    """Offset after the JSON value that begins at `start`; None if the data ends before it."""
    opening = data[start : start + 1]
    if opening == b'"':
        match = _KEY.match(data, start)
        return match.end() if match else None
    if opening not in {b"{", b"["}:
        match = _SCALAR.match(data, start)
        return match.end() if match and match.end() < len(data) else None
    depth = 0
    for match in _TOKEN.finditer(data, start):
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


def whole_members(beginning: bytes) -> bytes:
    """The whole members at the beginning of an object, as one; empty if there are none."""
    whole = []
    for key, begin in _values(beginning):
        end = end_of_value(beginning, begin)
        member = b"%b:%b" % (key, beginning[begin:end])
        if end is not None and is_json(b"{%b}" % member):
            whole.append(member)
    return b"{%b}" % b",".join(whole) if whole else b""


def _values(text: bytes) -> Iterator[tuple[bytes, int]]:
    """The keys of an object, each with the offset of its value, as far as they are whole."""
    first = _skip_space(text, 0)
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


@dataclass(frozen=True, slots=True)
class Beginning:
    """How an upload begins: its packing, its first unpacked bytes, and whether these are all."""

    packing: str
    head: bytes
    complete: bool


def read_beginning(stored: Iterator[bytes], check: Callable[[], None] = lambda: None) -> Beginning:
    """Read an upload's first bytes, or `UploadRefused`; `check` may end the reading."""
    first = next(stored, b"")
    packing = detect_compression(first)
    head = bytearray()
    complete = True
    for block in decompress(packing, chain([first], stored), check):
        head += block
        if len(head) >= HEAD_BYTES:
            complete = False
            break
    reject_foreign_format(bytes(head[:SIGNATURE_BYTES]))
    return Beginning(packing, bytes(head[:HEAD_BYTES]), complete)

"""Finds where records begin and end: lines, several at a time, and the elements of a document.

Byte for byte and with offsets, so that what is sent is what was written, and a cut resumes. A
document is read at once: it has no more bytes than are looked at of any upload. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import API_BODY_LIMIT, UNDECODABLE
from dropbatch.core.read.rows import EXCERPT_BYTES, OverlongRecord, RecordWindow, read_rows

if TYPE_CHECKING:
    from dropbatch.core.plan import Checkpoint, SplitPlan


WINDOW_BYTES = 64 << 10
"""Bytes of lines that are decoded together. Their values fit in a processor's cache, which doubles
the speed."""

WINDOW_ELEMENTS = 500
"""Elements of a document that are decoded together."""


class _Document(msgspec.Struct):
    requests: list[msgspec.Raw]


_DECODERS: dict[str, Callable[[bytes], list[msgspec.Raw]]] = {
    "object": lambda text: msgspec.json.decode(text, type=_Document).requests,
    "array": lambda text: msgspec.json.decode(text, type=list[msgspec.Raw]),
}
"""By a document's form, its elements."""
_SPACE = b" \t\r\n"
LINE_SPACE = b" \t\r"
_BLANKS = re.compile(rb"[ \t\r\n]*+")
_LONG_BLANK = re.compile(rb"\n[ \t\r\n]{16}")
_FEW_BYTES = 8
"""Average bytes of lines that are so short that long stretches of them may be blank."""


def excerpt_of(text: bytes) -> bytes:
    """The beginning of a record that is too large; empty if all of it is blank."""
    return text.lstrip(LINE_SPACE)[:EXCERPT_BYTES]


class Window(NamedTuple):
    """Consecutive records.

    Attributes:
        records: their bytes; lines without line feed.
        returns: whether a carriage return may end one.
        referring: whether one may have an `external_reference`.
        blank_bytes: of the blank lines that it consists of; 0 if it has records.
        lines: the records with the line feeds between them; empty for a document's elements.
    """

    records: list[bytes | OverlongRecord]
    returns: bool
    referring: bool = True
    blank_bytes: int = 0
    blank_lines: int = 0
    lines: bytes = b""


def lines(blocks: Iterable[bytes]) -> Iterator[Window]:
    """Lines without line feeds, some at a time; long stretches of blank ones have no records."""
    held: list[bytes] = []
    held_size = 0
    for block in blocks:
        last = block.rfind(b"\n")
        if last < 0:
            held.append(block)
            held_size += len(block)
            if held_size > API_BODY_LIMIT:
                held = [excerpt_of(b"".join(held))]
            continue
        first = -1
        if held:
            first = block.find(b"\n")
            held.append(block[:first])
            yield _held_line(held, held_size + first)
            held, held_size = [], 0
        yield from _lines_within(block, first + 1, last)
        if last + 1 < len(block):
            held, held_size = [block[last + 1 :]], len(block) - last - 1
        del block  # Before the next one is read: only one is kept in memory.
    if held:
        yield _held_line(held, held_size)


def _held_line(pieces: list[bytes], size: int) -> Window:
    text = b"".join(pieces)
    return Window(
        [OverlongRecord(excerpt_of(text), size) if size > API_BODY_LIMIT else text], returns=True
    )


def _lines_within(block: bytes, begin: int, last: int) -> Iterator[Window]:
    """The lines from `begin` to the line feed at `last`, some at a time."""
    stretches = False
    while begin <= last:
        if block[begin] in _SPACE and (blank := _blank_bytes(block, begin)):
            count = block.count(b"\n", begin, begin + blank)
            yield Window([], returns=False, blank_bytes=blank, blank_lines=count)
            begin += blank
            continue
        end = (
            last
            if last - begin <= WINDOW_BYTES
            else block.rfind(b"\n", begin, begin + WINDOW_BYTES)
        )
        if end < 0:
            end = block.find(b"\n", begin + WINDOW_BYTES)
        if stretches and (stretch := _LONG_BLANK.search(block, begin, end)):
            end = stretch.start()
        section = block[begin:end]
        records = section.split(b"\n")
        if not stretches and len(section) < _FEW_BYTES * len(records):
            stretches = True
            continue
        # A key external_reference has an underscore or, if escaped, a backslash: found faster.
        returns, referring = b"\r" in section, b"_" in section or b"\\" in section
        alike: list[Any] = records
        yield Window(alike, returns=returns, referring=referring, lines=section)
        begin = end + 1


def _blank_bytes(block: bytes, begin: int) -> int:
    """Bytes of the blank lines at a line's beginning, line feeds included."""
    space = _BLANKS.match(block, begin)
    return max(block.rfind(b"\n", begin, space.end() if space else begin) + 1 - begin, 0)


def elements(form: str, blocks: Iterable[bytes], first: int = 0) -> Iterator[Window]:
    """The elements of a whole document from the first that is wanted on; or `UploadRefused`."""
    try:
        found = _elements_of(form, b"".join(blocks))
    except UNDECODABLE as error:
        raise UploadRefused(
            "broken_document", f"The document is broken: {error}. Fix it and upload it again."
        ) from error
    for begin in range(first, len(found), WINDOW_ELEMENTS):
        chosen = found[begin : begin + WINDOW_ELEMENTS]
        yield Window(chosen, returns=False)  # type: ignore[arg-type]


def _elements_of(form: str, text: bytes) -> list[bytes]:
    decode = _DECODERS[form]
    try:
        return [bytes(one) for one in decode(text)]
    except UNDECODABLE:
        # As long; each fails its record alone.
        mended, found, at = without_lone_surrogates(text), list[bytes](), 0
        for one in map(bytes, decode(mended)):
            at = mended.index(one, at)
            found.append(text[at : at + len(one)])
            at += len(one)
        return found


def windows(plan: SplitPlan, start: Checkpoint, blocks: Iterable[bytes]) -> Iterator[RecordWindow]:
    """An upload's records, some at a time, not validated; or `UploadRefused`: it is damaged."""
    if plan.is_table:
        yield from read_rows(blocks, plan.delimiter.encode(), start.line)
    elif plan.is_document:
        for window in elements(plan.form, blocks, start.record):
            # A document is read whole.
            yield RecordWindow(window.records, *([[0] * len(window.records)] * 2))
    else:
        for window in lines(blocks):
            if window.blank_bytes:
                yield RecordWindow([b""], [window.blank_bytes], [window.blank_lines])
                continue
            steps = [len(one) + 1 for one in window.records]
            yield RecordWindow(window.records, steps, [1] * len(window.records))


SURROGATES = re.compile(rb"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)")
"""An escaped backslash, a surrogate pair, or a lone surrogate: only the last is a group."""
REPLACEMENT = rb"\ufffd"
_MARK = "\ufdd0"
"""A code that is reserved for uses such as this, and that no text has."""

_decode = msgspec.json.Decoder().decode


def without_lone_surrogates(content: bytes) -> bytes:
    """Return the same JSON with U+FFFD in place of each lone surrogate."""
    return SURROGATES.sub(lambda found: found[0] if found[1] is None else REPLACEMENT, content)


def about_lone_surrogate(content: bytes) -> str:
    """What to say of an object's first lone surrogate, with its member; empty if it has none."""
    half = next(
        (found[1] for found in SURROGATES.finditer(content) if found[1] is not None), b""
    ).decode()
    if not half:
        return ""
    marked = SURROGATES.sub(
        lambda found: found[0] if found[1] is None else _MARK.encode("unicode-escape"), content
    )
    try:
        member = _first_in(_decode(marked), "")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        member = None
    return (
        f"{member or 'The record'}: It has half of a surrogate pair ({half}), as where a text is "
        "cut in the middle of an emoji. Cut it elsewhere, or replace that character."
    )


def _first_in(value: Any, path: str) -> str | None:
    if isinstance(value, str):
        return path if _MARK in value else None
    found = (_first_in(one, name) for name, one in inner_values(value, path))
    return next((one for one in found if one is not None), None)


def inner_values(value: object, path: str) -> Iterator[tuple[str, Any]]:
    """What is in an object or array, each with its path."""
    if isinstance(value, dict):
        yield from ((f"{path}.{name}" if path else str(name), one) for name, one in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{path}[{index}]", one) for index, one in enumerate(value))

"""Finds where records begin and end: lines of JSON Lines, elements of a document, several at a time.

Records are validated in `dropbatch.core.records.cut`. Pure: no S3, no batches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import API_BODY_LIMIT
from dropbatch.core.formats.csv_rows import EXCERPT_BYTES, OverlongRecord
from dropbatch.core.records.detect_form import end_of_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dropbatch.core.records.plan import Checkpoint, SplitPlan

WINDOW_BYTES = 64 << 10
"""Bytes of lines that are decoded together: their values fit in a processor's cache, which doubles the speed."""

MIN_ELEMENTS = 16
"""Elements of a document that are found by their tokens before the faster way is tried again."""

_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
_CR, _BRACKET = b"\r]"
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
        steps: for a document's elements, bytes from each one's end to the next one's; none for lines.
        returns: whether a carriage return may end one.
        referring: whether one may have an `external_reference`.
        blank_bytes: bytes of the blank lines that the window consists of; 0 if it has records.
        blank_lines: their number.
        lines: the records together, with the line feeds between them; empty for a document's elements.
    """

    records: list[bytes | OverlongRecord]
    steps: list[int]
    returns: bool
    referring: bool = True
    blank_bytes: int = 0
    blank_lines: int = 0
    lines: bytes = b""


def lines(blocks: Iterable[bytes]) -> Iterator[Window]:
    """Lines without their line feeds, several at a time; the last line needs no line feed.

    Long stretches of blank lines are windows without records; a few blank lines among others are records.
    """
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
    return Window([OverlongRecord(excerpt_of(text), size) if size > API_BODY_LIMIT else text], [], returns=True)


def _lines_within(block: bytes, begin: int, last: int) -> Iterator[Window]:
    """The lines from `begin` to the line feed at `last`, as many at a time as are decoded together."""
    stretches = False
    while begin <= last:
        if block[begin] in _SPACE and (blank := _blank_bytes(block, begin)):
            count = block.count(b"\n", begin, begin + blank)
            yield Window([], [], returns=False, blank_bytes=blank, blank_lines=count)
            begin += blank
            continue
        end = last if last - begin <= WINDOW_BYTES else block.rfind(b"\n", begin, begin + WINDOW_BYTES)
        if end < 0:
            end = block.find(b"\n", begin + WINDOW_BYTES)
        if stretches and (stretch := _LONG_BLANK.search(block, begin, end)):
            end = stretch.start()
        section = block[begin:end]
        records = section.split(b"\n")
        if not stretches and len(section) < _FEW_BYTES * len(records):
            stretches = True
            continue
        returns, referring = b"\r" in section, may_refer(section)
        yield Window(records, [], returns=returns, referring=referring, lines=section)  # type: ignore[arg-type]
        begin = end + 1


def _blank_bytes(block: bytes, begin: int) -> int:
    """Bytes of the blank lines at a line's beginning, line feeds included."""
    space = _BLANKS.match(block, begin)
    return max(block.rfind(b"\n", begin, space.end() if space else begin) + 1 - begin, 0)


def may_refer(text: bytes) -> bool:
    """Whether `external_reference` may be a key in it: that has an underscore, or, if escaped, a backslash."""
    return b"_" in text or b"\\" in text  # Single bytes are found faster than words.


def _window_of(text: bytes, records: list[bytes], steps: list[int]) -> Window:
    return Window(records, steps, returns=False, referring=may_refer(text))  # type: ignore[arg-type]


def elements(plan: SplitPlan, start: Checkpoint, blocks: Iterable[bytes]) -> Iterator[Window]:
    """Elements of a document's array, a block's worth at a time.

    Raises:
        UploadRefused: `broken_document`: the text between or after the elements is not that of a document.
    """
    scanner = _Scanner(iter(blocks), plan.form == "object", start.offset, start.offset, is_first=start.record == 0)
    return scanner.windows()


_BETWEEN = re.compile(rb"[ \t\r\n]*+(,?)[ \t\r\n]*+(.?)", re.DOTALL)
_OUTSIDE = re.compile(rb"[\"{}\[\]]")
_INSIDE = re.compile(rb"[\"\\]")
KEY_BYTES = 64
"""Bytes after a quote in which a key and its colon are looked for."""
_REQUESTS_KEY = re.compile(rb'requests"[ \t\r\n]*+:')
_SCALAR_END = re.compile(rb"[,{}\[\]\"\s]")


def _before_element(buffer: bytes, at: int, *, first: bool) -> tuple[bytes, int, bool]:
    """The comma before the next element, where the element begins, and whether the array can continue so."""
    between = _BETWEEN.match(buffer, at)
    comma, then = between.groups()  # type: ignore[union-attr]  # it matches anything
    begin = between.start(2)  # type: ignore[union-attr]
    if comma and first:
        return comma, begin, False
    if then == b"]":
        return comma, begin, not comma
    return comma, begin, not then or (then not in b",}:" and bool(comma) != first)


def _whole_elements(buffer: bytes, at: int, *, first: bool, most: int) -> tuple[list[tuple[int, int]], int, bool]:
    """Where elements begin and end; the place after them, and whether that is after the array's end.

    There are fewer than `most` if more data is needed, or if the array ends or is broken.
    """
    places: list[tuple[int, int]] = []
    while len(places) < most:
        comma, begin, well = _before_element(buffer, at, first=first)
        if not well or begin == len(buffer):
            return places, at, False
        if buffer[begin] == _BRACKET and not comma:
            return places, begin + 1, True
        end = end_of_value(buffer, begin, strict=False)
        if end is None:
            return places, at, False
        places.append((begin, end))
        at, first = end, False
    return places, at, False


class _Alike(NamedTuple):
    """What separates two elements, and how an element begins, up to its first key: mostly the same in a document."""

    separator: bytes
    opening: bytes


def _likeness(buffer: bytes, places: list[tuple[int, int]]) -> _Alike | None:
    """What the last two elements have in common."""
    if len(places) < 2:  # noqa: PLR2004
        return None
    (_, end), (begin, last) = places[-2:]
    key = _FIRST_KEY.match(buffer, begin, last)
    return _Alike(buffer[end:begin], key.group()) if key else None


_FIRST_KEY = re.compile(rb'\{[ \t\r\n]*+"[^"\\]*+"')


def _elements_alike(buffer: bytes, at: int, alike: _Alike) -> tuple[bytes, list[bytes]] | None:
    """Text after the element that ends at `at`, and the elements in it; None if tokens have to be read.

    The text between two places that look like the end of an element is decoded as a separate array. That
    succeeds only if both are ends: an element that was cut in two has an unclosed bracket or string.
    """
    begin = at + len(alike.separator)
    if not buffer.startswith(alike.separator, at):
        return None
    mark = b"}" + alike.separator + alike.opening
    end = buffer.rfind(mark, begin, begin + WINDOW_BYTES)
    if end < 0:
        end = buffer.find(mark, begin + WINDOW_BYTES - len(mark))
    if end < 0:
        return None
    text = buffer[begin : end + 1]
    try:
        found = list(map(bytes, _decode_raws(b"[%b]" % text)))
    except (msgspec.MsgspecError, RecursionError):
        return None
    return (text, found) if alike.separator.join(found) == text else None


def _past(match: re.Match[bytes], depth: int, *, inside: bool) -> tuple[int, bool, int]:
    """Depth, whether inside a string, and where to continue, after a bracket, a quote or a backslash."""
    token = match.group()
    if token == b"\\":
        return depth, inside, match.end() + 1
    if token == b'"':
        return depth, not inside, match.end()
    return depth + (1 if token in b"{[" else -1), inside, match.end()


@dataclass(slots=True)
class _Scanner:
    """Finds the elements of a document's array in its blocks.

    Attributes:
        blocks: those that follow the buffer.
        is_object: whether the array is a member of an object.
        base: offset of the buffer in the unpacked bytes.
        behind: offset after the last element that was found.
        is_first: whether the next element is the array's first.
        buffer: what has been read, from the last element's end or earlier on.
        at: where it continues in the buffer.
        alike: how elements are separated and begin, once two have been found by their tokens.
        most: elements that are found by their tokens before the faster way is tried again.
    """

    blocks: Iterator[bytes]
    is_object: bool
    base: int
    behind: int
    is_first: bool
    buffer: bytes = b""
    at: int = 0
    alike: _Alike | None = None
    most: int = MIN_ELEMENTS

    def windows(self) -> Iterator[Window]:
        """The elements to the array's end, after which only the document's end may follow."""
        while True:
            if found := self._take_alike():
                yield found
                continue
            places, self.at, is_closed = _whole_elements(self.buffer, self.at, first=self.is_first, most=self.most)
            if places:
                yield self._take_whole(places)
                if len(places) == self.most:
                    self.most *= 2  # If no two are alike, they are rarely compared.
                    continue
            if is_closed:
                self._check_tail()
                return
            comma = self._drop_read()
            if len(self.buffer) - comma > API_BODY_LIMIT + EXCERPT_BYTES:
                yield self._skip_overlong(comma)
            else:
                self.buffer += self._next_block("it ends inside the array of requests")

    def _take_alike(self) -> Window | None:
        """Elements that are separated and begin like the last ones; None if tokens have to be read."""
        if self.alike is None or (found := _elements_alike(self.buffer, self.at, self.alike)) is None:
            return None
        text, records = found
        between = len(self.alike.separator)
        self.at += between + len(text)
        self.behind, self.most = self.base + self.at, MIN_ELEMENTS
        return _window_of(text, records, [between + len(one) for one in records])

    def _take_whole(self, places: list[tuple[int, int]]) -> Window:
        """Elements that were found by their tokens."""
        buffer, ends = self.buffer, [self.base + end for _, end in places]
        steps = [end - begin for begin, end in pairwise([self.behind, *ends])]
        self.behind, self.is_first = ends[-1], False
        self.alike = _likeness(buffer, places) or self.alike
        text = buffer[places[0][0] : places[-1][1]]
        return _window_of(text, [buffer[begin:end] for begin, end in places], steps)

    def _drop_read(self) -> int:
        """Keep only the comma before the next element, and the element; return the comma's length, 0 or 1.

        White space between them may be longer than any element.
        """
        comma, begin, well = _before_element(self.buffer, self.at, first=self.is_first)
        self.buffer, self.base, self.at = comma + self.buffer[begin:], self.base + begin - len(comma), 0
        if not well:
            raise self._broken("expected a comma or the array's end")
        return len(comma)

    def _skip_overlong(self, comma: int) -> Window:
        """Skip an element too large for any body, block by block."""
        beginning, length = self.buffer[comma : comma + EXCERPT_BYTES], -comma
        is_scalar = beginning[:1] not in {b"{", b"[", b'"'}
        depth, inside, at = 0, False, comma
        while True:
            match = (_SCALAR_END if is_scalar else _INSIDE if inside else _OUTSIDE).search(self.buffer, at)
            if match is None:
                length += len(self.buffer)
                self.base += len(self.buffer)
                at = max(at - len(self.buffer), 0)  # An escaped character may be the first of the next block.
                self.buffer = self._next_block("it ends inside the array of requests")
                continue
            if is_scalar:
                at = match.start()
                break
            depth, inside, at = _past(match, depth, inside=inside)
            if depth == 0 and not inside:
                break
        self.buffer, self.base = self.buffer[at:], self.base + at
        step, self.behind, self.is_first = self.base - self.behind, self.base, False
        return Window([OverlongRecord(beginning, length + at)], [step], returns=False)

    def _check_tail(self) -> None:
        """Check what follows the array: nothing for a lone array; an object's other members and its end."""
        rest, depth, inside, at = self.buffer[self.at :], int(self.is_object), False, 0
        while depth or inside:
            match = (_INSIDE if inside else _OUTSIDE).search(rest, at)
            if match is None:
                at = max(at - len(rest), 0)
                rest = self._next_block("its end is missing")
                continue
            depth, inside, at = _past(match, depth, inside=inside)
            if inside and depth == 1 and match.group() == b'"':
                rest, at = self._with_key(rest, at)
                if _REQUESTS_KEY.match(rest, at):
                    raise self._broken('a second member "requests" follows the array')
        rest = rest[at:]
        while not rest.strip(_SPACE):
            following = next(self.blocks, None)
            if following is None:
                return
            rest = following
        raise self._broken("something follows its end")

    def _with_key(self, rest: bytes, at: int) -> tuple[bytes, int]:
        """The same text and place, with enough text after it for a key, if the document has so much."""
        if len(rest) - at >= KEY_BYTES:
            return rest, at
        parts = [rest[at:]]
        while sum(map(len, parts)) < KEY_BYTES and (block := next(self.blocks, None)) is not None:
            parts.append(block)
        return b"".join(parts), 0

    def _next_block(self, missing: str) -> bytes:
        """The next block, which must exist: otherwise something is missing."""
        block = next(self.blocks, None)
        if block is None:
            raise self._broken(missing)
        return block

    def _broken(self, words: str) -> UploadRefused:
        return UploadRefused(
            "broken_document",
            f"The document is broken after byte {self.behind:,}: {words}. Fix it and upload it again.",
        )

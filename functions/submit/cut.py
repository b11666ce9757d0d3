"""The cut: a stream of unpacked bytes becomes batches of records. Pure: knows no S3, no ledger, no clock.

Bytes are spliced: a record is decoded once to see that it is sound, then passed on as the user wrote it. Where a cut
falls depends on the bytes and the plan alone, so that every run cuts alike. Nothing here grows with the upload.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from functions.submit.form import end_of_value
from shared.errors import UploadError
from shared.settings import API_BODY_LIMIT
from shared.sidecar import NO_REFERENCE, WRAPPING, Row, Staged, body_of
from shared.words import Place, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

EXCERPT = 64 << 10
"""Bytes of an unreadable record that are kept for `errors.jsonl`."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_CR = 13
_SPACE = b" \t\r\n"
_LINE_SPACE = b" \t\r"


class _Reference(msgspec.Struct):
    external_reference: msgspec.Raw = NO_REFERENCE


_decode_reference = msgspec.json.Decoder(_Reference).decode


@dataclass(frozen=True, slots=True)
class Overlong:
    """A record that no body can hold: its beginning and its length in bytes."""

    beginning: bytes
    length: int

    def __len__(self) -> int:
        """Bytes of the whole record."""
        return self.length


@dataclass(frozen=True, slots=True)
class Cut:
    """Consecutive records that make a batch.

    Attributes:
        first_id: id of the first record.
        rows: the sidecar.
        body: the exact request body; empty if no record can be sent.
        end: where the next cut goes on.
    """

    first_id: int
    rows: list[Row]
    body: bytes
    end: Place

    @property
    def staged(self) -> Staged:
        """What the staged object's metadata tells."""
        return Staged(len(self.rows), sum(1 for row in self.rows if row.length), len(self.body), self.end)


def cut(plan: Plan, start: Place, blocks: Iterable[bytes]) -> Iterator[Cut]:
    """Cut an upload's records into batches.

    Args:
        plan: form and limits.
        start: where to go on; the stream begins at its offset.
        blocks: unpacked bytes.

    Raises:
        UploadError: `broken_document`, when the records before it have been yielded.
    """
    windows = elements(plan, start, blocks) if plan.is_document else lines(blocks)
    most, room = plan.max_requests, plan.max_bytes - WRAPPING + 1
    offset, line, record = start.offset, start.line, start.record
    first_id, size, end = record, 0, (offset, line, record)
    rows: list[Row] = []
    raws: list[bytes] = []
    problem: UploadError | None = None
    try:
        for window, ends in windows:
            for index, raw in enumerate(window):
                line += 1
                row = row_of(raw, None if ends else line)
                if row is not None:
                    weight = row.length or len(memoryview(row.request))
                    if rows and (len(rows) == most or size + weight + 1 > room):
                        yield Cut(first_id, rows, body_of(raws), Place(*end))
                        first_id, size, rows, raws = record, 0, [], []
                    rows.append(row)
                    if row.length:
                        raws.append(raw[: row.length])  # without the CR of a CRLF
                    size += weight + 1
                    record += 1
                offset = ends[index] if ends else offset + len(raw) + 1
                if row is not None:
                    end = (offset, line, record)
    except UploadError as error:
        problem = error
    if rows:
        yield Cut(first_id, rows, body_of(raws), Place(*end))
    if problem:
        raise problem


# ── one record ───────────────────────────────────────────────────────────────────────────────────────────────────────


def row_of(raw: bytes | Overlong, line: int | None) -> Row | None:
    """What the sidecar says of a record; None for a blank line.

    Args:
        raw: the record's bytes, without the line feed.
        line: its 1-based line; None for a document's element.
    """
    length = len(raw)
    if length >= API_BODY_LIMIT - WRAPPING:
        beginning = raw.beginning if isinstance(raw, Overlong) else raw[:EXCERPT]
        words = f"The record has {length:,} bytes; a request body must stay under {API_BODY_LIMIT:,}. Shorten it."
        return _faulty(line, "too_large", words, beginning)
    try:
        value = _decode(raw)  # type: ignore[arg-type] - an Overlong is too large
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _unreadable(raw, line, error)  # type: ignore[arg-type]
    if type(value) is not dict:
        words = "The record is JSON, but no object. Write one request object."
        return Row(line, 0, NO_REFERENCE, "not_an_object", _placed(line, words), msgspec.Raw(one_line(raw)))  # type: ignore[arg-type]
    if raw[-1] == _CR:  # type: ignore[index]
        length -= 1
    reference = value.get("external_reference")
    if reference is None:
        return Row(line, length)
    if type(reference) is str:
        return Row(line, length, msgspec.Raw(_encode(reference)))
    return Row(line, length, msgspec.Raw(one_line(bytes(memoryview(_decode_reference(raw).external_reference)))))  # type: ignore[arg-type]


def one_line(json: bytes) -> bytes:
    """JSON on one line: line feeds stand only between tokens, where white space can go."""
    return msgspec.json.format(json, indent=-1) if b"\n" in json or b"\r" in json else json


def _unreadable(raw: bytes, line: int | None, error: Exception) -> Row | None:
    if not raw.strip(_LINE_SPACE):
        return None
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        return _faulty(line, "invalid_utf8", f"Byte {wrong.start + 1} of the record is not UTF-8. Save the file as UTF-8.", raw[:EXCERPT])
    words = "too deeply nested" if isinstance(error, RecursionError) else str(error)
    return _faulty(line, "invalid_json", f"The record is not valid JSON ({words}). Write one JSON object a line.", raw[:EXCERPT])


def _faulty(line: int | None, code: str, message: str, beginning: bytes) -> Row:
    request = _encode(beginning.removesuffix(b"\r").decode(errors="replace"))
    return Row(line, 0, NO_REFERENCE, code, _placed(line, message), msgspec.Raw(request))


def _placed(line: int | None, message: str) -> str:
    return message if line is None else f"Line {line}: {message}"


# ── where records begin and end ──────────────────────────────────────────────────────────────────────────────────────

Window = tuple[list["bytes | Overlong"], list[int]]
"""Records that lie together, and for a document's elements the offsets behind each (for lines they follow from the lengths)."""


def lines(blocks: Iterable[bytes]) -> Iterator[Window]:
    """Lines without their line feeds, a block's worth at a time; a last line needs none."""
    held: list[bytes] = []
    held_size = 0
    for block in blocks:
        last = block.rfind(b"\n")
        if last < 0:
            held.append(block)
            held_size += len(block)
            if held_size > API_BODY_LIMIT + EXCERPT:
                held = [b"".join(held)[:EXCERPT]]
            continue
        if held:
            first = block.find(b"\n")
            held.append(block[:first])
            held_size += first
            yield [Overlong(held[0][:EXCERPT], held_size) if held_size > API_BODY_LIMIT else b"".join(held)], []
            held, held_size = [], 0
            if last > first:
                yield block[first + 1 : last].split(b"\n"), []  # type: ignore[misc] - a list of bytes serves
        else:
            yield block[:last].split(b"\n"), []  # type: ignore[misc]
        if last + 1 < len(block):
            held, held_size = [block[last + 1 :]], len(block) - last - 1
    if held:
        yield [Overlong(held[0][:EXCERPT], held_size) if held_size > API_BODY_LIMIT else b"".join(held)], []


def elements(plan: Plan, start: Place, blocks: Iterable[bytes]) -> Iterator[Window]:
    """Elements of a document's array, a block's worth at a time.

    Raises:
        UploadError: `broken_document`: the text between or behind the elements is not a document's.
    """
    buffer, base, at = b"", start.offset, 0
    expected_first = start.record == 0
    more = iter(blocks)

    def broken(words: str) -> UploadError:
        return UploadError("broken_document", f"The document is broken at byte {base + at:,}: {words}. Mend and upload it again.")

    while True:
        window: list[bytes | Overlong] = []
        ends: list[int] = []
        closed = False
        while True:
            found = _next_element(buffer, at, first=expected_first)
            if found is None:
                break
            begin, end = found
            if end < 0:
                at, closed = begin, True
                break
            window.append(buffer[begin:end])
            ends.append(base + end)
            at, expected_first = end, False
        if window:
            yield window, ends
        if closed:
            _check_tail(plan, buffer[at:], more, broken)
            return
        buffer, base, at = buffer[at:], base + at, 0
        if len(buffer) > API_BODY_LIMIT + EXCERPT:
            giant, buffer, base = _skip_giant(buffer, base, more, broken)
            yield [giant], [base]
            expected_first = False
            continue
        block = next(more, None)
        if block is None:
            raise broken("it ends inside the array of requests" if _begins_well(buffer, first=expected_first) else "expected a comma or the array's end")
        buffer += block
        if not _begins_well(buffer, first=expected_first):
            raise broken("expected a comma or the array's end")


_BETWEEN = re.compile(rb"[ \t\r\n]*+(,?)[ \t\r\n]*+(.?)", re.DOTALL)
_OUTSIDE = re.compile(rb"[\"{}\[\]]")
_INSIDE = re.compile(rb"[\"\\]")


def _begins_well(buffer: bytes, *, first: bool) -> bool:
    """Whether what follows an element can go on so: a comma and a value, or the array's end."""
    comma, then = _BETWEEN.match(buffer).groups()  # type: ignore[union-attr] - it matches anything
    if then == b"]":
        return not comma
    return not then or (then not in b",}:" and bool(comma) != first)


def _next_element(buffer: bytes, at: int, *, first: bool) -> tuple[int, int] | None:
    """Begin and end of the next element; (place, -1) behind the array's end; None when more data are needed, or it is broken."""
    between = _BETWEEN.match(buffer, at)
    comma, then = between.groups()  # type: ignore[union-attr]
    begin = between.start(2)  # type: ignore[union-attr]
    if then == b"]" and not comma:
        return begin + 1, -1
    if not then or then in b",}:]" or bool(comma) == first:
        return None
    end = end_of_value(buffer, begin)
    return None if end is None else (begin, end)


def _skip_giant(buffer: bytes, base: int, more: Iterator[bytes], broken: object) -> tuple[Overlong, bytes, int]:
    """Pass over an element that no body can hold, block by block; what is left behind it, and its offset."""
    begin = _BETWEEN.match(buffer).start(2)  # type: ignore[union-attr]
    beginning, length = buffer[begin : begin + EXCERPT], 0
    depth, inside, at = 0, False, begin
    while True:
        match = (_INSIDE if inside else _OUTSIDE).search(buffer, at)
        if match is None:
            length += len(buffer) - begin
            base += len(buffer)
            buffer = next(more, b"")
            begin = at = 0
            if not buffer:
                raise broken("it ends inside an element")  # type: ignore[operator]
            continue
        token = match.group()
        at = match.end()
        if token == b"\\":
            at += 1
            continue
        if token == b'"':
            inside = not inside
        else:
            depth += 1 if token in b"{[" else -1
        if depth == 0 and not inside:
            return Overlong(beginning, length + at - begin), buffer[at:], base + at


def _check_tail(plan: Plan, rest: bytes, more: Iterator[bytes], broken: object) -> None:
    """Behind the array a lone array has nothing, an object its other members and its end."""
    depth = 1 if plan.form == "object" else 0
    inside, at = False, 0
    while True:
        if depth == 0 and not inside:
            if rest[at:].strip(_SPACE):
                raise broken("something follows its end")  # type: ignore[operator]
            rest, at = next(more, b""), 0
            if not rest:
                return
            continue
        match = (_INSIDE if inside else _OUTSIDE).search(rest, at)
        if match is None:
            rest, at = next(more, b""), 0
            if not rest:
                raise broken("its end is missing")  # type: ignore[operator]
            continue
        at = match.end()
        token = match.group()
        if token == b"\\":
            at += 1
        elif token == b'"':
            inside = not inside
        else:
            depth += 1 if token in b"{[" else -1

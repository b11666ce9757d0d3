"""Finds the rows of CSV and TSV in a stream of blocks, with the exact bytes of each.

Python's `csv` gives no bytes, no offsets and no bounds, and a cut needs all three. Follows RFC 4180
and `csv`: a quote counts only at the beginning of a field; inside quotes, a line feed belongs to
the field, and two quotes are one. A row ends at a line feed; a carriage return before it is not
part of the row. Memory is bounded: a row that is far too large ends the reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from typing import NamedTuple

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import API_BODY_LIMIT

_MatchRow = Callable[[bytes, int], re.Match[bytes] | None]


EXCERPT_BYTES = 64 << 10
"""Bytes kept of a row that is too large, and of a record that cannot be read."""

ROWS_WINDOW_BYTES = 256 << 10
"""Approximate bytes of rows that are returned together."""

MAX_LIMITS = 4
"""So many limits long a row may be to fail alone; of a longer one, a quote is probably open."""

_EMPTY_ROWS = re.compile(rb"(?:\r?\n)++")
_LONG_STRETCH = re.compile(rb"\n(?:\r?\n){16}")


@dataclass(frozen=True, slots=True)
class OverlongRecord:
    """A record that is too large for any body: its beginning, and its length in bytes."""

    beginning: bytes
    length: int

    def __len__(self) -> int:
        """Bytes of the whole record."""
        return self.length


class RecordWindow(NamedTuple):
    """Consecutive records, perhaps one for blank lines; the bytes and the lines of each."""

    records: list[bytes | OverlongRecord]
    steps: list[int]
    lines: list[int]


def read_rows(
    blocks: Iterable[bytes], delimiter: bytes, line: int = 0, limit: int = 0
) -> Iterator[RecordWindow]:
    """All rows, some at a time; or `UploadRefused`: a quote is never closed, or a row too long."""
    limit = limit or API_BODY_LIMIT
    match_row = _patterns(delimiter).row.match
    held, size, next_scan = [b""], 0, 0
    for block in chain(blocks, [None]):
        held.append(block or b"")
        size += len(held[-1])
        if block is not None and size < next_scan and size <= limit:
            # an unfinished row is scanned again only when it has doubled, not for each block
            continue
        buffer, at = b"".join(held), 0
        while (window := _window(match_row, buffer, at, limit)).records:
            yield window
            at += sum(window.steps)
            line += sum(window.lines)
        buffer = buffer[at:]
        if len(buffer) > MAX_LIMITS * limit:
            raise UploadRefused(
                "broken_document",
                f"The row that begins in line {line + 1:,} has more than "
                f"{MAX_LIMITS * limit:,} bytes. Close its quote, or shorten it.",
            )
        held, size, next_scan = [buffer], len(buffer), 2 * len(buffer)
    if rest := held[0]:
        yield _last_row(rest, delimiter, line, limit)


def _window(match_row: _MatchRow, buffer: bytes, at: int, limit: int) -> RecordWindow:
    """Whole rows from `at` on, about a window of them."""
    if empty := _EMPTY_ROWS.match(buffer, at):
        return RecordWindow([b""], [empty.end() - at], [buffer.count(b"\n", at, empty.end())])
    last, end = buffer.rfind(b"\n", at, at + ROWS_WINDOW_BYTES) + 1, at + ROWS_WINDOW_BYTES
    if stretch := _LONG_STRETCH.search(buffer, at, last):
        last = end = stretch.start() + 1
    section = buffer[at:last]
    if section and b'"' not in section:
        rows = section.split(b"\n")
        rows.pop()
        return RecordWindow(
            [*map(_row, rows, repeat(limit))], [len(row) + 1 for row in rows], [1] * len(rows)
        )
    found = RecordWindow([], [], [])
    while at < end and (match := match_row(buffer, at)):
        row = match.group()
        found.records.append(_row(row[:-1], limit))
        found.steps.append(len(row))
        found.lines.append(row.count(b"\n"))
        at = match.end()
    return found


def _row(row: bytes, limit: int) -> bytes | OverlongRecord:
    # Python on Windows writes CR CR LF where a file was opened without newline=""
    row = row.rstrip(b"\r")
    return OverlongRecord(row[:EXCERPT_BYTES], len(row)) if len(row) > limit else row


def _last_row(rest: bytes, delimiter: bytes, line: int, limit: int) -> RecordWindow:
    """The row at the end of the stream, which has no line feed."""
    if not _patterns(delimiter).row.match(rest + b"\n"):
        opening = _patterns(delimiter).fields.match(rest)
        raise _unclosed(line + 1 + rest.count(b"\n", 0, opening.end() if opening else 0))
    return RecordWindow([_row(rest, limit)], [len(rest)], [rest.count(b"\n") + 1])


def _unclosed(line: int) -> UploadRefused:
    return UploadRefused(
        "broken_document",
        f"The quote opened in line {line:,} is never closed. Close it, or double a quote that "
        "belongs to a field, and upload the file again.",
    )


# ── rows as expressions ───────────────────────────────────────────────────────────────────────────


class _Patterns(NamedTuple):
    field: re.Pattern[bytes]
    fields: re.Pattern[bytes]
    row: re.Pattern[bytes]


@cache
def _patterns(delimiter: bytes) -> _Patterns:
    """Patterns of a field, of several with their delimiters, and of a row with its line feed."""
    d = re.escape(delimiter)
    quoted = rb'"[^"]*+(?:""[^"]*+)*+"[^%b\n]*+' % d
    bare = rb'[^"%b\n][^%b\n]*+' % (d, d)
    field = rb"(?:%b|%b)?+" % (quoted, bare)
    fields = rb"%b(?:%b%b)*+" % (field, d, field)
    return _Patterns(re.compile(field), re.compile(fields), re.compile(fields + rb"\n"))


def split_row(row: bytes, delimiter: bytes) -> list[bytes]:
    """A row's fields as written, including the quotes."""
    match_field = _patterns(delimiter).field.match
    fields, at = [], 0
    while True:
        match = match_field(row, at)
        end = match.end() if match else at
        if row[at : at + 1] == b'"' and end == at:
            end = len(row)  # never closed, which no row of `read_rows` is
        fields.append(row[at:end])
        if end >= len(row):
            return fields
        at = end + 1


def whole_fields(beginning: bytes, delimiter: bytes) -> bytes:
    """The fields at a row's beginning that are whole, without the last one."""
    return delimiter.join(split_row(beginning, delimiter)[:-1])


def first_row(head: bytes) -> bytes:
    """A file's first row that is not empty, whatever its delimiter, and line breaks in quotes."""
    match = _FIRST_ROW.match(head)
    return match.group(1) if match else b""


_FIRST_ROW = re.compile(rb'[\r\n]*+((?:[^"\n]|"[^"]*+")*+)')
_QUOTED_TEXT = re.compile(rb'"[^"]*+"')


def delimiters_in(row: bytes) -> list[str]:
    """The delimiters that a row has outside quotes."""
    bare = _QUOTED_TEXT.sub(b"", row)
    return [one for one in KNOWN_DELIMITERS if one.encode() in bare]


KNOWN_DELIMITERS = (",", ";", "\t", "|")

"""A batch's body, and the index of its records: where each is, or why it cannot be sent."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

import msgspec

from dropbatch.core.formats.base import NULL

OPENING = b'{"requests":['
CLOSING = b"]}"
WRAPPER_BYTES = len(OPENING) + len(CLOSING)
"""Bytes of a body besides its records and the commas between them."""

NO_REFERENCE = NULL


class RecordEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One record.

    Attributes:
        line: 1-based line in the upload; None for an element of a document.
        length: bytes in the body; 0 if it is not in the body.
        request: of a record that cannot be sent, its request in `errors.jsonl`, as JSON; null to
            use the original.
        original: bytes of the record as written, among the originals; 0 if it is not kept.
    """

    line: int | None
    length: int
    reference: msgspec.Raw = NO_REFERENCE
    code: str = ""
    message: str = ""
    request: msgspec.Raw = NO_REFERENCE
    original: int = 0


class UnsendableRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Why a record cannot be sent: code, message, and its request in `errors.jsonl`, as JSON."""

    code: str
    message: str
    request: msgspec.Raw


class RecordIndex(msgspec.Struct, omit_defaults=True):
    """The records of a batch as columns, which cost a fraction of one object per record.

    Also a sequence of rows.

    Attributes:
        lengths: bytes of each record in the body; 0 if it is not in the body.
        lines: index and 1-based line of each record whose line does not follow the one before;
            empty for a document.
        references: `external_reference` of each record as JSON; empty if none has one.
        faults: by index, the records that cannot be sent.
        originals: bytes of each record among the originals; empty if no original is kept.
    """

    lengths: list[int] = []
    lines: list[tuple[int, int]] = []
    references: list[msgspec.Raw] = []
    faults: dict[int, UnsendableRecord] = {}
    originals: list[int] = []

    def extend(
        self, lengths: list[int], line: int | None, references: list[msgspec.Raw], original: int = 0
    ) -> None:
        """Add consecutive records, the first one at a line; the references may be none at all."""
        count = len(self.lengths)
        if line is not None and line != self._line(count):
            self.lines.append((count, line))
        if self.references or any(one is not NO_REFERENCE for one in references):
            self.references = self.references or [NO_REFERENCE] * count
            self.references += references or [NO_REFERENCE] * len(lengths)
        if self.originals or original:
            self.originals = self.originals or [0] * count
            self.originals += [original] * len(lengths)
        self.lengths += lengths

    def add_unsendable(
        self, line: int | None, fault: UnsendableRecord, reference: msgspec.Raw, original: int = 0
    ) -> None:
        """Add a record that cannot be sent."""
        self.faults[len(self.lengths)] = fault
        self.extend([0], line, [reference], original)

    def references_sent(self) -> list[msgspec.Raw]:
        """The `external_reference` of each record that is in the body, as JSON."""
        references = self.references or [NO_REFERENCE] * len(self.lengths)
        return [one for one, length in zip(references, self.lengths, strict=True) if length]

    def _line(self, index: int) -> int | None:
        if not self.lines:
            return None
        first, line = self.lines[bisect_right(self.lines, index, key=itemgetter(0)) - 1]
        return line + index - first

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[RecordEntry]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> RecordEntry:
        reference = self.references[index] if self.references else NO_REFERENCE
        original = self.originals[index] if self.originals else 0
        line, fault = self._line(index), self.faults.get(index)
        if fault is None:
            return RecordEntry(line, self.lengths[index], reference, original=original)
        return RecordEntry(line, 0, reference, fault.code, fault.message, fault.request, original)

    def section(self, begin: int, end: int) -> RecordIndex:
        """The records from `begin` up to, but not including, `end`."""
        return index_of([self[index] for index in range(begin, end)])


def index_of(rows: Iterable[RecordEntry]) -> RecordIndex:
    """The same rows as columns."""
    index = RecordIndex()
    for row in rows:
        reference = NO_REFERENCE if row.reference == NO_REFERENCE else row.reference
        if row.code:
            fault = UnsendableRecord(row.code, row.message, row.request)
            index.add_unsendable(row.line, fault, reference, row.original)
        else:
            index.extend([row.length], row.line, [reference], row.original)
    return index


def build_body(records: Sequence[bytes]) -> bytes:
    """The body of records, several at a time with commas or one by one; empty without any."""
    if not records:
        return b""
    # Joined at once: a body is large, and each copy of it costs as much as reading it.
    first, *rest = records
    pieces = [OPENING + first, *rest]
    pieces[-1] += CLOSING
    return b",".join(pieces)


def record_spans(rows: RecordIndex) -> list[tuple[int, int]]:
    """Offset and length of each record in the body; (0, 0) for one that is not there."""
    spans = []
    offset = len(OPENING)
    for length in rows.lengths:
        if length:
            spans.append((offset, length))
            offset += length + 1
        else:
            spans.append((0, 0))
    return spans

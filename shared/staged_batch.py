"""What a batch knows of its records beside the request body: where each lies, or why it cannot be sent.

A staged object is the body followed by its sidecar, one put, so that they can never disagree. Its metadata holds what
a split needs that finds it already there. Knows the form of both, and neither S3 nor the ledger.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from shared.models import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

OPENING = b'{"requests":['
CLOSING = b"]}"
WRAPPER_BYTES = len(OPENING) + len(CLOSING)
"""Bytes a body has beside its records and the commas between them."""

NO_REFERENCE = msgspec.Raw(b"null")


class RecordEntry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One record.

    Attributes:
        line: 1-based line in the upload; None for a document's element.
        length: bytes in the body; 0 if it is not there.
        reference: its `external_reference` as JSON.
        code: why it cannot be sent, empty if it can.
        message: words to the code.
        request: for one that cannot be sent, what stands in `errors.jsonl`, as JSON.
    """

    line: int | None
    length: int
    reference: msgspec.Raw = NO_REFERENCE
    code: str = ""
    message: str = ""
    request: msgspec.Raw = NO_REFERENCE


class UnsendableRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Why a record cannot be sent: code, words, and what stands in `errors.jsonl` for its request, as JSON."""

    code: str
    message: str
    request: msgspec.Raw


class RecordIndex(msgspec.Struct, omit_defaults=True):
    """The records of a batch by columns, which cost a fraction of an object for each; also a sequence of rows.

    Attributes:
        lengths: of each, bytes in the body; 0 if it is not there.
        lines: index and 1-based line of each record whose line does not follow the last one's; empty for a document.
        references: of each, its `external_reference` as JSON; empty if none has one.
        faults: by index, what cannot be sent.
    """

    lengths: list[int] = []
    lines: list[tuple[int, int]] = []
    references: list[msgspec.Raw] = []
    faults: dict[int, UnsendableRecord] = {}

    def extend(self, lengths: list[int], line: int | None, references: list[msgspec.Raw]) -> None:
        """Add records that lie together: their lengths, the first one's line, their references or none at all."""
        count = len(self.lengths)
        if line is not None and line != self._line(count):
            self.lines.append((count, line))
        if self.references or any(one is not NO_REFERENCE for one in references):
            self.references = self.references or [NO_REFERENCE] * count
            self.references += references or [NO_REFERENCE] * len(lengths)
        self.lengths += lengths

    def add_unsendable(self, line: int | None, fault: UnsendableRecord) -> None:
        """Add a record that cannot be sent."""
        self.faults[len(self.lengths)] = fault
        self.extend([0], line, [])

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
        row = RecordEntry(self._line(index), self.lengths[index], reference)
        fault = self.faults.get(index)
        return row if fault is None else RecordEntry(row.line, 0, reference, fault.code, fault.message, fault.request)

    def section(self, begin: int, end: int) -> RecordIndex:
        """Some of them that follow each other."""
        return index_of([self[index] for index in range(begin, end)])


def index_of(rows: Iterable[RecordEntry]) -> RecordIndex:
    """The same rows by columns."""
    found = RecordIndex()
    for row in rows:
        if row.code:
            found.add_unsendable(row.line, UnsendableRecord(row.code, row.message, row.request))
        else:
            found.extend([row.length], row.line, [] if row.reference == NO_REFERENCE else [row.reference])
    return found


_decode = msgspec.json.Decoder(RecordIndex).decode
_decode_list = msgspec.json.Decoder(list[RecordEntry]).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StagedInfo:
    """What the metadata of a staged object tells.

    Attributes:
        requests: records, sendable or not.
        sendable: records that the body holds.
        body_size: bytes of the body.
        end: where the cut goes on after it; None for a part of a batch.
        begin: where the cut of it began; None for a part of a batch, and for objects from before this was noted.
    """

    requests: int
    sendable: int
    body_size: int
    end: Checkpoint | None
    begin: Checkpoint | None = None

    def metadata(self) -> dict[str, str]:
        """As S3 keeps it."""
        return {
            "requests": str(self.requests),
            "sendable": str(self.sendable),
            "body-size": str(self.body_size),
            "end": _written(self.end),
            **({"begin": _written(self.begin)} if self.begin else {}),
        }

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> StagedInfo:
        """From S3's metadata."""
        requests, sendable, body_size = (int(metadata[name]) for name in ("requests", "sendable", "body-size"))
        return cls(requests, sendable, body_size, _place(metadata["end"]), _place(metadata.get("begin", "")))


def _written(place: Checkpoint | None) -> str:
    return "" if place is None else f"{place.offset},{place.line},{place.record}"


def _place(written: str) -> Checkpoint | None:
    return Checkpoint(*map(int, written.split(","))) if written else None


def build_body(records: Sequence[bytes]) -> bytes:
    """The request body of records as the user wrote them; empty if there are none."""
    return b"".join((OPENING, b",".join(records), CLOSING)) if records else b""


def encode_index(rows: RecordIndex) -> bytes:
    """The sidecar."""
    return _encode(rows)


def decode_index(sidecar: bytes) -> RecordIndex:
    """The sidecar's rows, in record order; it may be a list of them, as batches that are still under way may have.

    Raises:
        msgspec.ValidationError: not a sidecar.
    """
    return index_of(_decode_list(sidecar)) if sidecar.startswith(b"[") else _decode(sidecar)


_decode_ranges = msgspec.json.Decoder(list[int]).decode


def encode_ranges(places: Sequence[int]) -> bytes:
    """Behind the body of a later round: each record's place in the first round's body."""
    return _encode(places)


def decode_ranges(sidecar: bytes) -> list[int]:
    """The places that `encode_ranges` wrote."""
    return _decode_ranges(sidecar)


def record_spans(rows: RecordIndex) -> list[tuple[int, int]]:
    """Where each record lies in the body, as offset and length; (0, 0) for one that is not there."""
    found = []
    offset = len(OPENING)
    for length in rows.lengths:
        if length:
            found.append((offset, length))
            offset += length + 1
        else:
            found.append((0, 0))
    return found

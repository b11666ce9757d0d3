"""The staged object of a batch: `body | originals | index`, written in one put.

The body is the exact request. The originals are the records as the user wrote them, kept only if
what is sent differs; their sizes are in the index. The index shows where each record is, or why it
cannot be sent. The object's metadata has what a split needs if the object already exists. Knows the
form of all of them, but neither S3 nor the ledger.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from dropbatch.core.plan import Checkpoint
from dropbatch.core.read.cut import Cut
from dropbatch.core.read.index import RecordIndex

_decode = msgspec.json.Decoder(RecordIndex).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StagedInfo:
    """What the metadata of a staged object contains; a piece of a batch has no begin, no end."""

    requests: int
    sendable: int
    body_size: int
    end: Checkpoint | None
    begin: Checkpoint | None = None
    originals_size: int = 0

    def metadata(self) -> dict[str, str]:
        """The metadata as S3 stores it."""
        return {
            "requests": str(self.requests),
            "sendable": str(self.sendable),
            "body-size": str(self.body_size),
            "end": _written(self.end),
            **({"begin": _written(self.begin)} if self.begin else {}),
            **({"originals-size": str(self.originals_size)} if self.originals_size else {}),
        }

    @classmethod
    def of_cut(cls, cut: Cut, begin: Checkpoint | None = None) -> StagedInfo:
        """Describe a batch that was cut from an upload; `begin` is where its cut began."""
        return cls(len(cut.rows), cut.sendable, len(cut.body), cut.end, begin, len(cut.originals))

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> StagedInfo:
        """Read what `metadata` returned back from S3."""
        requests, sendable, body_size = (
            int(metadata[name]) for name in ("requests", "sendable", "body-size")
        )
        begin, end = _place(metadata.get("begin", "")), _place(metadata["end"])
        originals = int(metadata.get("originals-size", "0"))
        return cls(requests, sendable, body_size, end, begin, originals)


def _written(place: Checkpoint | None) -> str:
    return "" if place is None else f"{place.offset},{place.line},{place.record}"


def _place(written: str) -> Checkpoint | None:
    return Checkpoint(*map(int, written.split(","))) if written else None


def encode_index(rows: RecordIndex) -> bytes:
    """The index as it is staged."""
    return _encode(rows)


def decode_index(index: bytes) -> RecordIndex:
    """The index, in record order."""
    return _decode(index)


def original_spans(rows: RecordIndex) -> list[tuple[int, int]]:
    """Where each record is among the originals, as offset and length: 0 if it is not kept."""
    lengths = rows.originals or [0] * len(rows)
    ends = accumulate(lengths)
    return [(end - length, length) for end, length in zip(ends, lengths, strict=True)]


# ── without references ────────────────────────────────────────────────────────────────────────────

# Some models refuse members that their schema does not name, and so every record with a reference.
# Answers are joined by id, and the index has the references. All other bytes stay the user's own.

_NAME = "external_reference"
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)
_IN_RECORD = 3
"""Depth of a record's members: in the body's object, its array, and the record's object."""


def without_references(body: bytes) -> bytes:
    """The same body without the member `external_reference` of each record."""
    kept, pieces = 0, list[bytes]()
    for begin, end in _members(body):
        pieces.append(body[kept:begin])
        kept = end
    return b"".join((*pieces, body[kept:]))


def _members(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the member is in each record, with one of the commas beside it."""
    depth, begin, key, is_first = 0, 0, b"", True
    for token in _TOKEN.finditer(body):
        sign = token[0]
        if sign in {b"}", b"]", b","} and depth == _IN_RECORD:
            if key and msgspec.json.decode(key) == _NAME:
                follows = is_first and sign == b","
                yield begin, token.end() if follows else token.start()
                is_first = follows
            else:
                is_first = False
            begin, key = token.start(), b""
        if sign in {b"{", b"["}:
            depth += 1
            if depth == _IN_RECORD:
                begin, key, is_first = token.end(), b"", True
        elif sign in {b"}", b"]"}:
            depth -= 1
        elif sign != b"," and depth == _IN_RECORD and not key:
            key = sign

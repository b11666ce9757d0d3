"""The staged object of a batch: `body | originals | index`, written in one put.

The body is the exact request. The originals are the records as the user wrote them, kept only if
what is sent differs; their sizes are in the index. The index shows where each record is, or why it
cannot be sent. The object's metadata has what a split needs if the object already exists. Knows the
form of all of them, but neither S3 nor the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec

from dropbatch.core.plan import Checkpoint
from dropbatch.core.read.index import RecordIndex

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dropbatch.core.read.cut import Cut

_decode = msgspec.json.Decoder(RecordIndex).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class StagedInfo:
    """What the metadata of a staged object contains.

    Attributes:
        requests: records, sendable or not.
        sendable: records in the body.
        body_size: bytes of the body.
        end: where the cut continues after this batch; None for a piece of a batch.
        begin: where the cut of this batch began; None for a piece of a batch.
        originals_size: bytes of the originals.
    """

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
        begin, originals = (
            _place(metadata.get("begin", "")),
            int(metadata.get("originals-size", "0")),
        )
        return cls(requests, sendable, body_size, _place(metadata["end"]), begin, originals)


def _written(place: Checkpoint | None) -> str:
    return "" if place is None else f"{place.offset},{place.line},{place.record}"


def _place(written: str) -> Checkpoint | None:
    return Checkpoint(*map(int, written.split(","))) if written else None


def encode_index(rows: RecordIndex) -> bytes:
    """The index as it is staged."""
    return _encode(rows)


def decode_index(index: bytes) -> RecordIndex:
    """The index, in record order.

    Raises:
        msgspec.ValidationError: it is not an index.
    """
    return _decode(index)


def original_spans(rows: RecordIndex) -> list[tuple[int, int]]:
    """Where each record is among the originals, as offset and length.

    Length 0 for one that is not kept.
    """
    lengths = rows.originals or [0] * len(rows)
    return [
        (end - length, length) for end, length in zip(accumulate(lengths), lengths, strict=True)
    ]

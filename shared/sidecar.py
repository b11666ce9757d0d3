"""What a batch knows of its records beside the request body: where each lies, or why it cannot be sent.

A staged object is the body followed by its sidecar, one put, so that they can never disagree. Its metadata holds what
a split needs that finds it already there. Knows the form of both, and neither S3 nor the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from shared.words import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPENING = b'{"requests":['
CLOSING = b"]}"
WRAPPING = len(OPENING) + len(CLOSING)
"""Bytes a body has beside its records and the commas between them."""

NO_REFERENCE = msgspec.Raw(b"null")


class Row(msgspec.Struct, array_like=True, frozen=True, gc=False):
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


_decode = msgspec.json.Decoder(list[Row]).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Staged:
    """What the metadata of a staged object tells."""

    requests: int
    sendable: int
    body_size: int
    end: Place | None

    def metadata(self) -> dict[str, str]:
        """As S3 keeps it."""
        end = "" if self.end is None else f"{self.end.offset},{self.end.line},{self.end.record}"
        return {
            "requests": str(self.requests),
            "sendable": str(self.sendable),
            "body-size": str(self.body_size),
            "end": end,
        }

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> Staged:
        """From S3's metadata."""
        end = Place(*map(int, metadata["end"].split(","))) if metadata["end"] else None
        return cls(int(metadata["requests"]), int(metadata["sendable"]), int(metadata["body-size"]), end)


def body_of(records: Sequence[bytes]) -> bytes:
    """The request body of records as the user wrote them; empty if there are none."""
    return b"".join((OPENING, b",".join(records), CLOSING)) if records else b""


def encode_rows(rows: Sequence[Row]) -> bytes:
    """The sidecar."""
    return _encode(rows)


def decode_rows(sidecar: bytes) -> list[Row]:
    """The sidecar's rows, in record order.

    Raises:
        msgspec.ValidationError: not a sidecar.
    """
    return _decode(sidecar)


_decode_places = msgspec.json.Decoder(list[int]).decode


def encode_places(places: Sequence[int]) -> bytes:
    """Behind the body of a later round: each record's place in the first round's body."""
    return _encode(places)


def decode_places(sidecar: bytes) -> list[int]:
    """The places that `encode_places` wrote."""
    return _decode_places(sidecar)


def spans(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Where each record lies in the body, as offset and length; (0, 0) for one that is not there."""
    found = []
    offset = len(OPENING)
    for row in rows:
        if row.length:
            found.append((offset, row.length))
            offset += row.length + 1
        else:
            found.append((0, 0))
    return found

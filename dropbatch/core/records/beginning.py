"""How an upload begins.

Its compression, and the first bytes, from which its format is determined. Pure: no S3.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from dropbatch.core.records.decompress import (
    SIGNATURE_BYTES,
    decompress,
    detect_compression,
    reject_foreign_format,
)
from dropbatch.core.records.detect_form import HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Beginning:
    """How an upload begins.

    Attributes:
        packing: `plain`, `gzip` or `zstd`.
        head: its first unpacked bytes, at least `HEAD_BYTES` of them or all.
        complete: whether the head is all of it.
    """

    packing: str
    head: bytes
    complete: bool


def read_beginning(stored: Iterator[bytes], check: Callable[[], None] = lambda: None) -> Beginning:
    """Read an upload's first bytes.

    Args:
        stored: its stored bytes, in blocks; read only as far as needed.
        check: called for each piece of an archive; what it raises ends the reading.

    Raises:
        UploadRefused: `unknown_format` or `broken_archive`.
    """
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
    return Beginning(packing, bytes(head), complete)

r"""Lone surrogates in JSON, such as `\ud83d` without its second half where a text was cut by UTF-16 units."""

from __future__ import annotations

import mmap
import tempfile
from typing import TYPE_CHECKING

from dropbatch.core.read.lines import REPLACEMENT, SURROGATES

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 1 << 20
"""Bytes copied at a time."""


def without_lone_surrogates(content: bytes | mmap.mmap) -> bytes | mmap.mmap:
    """Return the same JSON with U+FFFD in place of each lone surrogate; on disk if the content is.

    The result on disk takes no memory and is deleted with the last reference to it.
    """
    if isinstance(content, bytes):
        return b"".join(_pieces(content))
    with tempfile.TemporaryFile() as file:
        file.writelines(_pieces(content))
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _pieces(content: bytes | mmap.mmap) -> Iterator[bytes]:
    done = 0
    for match in SURROGATES.finditer(content):
        if match[1] is not None:
            yield from _slices(content, done, match.start())
            yield REPLACEMENT
            done = match.end()
    yield from _slices(content, done, len(content))


def _slices(content: bytes | mmap.mmap, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, CHUNK_BYTES):
        yield content[at : min(at + CHUNK_BYTES, end)]

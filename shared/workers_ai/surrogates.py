r"""Halves of surrogate pairs in JSON: `\ud83d` alone, as where a text was cut by UTF-16 units. No text holds one."""

from __future__ import annotations

import mmap
import re
import tempfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 1 << 20
"""Bytes that are copied at a time."""

_SURROGATES = re.compile(rb"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)")
"""An escaped backslash, a surrogate pair, or half of one: only the last is a group."""


def without_lone_surrogates(content: bytes | mmap.mmap) -> bytes | mmap.mmap:
    """The same JSON with U+FFFD in the place of each half of a pair; on disk if it was there.

    The result on disk takes no memory of its own and is gone with the last reference to it.
    """
    if isinstance(content, bytes):
        return b"".join(_pieces(content))
    with tempfile.TemporaryFile() as file:
        file.writelines(_pieces(content))
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _pieces(content: bytes | mmap.mmap) -> Iterator[bytes]:
    done = 0
    for found in _SURROGATES.finditer(content):
        if found[1] is not None:
            yield from _slices(content, done, found.start())
            yield b"\\ufffd"
            done = found.end()
    yield from _slices(content, done, len(content))


def _slices(content: bytes | mmap.mmap, start: int, end: int) -> Iterator[bytes]:
    for at in range(start, end, CHUNK_BYTES):
        yield content[at : min(at + CHUNK_BYTES, end)]

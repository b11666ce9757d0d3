"""Data that may be too large for memory.

Kept in memory while it is small, on disk when it is large.
"""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Iterable
from typing import IO

MAX_BYTES_IN_MEMORY = 256 << 10
"""Maximum bytes kept in memory; larger data goes to disk."""

MAX_REPLY_BYTES = 400_000_000
"""Maximum bytes of one API reply: the poll function's disk has room for eight, and their parts."""


class TooLargeError(Exception):
    """There are more bytes than allowed; its argument holds the first of them."""


def spool(
    chunks: Iterable[bytes], kept: contextlib.ExitStack, most: int | None = None
) -> bytes | mmap.mmap:
    """All chunks as one buffer; on disk, it lives as long as the stack. Raises `TooLargeError`."""
    first: list[bytes] = []
    size = 0
    file: IO[bytes] | None = None
    for chunk in chunks:
        size += len(chunk)
        if most is not None and size > most:
            raise TooLargeError(b"".join(first) or chunk[:MAX_BYTES_IN_MEMORY])
        if file is None and size > MAX_BYTES_IN_MEMORY:
            file = kept.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            file.writelines(first)
        if file is None:
            first.append(chunk)
        else:
            file.write(chunk)
    if file is None:
        return b"".join(first)
    file.flush()
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    kept.callback(_close, mapped)
    return mapped


def _close(mapped: mmap.mmap) -> None:
    # A traceback may keep views into the mapping after the stack closes; it is then unmapped with
    # the last view.
    with contextlib.suppress(BufferError):
        mapped.close()

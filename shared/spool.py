"""Bytes that may be too many for memory: kept there while they are few, on disk when they are many."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_BYTES_IN_MEMORY = 256 << 10
"""Bytes kept in memory; more go to disk."""

MAX_REPLY_BYTES = 400_000_000
"""Bytes of one reply of the API. The poll function's disk holds eight of them, each with the part made of it."""


class TooLargeError(Exception):
    """There are more bytes than were allowed."""


def spool(chunks: Iterable[bytes], kept: contextlib.ExitStack, most: int | None = None) -> bytes | mmap.mmap:
    """All chunks as one buffer, which on disk lives as long as the given stack.

    Raises:
        TooManyBytesError: there are more than `most` bytes.
    """
    first: list[bytes] = []
    size = 0
    file: IO[bytes] | None = None
    for chunk in chunks:
        size += len(chunk)
        if most is not None and size > most:
            raise TooLargeError
        if file is None and size > MAX_BYTES_IN_MEMORY:
            file = kept.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the caller's stack closes it
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
    # Views into the mapping may outlive the stack in a traceback; it is unmapped with the last of them then.
    with contextlib.suppress(BufferError):
        mapped.close()

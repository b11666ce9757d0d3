"""Reads uploads: the pinned version as a stream of unpacked blocks, in flat memory at any size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from functions.submit.form import HEAD, form_of
from functions.submit.unpack import packing_of, refuse_foreign, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.store import Store
    from shared.words import Plan, Upload

RANGE = 8 << 20
"""Bytes of one ranged read: large enough that S3's time to the first byte does not count."""


def stored_blocks(store: Store, upload: Upload, start: int = 0) -> Iterator[bytes]:
    """The stored bytes of an upload's version from an offset on.

    Raises:
        UploadError: `source_gone`.
        StorageError: S3 broke off.
    """
    for offset in range(start, upload.size, RANGE):
        yield store.read_upload(upload.key, upload.version, upload.etag, offset, min(RANGE, upload.size - offset))


class Check(Protocol):
    """Called for each piece of an archive; what it raises ends the reading."""

    def __call__(self, *, skipping: bool) -> None:
        """Say whether the piece is only passed over."""


def unpacked_blocks(store: Store, upload: Upload, plan: Plan, start: int, check: Check) -> Iterator[bytes]:
    """The unpacked bytes from an offset on; of an archive everything before it is read and passed over.

    Args:
        store: the object store.
        upload: the upload.
        plan: its packing.
        start: offset in the unpacked bytes.
        check: whether there is time.

    Raises:
        UploadError: `source_gone` or `broken_archive`.
        StorageError: S3 broke off.
    """
    if plan.packing == "plain":
        yield from stored_blocks(store, upload, start)
        return
    ahead = start

    def check_piece() -> None:
        check(skipping=ahead > 0)

    for block in unpacked(plan.packing, stored_blocks(store, upload), check_piece):
        if ahead >= len(block):
            ahead -= len(block)
            continue
        yield block[ahead:] if ahead else block
        ahead = 0


def look(store: Store, upload: Upload, check: Callable[[], None] = lambda: None) -> tuple[str, str, int]:
    """Look at an upload's beginning: its packing, its form, and the unpacked offset at which its records begin.

    `check` is called for each piece of an archive; what it raises ends the reading.

    Raises:
        UploadError: `unknown_format`, `broken_archive` or `source_gone`.
    """
    stored = stored_blocks(store, upload)
    first = next(stored, b"")
    packing = packing_of(first)
    head = bytearray()
    complete = True
    for block in unpacked(packing, _rejoined(first, stored), check):
        head += block
        if len(head) >= HEAD:
            complete = False
            break
    refuse_foreign(bytes(head[:16]))
    form, start = form_of(bytes(head), complete=complete)
    return packing, form, start


def _rejoined(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest

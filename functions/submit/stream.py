"""Reads uploads: the pinned version as a stream of unpacked blocks.

In constant memory at any size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dropbatch.core.read.cut import RANGE_BYTES
from dropbatch.core.read.unpack import decompress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor

    from dropbatch.core.plan import SplitPlan
    from shared.aws.object_store import ObjectStore
    from shared.models import Upload


def read_stored(
    store: ObjectStore, upload: Upload, start: int = 0, thread: Executor | None = None
) -> Iterator[bytes]:
    """The stored bytes of an upload's version from an offset on.

    Args:
        store: the object store.
        upload: the upload.
        start: offset.
        thread: reads the next block while one is used; from the second block on, because the first
            is often enough. The caller owns it: a generator may be closed by the garbage collector,
            which must not wait for threads.

    Raises:
        UploadRefused: `source_gone`.
        StorageError: S3 failed.
    """
    source = store if upload.source_key is None else store.in_bucket(upload.bucket)

    def read(offset: int) -> bytes:
        return source.read_version(
            upload.object_key,
            upload.version,
            upload.etag,
            offset,
            min(RANGE_BYTES, upload.size - offset),
        )

    if start < upload.size:
        yield read(start)
    offsets = range(start + RANGE_BYTES, upload.size, RANGE_BYTES)
    if thread is None or not offsets:
        yield from map(read, offsets)
        return
    following = thread.submit(read, offsets[0])
    for offset in offsets[1:]:
        block = following.result()
        following = thread.submit(read, offset)
        yield block
    yield following.result()


class Watch(Protocol):
    """Watches the reading of an upload.

    Attributes:
        bytes_read: stored bytes that have been read; set while reading.
    """

    bytes_read: int

    def check(self, *, skipping: bool) -> None:
        """Check the time for each block, and each piece of an archive.

        What it raises ends the reading.

        `skipping` is whether the piece is only skipped.
        """


def read_decompressed(
    store: ObjectStore,
    upload: Upload,
    plan: SplitPlan,
    start: int,
    watch: Watch,
    thread: Executor | None = None,
) -> Iterator[bytes]:
    """The unpacked bytes from an offset on.

    In an archive, everything before it is read and skipped.

    Args:
        store: the object store.
        upload: the upload.
        plan: its packing.
        start: offset in the unpacked bytes.
        watch: checks whether there is time.
        thread: as for `read_stored`.

    Raises:
        UploadRefused: `source_gone` or `broken_archive`.
        StorageError: S3 failed.
    """
    if plan.packing == "plain":
        for block in _watched(read_stored(store, upload, start, thread), start, watch):
            watch.check(skipping=False)
            yield block
        return
    ahead = start

    def check_piece() -> None:
        watch.check(skipping=ahead > 0)

    stored = _watched(read_stored(store, upload, thread=thread), 0, watch)
    for block in decompress(plan.packing, stored, check_piece):
        if ahead >= len(block):
            ahead -= len(block)
            continue
        yield block[ahead:] if ahead else block
        ahead = 0


def _watched(blocks: Iterator[bytes], read: int, watch: Watch) -> Iterator[bytes]:
    for block in blocks:
        read += len(block)
        watch.bytes_read = read
        yield block

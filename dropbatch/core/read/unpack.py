"""Unpacks stored bytes, a few MB at a time, in flat memory: plain, gzip and zstd, of many members.

What was unpacked before damage is passed on first. Pure: no S3, no JSON.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable, Iterator
from types import ModuleType

from dropbatch.core.errors import UploadRefused, UsageError

BLOCK_BYTES = 4 << 20
"""Bytes of one unpacked block, at most."""
COMBINED_BYTES = 64 << 10
"""Bytes of unpacked pieces that are joined into a block. Because an archive may have a member for
each record."""
FIRST_SLICE_BYTES, MAX_SLICE_BYTES = 512, 256 << 10
"""Stored bytes that are passed to a member at a time. Few at first, then twice as many each
time."""

MAX_RATIO, RATIO_FROM_BYTES = 2_000, 64 << 20
"""An archive may unpack to this many times its size. Tested only from that many unpacked bytes
on."""

MAX_ZSTD_WINDOW_BYTES = 128 << 20
"""Largest zstd window, in bytes, that is accepted. The format recommends a limit of 8 MB,
`--long=27` needs this."""

_DAMAGED = (zlib.error, EOFError)
_NO_PADDING = re.compile(rb"[^\x00]")
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = re.compile(rb"[\x50-\x5f]\x2a\x4d\x18")
"""The beginning of a frame without content, which `pzstd` writes before each of its own."""
_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (
        b"PK\x03\x04",
        "a zip archive; unzip it and upload the file inside, or compress that with gzip or zstd",
    ),
    (b"\xd0\xcf\x11\xe0", "a spreadsheet; save the sheet as CSV (UTF-8)"),
    (b"SQLite format 3\x00", "an SQLite database; export the table as CSV or JSON Lines"),
    (
        b"7z\xbc\xaf",
        "a 7z archive; unpack it and upload the file inside, or compress that with gzip or zstd",
    ),
    (b"ARROW1", "Arrow; export it as JSON Lines"),
    (b"BZh", "bzip2; compress it with gzip or zstd instead"),
    (b"\xfd7zXZ\x00", "xz; compress it with gzip or zstd instead"),
    (b"PAR1", "Parquet; export it as JSON Lines"),
    (b"\xff\xfe", "UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "UTF-16; save it as UTF-8"),
    (b"\x89PNG", "an image; upload JSON Lines"),
    (b"\xff\xd8\xff", "an image; upload JSON Lines"),
    (b"GIF8", "an image; upload JSON Lines"),
    (b"RIFF", "an image or audio file; upload JSON Lines"),
    (b"%PDF", "a PDF; upload JSON Lines"),
    (b"Obj\x01", "Avro; export it as JSON Lines"),
    (b"ORC", "ORC; export it as JSON Lines"),
    (b"version https://git-lfs", "a pointer of Git LFS; fetch the file with `git lfs pull`"),
)
_WORDS = (b"ORC", b"PAR1", b"RIFF")
"""Signatures that text may begin with, such as a column `ORCID`. After them, other formats have
control characters."""
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_TAR_MAGIC = 257
"""Where a tar archive says what it is."""
_SHEETS = (
    b"[Content_Types].xml",
    b"xl/",
    b"docProps/",
    b"mimetypeapplication/vnd.oasis.opendocument.spreadsheet",
)
SIGNATURE_BYTES = 4 << 10
"""First bytes in which signatures are looked for. Those of an archive have the names of a
workbook's files."""


def detect_compression(head: bytes) -> str:
    """`plain`, `gzip` or `zstd`, detected from the first stored bytes."""
    if head.startswith(_GZIP):
        return "gzip"
    return "zstd" if head.startswith(_ZSTD) or _ZSTD_SKIPPABLE.match(head) else "plain"


def reject_foreign_format(head: bytes) -> None:
    """Refuse a file that certainly is not text in one of our formats, with the fix."""
    if head.startswith(b"PK\x03\x04") and any(name in head for name in _SHEETS):
        raise UploadRefused(
            "unknown_format", "The upload is a spreadsheet; save the sheet as CSV (UTF-8)."
        )
    if head[_TAR_MAGIC : _TAR_MAGIC + 5] == b"ustar":
        raise UploadRefused(
            "unknown_format",
            "The upload is a tar archive; unpack it and upload each file, compressed with "
            "gzip or zstd.",
        )
    for magic, words in _FOREIGN:
        if head.startswith(magic) and (magic not in _WORDS or _CONTROL.search(head)):
            raise UploadRefused("unknown_format", f"The upload is {words}.")
    if len(head) > 1 and b"\x00" in head[:4]:
        raise UploadRefused(
            "unknown_format",
            "The upload is binary, or UTF-16 or UTF-32 text; save it as UTF-8 JSON Lines.",
        )


def decompress(
    packing: str, stored: Iterator[bytes], check: Callable[[], None] = lambda: None
) -> Iterator[bytes]:
    """The unpacked bytes of a stream of stored ones.

    `check` is called for each piece of an archive; what it raises ends the stream. Or
    `UploadRefused`: damaged, cut short, or unpacking to an implausible size.
    """
    if packing == "plain":
        yield from stored
        return
    taken = given = 0

    def counted() -> Iterator[bytes]:
        nonlocal taken
        for block in stored:
            taken += len(block)
            yield block

    pieces = _gunzip(counted(), check) if packing == "gzip" else _decompress_zstd(counted(), check)
    try:
        for block in _combined(pieces):
            given += len(block)
            if given > RATIO_FROM_BYTES and given > MAX_RATIO * taken:
                raise UploadRefused(
                    "broken_archive",
                    f"The archive unpacks to over {MAX_RATIO:,} times its size; if that is "
                    "right, upload it unpacked.",
                )
            yield block
    except _DAMAGED as error:
        raise UploadRefused(
            "broken_archive",
            f"The {packing} archive is damaged or cut short after {given:,} unpacked bytes "
            f"({error}). Compress and upload it again.",
        ) from error


def _combined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Join small pieces of a block, whose end an empty one marks; those before damage first."""
    held: list[bytes] = []
    size = 0
    damage: Exception | None = None
    try:
        for piece in pieces:
            held.append(piece)
            size += len(piece)
            if size >= COMBINED_BYTES or (size and not piece):
                yield b"".join(held)
                held, size = [], 0
    except _DAMAGED as error:
        damage = error
    if held:
        yield b"".join(held)
    if damage:
        raise damage


def _gunzip(stored: Iterator[bytes], check: Callable[[], None]) -> Iterator[bytes]:
    """Unpack members one after another; zero bytes after the last are padding, as for gzip(1).

    At a member's end zlib copies the input that it did not use. Slices that begin small and double
    limit these copies to the archive's own size, or `FIRST_SLICE_BYTES` bytes per member.
    """
    member = None
    for block in stored:
        view, at = memoryview(block), 0
        while at < len(block):
            check()
            if member is None:
                at = found.start() if (found := _NO_PADDING.search(block, at)) else len(block)
                member, size = (
                    (zlib.decompressobj(wbits=31), FIRST_SLICE_BYTES) if found else (None, 0)
                )
                continue
            piece = view[at : at + size]
            if data := member.decompress(piece, BLOCK_BYTES):
                yield data
            at += len(piece) - len(member.unused_data if member.eof else member.unconsumed_tail)
            member, size = (None, 0) if member.eof else (member, min(2 * size, MAX_SLICE_BYTES))
        yield b""
    while member is not None and not member.eof:
        if not (data := member.decompress(b"", BLOCK_BYTES)):
            raise EOFError("unexpected end")
        yield data


def zstd_module() -> ModuleType:
    """The module that unpacks zstd, a package before Python 3.14; or `UsageError`."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise UsageError(
            "A file compressed with zstd can be read here only with Python 3.14, or with "
            "`pip install backports.zstd`."
        ) from None
    return zstd


def _decompress_zstd(stored: Iterator[bytes], check: Callable[[], None]) -> Iterator[bytes]:
    """Unpack frames one after another, in slices as above, into blocks of bounded size."""
    zstd = zstd_module()
    options: dict[int, int] = {
        zstd.DecompressionParameter.window_log_max: MAX_ZSTD_WINDOW_BYTES.bit_length() - 1
    }
    frame = None
    size = FIRST_SLICE_BYTES
    for block in stored:
        view, at = memoryview(block), 0
        while at < len(block) or (frame and not frame.needs_input):
            check()
            frame, size = (
                (frame, size)
                if frame
                else (zstd.ZstdDecompressor(options=options), FIRST_SLICE_BYTES)
            )
            piece = view[at : at + size] if frame.needs_input else view[:0]
            try:
                data = frame.decompress(piece, BLOCK_BYTES)
            except zstd.ZstdError as error:
                raise EOFError(str(error)) from None
            if data:
                yield data
            at += len(piece)
            if frame.eof:
                at -= len(frame.unused_data)
                frame = None
            else:
                size = min(2 * size, MAX_SLICE_BYTES)
        yield b""
    if frame is not None:
        raise EOFError("unexpected end")

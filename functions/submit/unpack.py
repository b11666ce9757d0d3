"""Stored bytes to unpacked ones, a few MB at a time: plain, gzip (several members too), zstd. Knows no S3, no JSON."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from backports import zstd

from shared.errors import UploadError

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 4 << 20
"""Bytes of one unpacked block, about."""

MOST_RATIO, RATIO_FROM = 2_000, 64 << 20
"""An archive may unpack to this many times its size; judged only from that many unpacked bytes on."""

LARGEST_WINDOW = 128 << 20
"""Bytes of zstd's window that are tolerated; the format's own recommended limit is 8 MB, `--long=27` needs this."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_FOREIGN: tuple[tuple[bytes, str], ...] = (
    (b"PK\x03\x04", "a zip archive; unzip it and upload the file inside, or pack it with gzip or zstd"),
    (b"BZh", "bzip2; pack it with gzip or zstd instead"),
    (b"\xfd7zXZ\x00", "xz; pack it with gzip or zstd instead"),
    (b"PAR1", "Parquet; export it as JSON Lines"),
    (b"\xff\xfe", "UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "UTF-16; save it as UTF-8"),
    (b"\x89PNG", "a picture; upload JSON Lines"),
    (b"\xff\xd8\xff", "a picture; upload JSON Lines"),
    (b"GIF8", "a picture; upload JSON Lines"),
    (b"RIFF", "a picture or a sound; upload JSON Lines"),
    (b"%PDF", "a PDF; upload JSON Lines"),
    (b"Obj\x01", "Avro; export it as JSON Lines"),
    (b"ORC", "ORC; export it as JSON Lines"),
)


def packing_of(head: bytes) -> str:
    """`plain`, `gzip` or `zstd`, by the first stored bytes."""
    if head.startswith(_GZIP):
        return "gzip"
    return "zstd" if head.startswith(_ZSTD) else "plain"


def refuse_foreign(head: bytes) -> None:
    """Refuse what is certainly no text of ours.

    Raises:
        UploadError: `unknown_format`, naming the mend.
    """
    for magic, words in _FOREIGN:
        if head.startswith(magic):
            raise UploadError("unknown_format", f"The upload is {words}.")
    if len(head) > 1 and b"\x00" in head[:4]:
        raise UploadError(
            "unknown_format", "The upload is binary, or UTF-16 or UTF-32 text; save it as UTF-8 JSON Lines."
        )


def unpacked(packing: str, stored: Iterator[bytes]) -> Iterator[bytes]:
    """The unpacked bytes of a stream of stored ones.

    Raises:
        UploadError: `broken_archive`: damaged, cut short, or unpacking to more than is believable.
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

    blocks = _gunzipped(counted()) if packing == "gzip" else _zstd_unpacked(counted())
    try:
        for block in blocks:
            given += len(block)
            if given > RATIO_FROM and given > MOST_RATIO * taken:
                raise UploadError(
                    "broken_archive",
                    f"The archive unpacks to over {MOST_RATIO:,} times its size; upload it unpacked if that is right.",
                )
            yield block
    except (zlib.error, zstd.ZstdError, EOFError) as error:
        raise UploadError(
            "broken_archive",
            f"The {packing} archive is damaged or cut short after {given:,} unpacked bytes ({error}). "
            "Pack and upload it again.",
        ) from error


def _gunzipped(stored: Iterator[bytes]) -> Iterator[bytes]:
    """Members one after another; zero bytes behind the last are padding, as gzip(1) takes them."""
    member = None
    for block in stored:
        rest = block
        while rest:
            if member is None:
                rest = rest.lstrip(b"\x00")
                member = zlib.decompressobj(wbits=31) if rest else None
                continue
            if data := member.decompress(rest, BLOCK):
                yield data
            if member.eof:
                rest, member = member.unused_data, None
            else:
                rest = member.unconsumed_tail
    while member is not None and not member.eof:
        if not (data := member.decompress(b"", BLOCK)):
            raise EOFError("unexpected end")
        yield data


def _zstd_unpacked(stored: Iterator[bytes]) -> Iterator[bytes]:
    """Frames one after another, in blocks of bounded size however well they are packed."""
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: LARGEST_WINDOW.bit_length() - 1}
    frame = None
    for block in stored:
        rest = block
        while rest or (frame and not frame.needs_input):
            frame = frame or zstd.ZstdDecompressor(options=options)
            if data := frame.decompress(rest, BLOCK):
                yield data
            rest = b""
            if frame.eof:
                rest, frame = frame.unused_data, None
    if frame is not None:
        raise EOFError("unexpected end")

"""A SHA-256 that can be saved and resumed, so that a file written over many runs has one digest.

Why it is worth its lines: the manifest promises each file's SHA-256, as `sha256sum` prints it, so
that a download can be checked. A file grows over many invocations, and each hashes only the bytes
that it appends. The simpler ways do not keep that promise:

- Reading the finished file: at 80 MB/s an invocation reads 12 GB in its 150 s, and a result file
  may have terabytes.
- S3's own checksum: of an object copied from pieces, S3 has a SHA-256 only of the pieces'
  checksums.
- SHA-256 in Python: 2,000 times slower than libcrypto, 90 s for a step of 64 MB, which has to end
  within 45 s.

Python's own hash objects cannot be stored. This uses three functions of the same libcrypto that
Python's `_hashlib` is linked with; their context is a plain struct whose bytes are the whole state.
The stored state contains none of the hashed bytes: those of the last, unfinished block are passed
again when the digest is resumed. It is tested against a known digest in each process. If that
fails, as in a Python that has the library built in, `is_possible` returns False, and the finished
file is read once more if it is small enough (`functions.poll.files`).
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from functools import cache

SHA_BLOCK_BYTES = 64  # Bytes that are hashed at a time
_WORDS, _LENGTH = 32, 8  # Bytes of hash and length (in bits), first in OpenSSL's SHA256_CTX
_REST = bytes(SHA_BLOCK_BYTES + 4) + (32).to_bytes(4, sys.byteorder)
"""What follows between two blocks: no data, the count of its bytes, and the digest's size."""


@cache
def is_possible() -> bool:
    """Whether a digest can be stored here; tested once against a known one."""
    first, second = bytes(range(100)), bytes(3 * SHA_BLOCK_BYTES)
    try:
        digest = RunningSha256()
        digest.update(first)
        digest = RunningSha256(digest.state(), first[len(first) - unfinished_bytes(len(first)) :])
        digest.update(second)
        return digest.hexdigest() == hashlib.sha256(first + second).hexdigest()
    except (ImportError, OSError, AttributeError):
        return False


@cache
def _crypto() -> ctypes.CDLL:
    import _hashlib  # noqa: PLC0415 - not every Python has it

    return ctypes.CDLL(_hashlib.__file__)


class RunningSha256:
    """A digest that can be stored before it is complete."""

    def __init__(self, state: str = "", tail: bytes = b"") -> None:
        """Begin a digest, or resume one."""
        self._context = ctypes.create_string_buffer(_WORDS + _LENGTH + len(_REST))
        self._length = 0
        if state:
            words, length = bytes.fromhex(state)[:_WORDS], int(state[2 * _WORDS :], 16)
            if len(tail) != unfinished_bytes(length):
                raise ValueError(
                    f"{len(tail)} bytes of an unfinished block, expected {unfinished_bytes(length)}"
                )
            self._length = length - len(tail)
            self._context.raw = words + (8 * self._length).to_bytes(_LENGTH, sys.byteorder) + _REST
            self.update(tail)
        else:
            _crypto().SHA256_Init(self._context)

    def update(self, data: bytes) -> None:
        """Hash more bytes."""
        _crypto().SHA256_Update(self._context, data, ctypes.c_size_t(len(data)))
        self._length += len(data)

    def state(self) -> str:
        """The state, hexadecimal, for the constructor: hash words and length, none of the bytes."""
        return self._context.raw[:_WORDS].hex() + f"{self._length:016x}"

    def hexdigest(self) -> str:
        """The digest of all bytes hashed so far."""
        copy = ctypes.create_string_buffer(self._context.raw, len(self._context))
        digest = ctypes.create_string_buffer(_WORDS)
        _crypto().SHA256_Final(digest, copy)
        return digest.raw.hex()


def unfinished_bytes(length: int) -> int:
    """How many of `length` bytes are in the last, unfinished block."""
    return length % SHA_BLOCK_BYTES

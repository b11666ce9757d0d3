"""A SHA-256 that can be put down and taken up again, so that a file joined over many runs has one digest.

Python's own hash objects cannot be stored. This uses three calls of the very libcrypto that Python's `_hashlib` is
linked with; their context is a plain struct whose bytes are the whole state.
"""

from __future__ import annotations

import _hashlib
import ctypes

_crypto = ctypes.CDLL(_hashlib.__file__)
_STATE = 112
"""Bytes of OpenSSL's SHA256_CTX: eight words of hash, two of length, sixteen of data, two more."""


class RunningSha256:
    """A digest in the making."""

    def __init__(self, state: str = "") -> None:
        """Begin anew, or go on from a stored state (hexadecimal)."""
        self._context = ctypes.create_string_buffer(bytes.fromhex(state) if state else bytes(_STATE), _STATE)
        if not state:
            _crypto.SHA256_Init(self._context)

    def update(self, data: bytes) -> None:
        """Take in more bytes."""
        _crypto.SHA256_Update(self._context, data, ctypes.c_size_t(len(data)))

    def state(self) -> str:
        """The state, hexadecimal, for the constructor."""
        return self._context.raw.hex()

    def hexdigest(self) -> str:
        """The digest of all bytes taken in so far."""
        copy = ctypes.create_string_buffer(self._context.raw, _STATE)
        digest = ctypes.create_string_buffer(32)
        _crypto.SHA256_Final(digest, copy)
        return digest.raw.hex()

"""Bodies without `external_reference`, for a model that refuses members it does not name.

Its refusal would otherwise fail every record of the job: no request of it is bad. Answers are
joined by id, and the index of the batch has the references. All other bytes are the user's own.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.workers_ai.replies import Rejected

BAD_INPUT = 5006
NAME = "external_reference"
_REFUSED = re.compile(
    rf"(additional|unevaluated)\b.{{0,40}}\bpropert.{{0,40}}\b{NAME}\b", re.IGNORECASE
)
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],]', re.DOTALL)
_IN_RECORD = 3
"""Depth of a record's members: in the body's object, its array, and the record's object."""


def is_refused_for_references(reply: Rejected) -> bool:
    """Whether a batch was refused only because its records have references."""
    return reply.code == BAD_INPUT and _REFUSED.search(reply.message) is not None


def without_references(body: bytes) -> bytes:
    """The same body without the member `external_reference` of each record."""
    kept, pieces = 0, list[bytes]()
    for begin, end in _members(body):
        pieces.append(body[kept:begin])
        kept = end
    return b"".join((*pieces, body[kept:]))


def _members(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the member is in each record, with one of the commas beside it."""
    depth, begin, key, is_first = 0, 0, b"", True
    for token in _TOKEN.finditer(body):
        sign = token[0]
        if sign in {b"}", b"]", b","} and depth == _IN_RECORD:
            if key and msgspec.json.decode(key) == NAME:
                follows = is_first and sign == b","
                yield begin, token.end() if follows else token.start()
                is_first = follows
            else:
                is_first = False
            begin, key = token.start(), b""
        if sign in {b"{", b"["}:
            depth += 1
            if depth == _IN_RECORD:
                begin, key, is_first = token.end(), b"", True
        elif sign in {b"}", b"]"}:
            depth -= 1
        elif sign != b"," and depth == _IN_RECORD and not key:
            key = sign

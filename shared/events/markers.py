"""The marker by which a batch is recognized whose submit was accepted and whose reply was lost. Pure.

One record of the body carries it as its `external_reference` on the wire: the first that has none; or, where every
record has one, the first record, whose own is followed by `~` and the marker. Users see their own references only.
"""

from __future__ import annotations

import re
import secrets
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dropbatch.core.formats.base import NULL, begins
from dropbatch.core.records.index import OPENING
from shared.workers_ai.results import decode_member, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shared.workers_ai.results import Item

PREFIX, RANDOM_BYTES = "~db1.", 16
"""A marker is the prefix and 22 characters of base64url: random, so that equal jobs differ."""
MAX_REFERENCE_CHARACTERS = 200
"""Characters of a user's reference that a marker may follow."""
MARKED_BYTES = 64
"""Bytes by which a marker makes a body longer at most, besides those of escapes in a reference."""
_SHOWN = re.compile(re.escape(PREFIX) + r"[A-Za-z0-9_-]{22}$")
_NAME = "external_reference"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Marked(NamedTuple):
    """Where a marker is among the records sent, and the reference on the wire, as JSON."""

    place: int
    reference: msgspec.Raw


def draw_marker() -> str:
    """A new marker."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def marked(references: Sequence[msgspec.Raw], marker: str) -> Marked | None:
    """Where the marker goes; None if no record can carry it.

    Args:
        references: of the records sent, as JSON; null for a record that has none.
        marker: as drawn.
    """
    for place, reference in enumerate(references):
        if reference == NULL:
            return Marked(place, msgspec.Raw(_encode(marker)))
    own = _decode(references[0]) if references else None
    if not isinstance(own, str) or len(own) > MAX_REFERENCE_CHARACTERS:
        return None
    return Marked(0, msgspec.Raw(_encode(f"{own}~{marker}")))


def marked_body(body: bytes, lengths: Sequence[int], mark: Marked) -> bytes:
    """A request body in which one record carries a marker; the others are as they were, byte for byte.

    Args:
        body: as it was staged.
        lengths: bytes of each record in it.
        mark: where the marker goes.
    """
    start = len(OPENING) + [0, *accumulate(length + 1 for length in lengths)][mark.place]
    stop = start + lengths[mark.place]
    record = _encode({**_decode_members(body[start:stop]), _NAME: mark.reference})
    return b"".join((body[:start], record, body[stop:]))


def as_sent(references: list[msgspec.Raw], marker: str, items: Sequence[Item]) -> list[msgspec.Raw]:
    """The references on the wire, with the marker as a reply shows it: it may answer a submit without one.

    Or it shows an altered one, such as a shorter one: that is no reason to lose the record's answer.
    """
    mark = marked(references, marker) if marker else None
    if mark is None:
        return references
    shown = mark.reference
    if all(item.external_reference != shown for item in items):
        known = set(map(bytes, references))
        odd = [item for item in items if begins(item.external_reference, b'"')]
        odd = [item for item in odd if bytes(item.external_reference) not in known]
        altered = [item.external_reference for item in odd if _may_be_altered(item, mark, references[mark.place])]
        if len(altered) != 1:
            return references
        (shown,) = altered
    return [*references[: mark.place], shown, *references[mark.place + 1 :]]


def _may_be_altered(item: Item, mark: Marked, own: msgspec.Raw) -> bool:
    """Whether an item whose reference nobody sent is of the record with the marker.

    It shows at least what the user wrote, or without that the prefix, and then the beginning of the marker. One that
    names the record may show less, or something else after what the user wrote.
    """
    shown = decode_member(item.external_reference)
    if not isinstance(shown, str) or not shown:
        return False
    named = place_of(item)
    if named not in {None, mark.place}:
        return False
    written, is_beginning = _decode(own), _decode(mark.reference).startswith(shown)
    is_kept = shown.startswith(written if isinstance(written, str) else PREFIX)
    if named is None:  # A shorter one may be another record's reference, shortened likewise.
        return is_beginning and is_kept
    return is_beginning or (is_kept and isinstance(written, str))


def marker_in(items: Iterable[Item]) -> tuple[str, Item] | None:
    """The marker that a reply shows, and the item that does; None if it shows none."""
    for item in items:
        if PREFIX.encode() in bytes(item.external_reference):
            shown = _decode(item.external_reference)
            if isinstance(shown, str) and (found := _SHOWN.search(shown)):
                return found[0], item
    return None

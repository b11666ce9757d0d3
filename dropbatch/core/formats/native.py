"""Native records with defaults.

Each is sent with the default members that it lacks, and kept as written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dropbatch.core.formats.base import NULL, Converted, LineReader, encode, members_of, one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dropbatch.core.formats.base import Json


class _Line(msgspec.Struct):
    external_reference: msgspec.Raw = NULL


_decode_line = msgspec.json.Decoder(_Line).decode


class NativeReader(LineReader):
    """Adds the job's defaults to requests of Workers AI; never finds a fault."""

    def _convert(self, record: bytes) -> Converted:
        reference = msgspec.Raw(one_line(_decode_line(record).external_reference))
        return Converted(merge_defaults(record, self._target.defaults), reference)


def merge_defaults(request: bytes, defaults: Mapping[str, Json]) -> bytes:
    """A request with the defaults for members that it lacks, added after its own members.

    Args:
        request: a JSON object, as sent.
        defaults: values as JSON.
    """
    members = members_of(request) or {}
    added = [
        b"%b:%b" % (encode(name), value) for name, value in defaults.items() if name not in members
    ]
    if not added:
        return request
    end = request.rindex(b"}")
    return b"%b%b%b%b" % (request[:end], b"," if members else b"", b",".join(added), request[end:])

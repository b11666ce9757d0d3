"""Request bodies without the marker that one of their records carries on the wire.

What a batch is about.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256

_MARKER = re.compile(rb"~db1\.[A-Za-z0-9_-]{22}(?=\")")
_MARKED = re.compile(r"(?:(.*)~)?~db1\.[A-Za-z0-9_-]{22}", re.DOTALL)


def meaning(body: bytes) -> str:
    """SHA-256 of a body's requests, however they are written, without a marker."""
    requests = json.loads(body)["requests"]
    for request in requests:
        if (found := _MARKED.fullmatch(request.get("external_reference") or "")) is not None:
            request["external_reference"] = found[1]
        if request.get("external_reference", "") is None:
            del request["external_reference"]
    return sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()


def with_marker(body: bytes, drawn: str) -> bytes:
    """A body with another marker in place of the one that it has, if it has one."""
    return _MARKER.sub(f"~db1.{drawn}".encode(), body)

"""What a request body is about, however it is written."""

from __future__ import annotations

import json
from hashlib import sha256


def meaning(body: bytes) -> str:
    """SHA-256 of a body's requests."""
    requests = json.loads(body)["requests"]
    return sha256(json.dumps(requests, sort_keys=True).encode()).hexdigest()

"""The value of the secret: one API token, nothing else.

Before 0.9 it might be several, one a line, some with an account or `queues=`: such a value is
refused by name, because its first line alone would be another account's, or have less room.
"""

from __future__ import annotations

import re

ONE_A_STACK = (
    "One API token a stack since 0.9: the secret must hold one token alone, without further lines, "
    "account ids or queues=. Keep the token of the stack's account; for another account or more "
    "calls, deploy another stack with NAME=…."
)
"""What users read whose secret holds more."""
_SEPARATOR = re.compile(r"[\s,]")


def holds_several(value: str) -> bool:
    """Whether a secret's value is several tokens, or one that names its account or its use."""
    text = value.strip()
    return bool(_SEPARATOR.search(text)) or text.startswith("queues=")

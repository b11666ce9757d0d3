"""Text from uploaders on a terminal.

What would command it is shown instead, and lines fit its width.
"""

from __future__ import annotations

import re
import unicodedata

_COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, line separators, what changes the direction of writing.

And what is no character.
"""


def printable(text: str) -> str:
    r"""A text, in which characters that would command a terminal are written as Python writes them: `\x1b`."""
    return text if text.isprintable() else _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes.

    Letters of East Asia take two, combining marks none.
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) or unicodedata.category(one) == "Cf" else 1 + _is_wide(one)
        for one in text
    )


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in {"W", "F"}


def cut(text: str, width: int) -> str:
    """The beginning of a text that takes no more columns."""
    if len(text) <= width and columns_of(text) <= width:
        return text
    used = 0
    for at, one in enumerate(text):
        used += columns_of(one)
        if used > width:
            return text[:at]
    return text


def shortened(text: str, width: int) -> str:
    """A text that takes no more columns; of a longer one, its end, which tells paths apart."""
    if columns_of(text) <= width:
        return text
    return f"…{cut(text[::-1], width - 1)[::-1]}" if width > 0 else ""

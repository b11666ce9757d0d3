r"""Lone surrogates in JSON, such as `\ud83d` without its second half where a text was cut by UTF-16 units. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

SURROGATES = re.compile(rb"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)")
"""An escaped backslash, a surrogate pair, or a lone surrogate: only the last is a group."""
REPLACEMENT = rb"\ufffd"
_MARK = "\ufdd0"
"""A code that is reserved for uses such as this, and that no text has."""

_decode = msgspec.json.Decoder().decode


def without_lone_surrogates(content: bytes) -> bytes:
    """Return the same JSON with U+FFFD in place of each lone surrogate."""
    return SURROGATES.sub(lambda found: found[0] if found[1] is None else REPLACEMENT, content)


def about_lone_surrogate(content: bytes) -> str:
    """What to tell the user of an object's first lone surrogate, beginning with its member.

    Empty if it has none.

    Args:
        content: JSON but for that.
    """
    half = next(
        (found[1] for found in SURROGATES.finditer(content) if found[1] is not None), b""
    ).decode()
    if not half:
        return ""
    marked = SURROGATES.sub(
        lambda found: found[0] if found[1] is None else _MARK.encode("unicode-escape"), content
    )
    try:
        member = _first_in(_decode(marked), "")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        member = None
    return (
        f"{member or 'The record'}: It has half of a surrogate pair ({half}), as where a "
        "text is cut in the middle of "
        "an emoji. Cut it elsewhere, or replace that character."
    )


def _first_in(value: Any, path: str) -> str | None:  # noqa: ANN401
    if isinstance(value, str):
        return path if _MARK in value else None
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        inner = ((f"{path}.{name}" if path else name, one) for name, one in value.items())
    elif isinstance(value, list):
        inner = ((f"{path}[{index}]", one) for index, one in enumerate(value))
    return next((found for name, one in inner if (found := _first_in(one, name)) is not None), None)

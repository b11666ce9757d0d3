"""Tokens as replies report them, for a batch as a whole or in an item's result. Pure.

Chat completions call them `prompt_tokens` and `completion_tokens`, the Responses API of gpt-oss `input_tokens` and
`output_tokens`. Of the input, some may have been read from a cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shared.models import Usage
from shared.workers_ai.results import decode_member

if TYPE_CHECKING:
    from shared.workers_ai.results import Item

MAX_TOKENS = 2**53 - 1
"""A larger usage is ignored: JSON readers could not distinguish it from neighbouring numbers."""

_NAMES = {
    "prompt_tokens": ("prompt_tokens", "input_tokens"),
    "completion_tokens": ("completion_tokens", "output_tokens"),
    "total_tokens": ("total_tokens",),
}
_DETAILS = ("prompt_tokens_details", "input_tokens_details")


class _ResultUsage(msgspec.Struct):
    usage: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_decode_result_usage = msgspec.json.Decoder(_ResultUsage).decode


def usage_of(raw: msgspec.Raw | msgspec.UnsetType) -> Usage:
    """A `usage` member; numbers that are missing, or no count of tokens, are None.

    One of nothing but zeros reports nothing: no request without tokens is accepted.
    """
    value = decode_member(raw)
    if not isinstance(value, dict):
        return Usage()
    counts = {name: _first(value, names) for name, names in _NAMES.items()}
    if not any(counts.values()):
        return Usage()
    details = [one for one in map(value.get, _DETAILS) if isinstance(one, dict)]
    cached = next((found for one in details if (found := _first(one, ("cached_tokens",))) is not None), None)
    return Usage(**counts, cached_tokens=cached)


def usage_of_item(item: Item) -> Usage:
    """The usage inside one item's result, as chat models report it."""
    if bytes(memoryview(item.result)[:1]) != b"{":
        return Usage()
    return usage_of(_decode_result_usage(item.result).usage)


def _first(counts: dict[str, object], names: tuple[str, ...]) -> int | None:
    """The first count of tokens under one of several names."""
    for name in names:
        count = counts.get(name)
        if type(count) is int and 0 <= count <= MAX_TOKENS:
            return count
    return None

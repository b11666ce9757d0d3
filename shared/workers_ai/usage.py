"""Tokens as replies report them, for a batch as a whole or in an item's result. Pure.

Chat completions call them `prompt_tokens` and `completion_tokens`, the Responses API of gpt-oss
`input_tokens` and `output_tokens`. Of the input, some may have been read from a cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from dropbatch.core.formats.base import NULL
from shared.workers_ai.results import Item, has_failed

MAX_TOKENS = 2**53 - 1
"""JSON readers could not distinguish a larger number from its neighbours."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the API reported them; None where it reported none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None  # those of the prompt that cost less, from a cache
    reasoning_tokens: int | None = None  # those of the completion that no answer shows

    @property
    def is_reported(self) -> bool:
        """Whether the tokens of the prompt are known, without which nothing has its price."""
        return self.prompt_tokens is not None

    @property
    def sum(self) -> int:
        """All tokens, as far as they are known."""
        return self.total_tokens or (self.prompt_tokens or 0) + (self.completion_tokens or 0)

    def plus(self, other: Usage) -> Usage:
        """Sum two usages; what both lack stays unknown."""

        def add(a: int | None, b: int | None) -> int | None:
            return b if a is None else a if b is None else a + b

        return Usage(
            add(self.prompt_tokens, other.prompt_tokens),
            add(self.completion_tokens, other.completion_tokens),
            add(self.total_tokens, other.total_tokens),
            add(self.cached_tokens, other.cached_tokens),
            add(self.reasoning_tokens, other.reasoning_tokens),
        )


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Result(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _Counts(NamedTuple):
    prompt: int | None
    completion: int | None
    total: int | None
    cached: int | None
    reasoning: int | None


_NOTHING = _Counts(None, None, None, None, None)

_decode_usage = msgspec.json.Decoder(_Usage).decode
_decode_result = msgspec.json.Decoder(_Result).decode

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def usage_of(raw: msgspec.Raw | msgspec.UnsetType) -> Usage:
    """A `usage` member: what is no count of tokens is None, two of its numbers tell the third."""
    return Usage(*_counts_of(raw))


def usage_of_items(items: Iterable[Item]) -> Usage:
    """The sum of the usages inside items' results; nothing if a good one reports less."""
    sums: list[int | None] = [None] * len(_NOTHING)
    lacks_completion = False
    for item in items:
        counts = _counts_of_item(item)
        if counts.prompt is None:
            if item.result != NULL and not has_failed(item):
                return Usage()  # The sum would count what this answer cost as nothing.
            continue
        if counts.completion is None and counts.total != counts.prompt and not has_failed(item):
            lacks_completion = True
        for at, count in enumerate(counts):
            if count is not None:
                sums[at] = (sums[at] or 0) + count
    usage = Usage(*sums)
    return Usage() if lacks_completion and usage.completion_tokens is not None else usage


def _counts_of_item(item: Item) -> _Counts:
    if bytes(memoryview(item.result)[:1]) != b"{":
        return _NOTHING
    try:
        usage = _decode_result(item.result).usage
    except _UNREADABLE:
        return _NOTHING
    return _counts(usage) if usage else _NOTHING


def _counts_of(raw: msgspec.Raw | msgspec.UnsetType) -> _Counts:
    if raw is msgspec.UNSET:
        return _NOTHING
    try:
        return _counts(_decode_usage(raw))
    except _UNREADABLE:
        return _NOTHING


def _counts(usage: _Usage) -> _Counts:
    prompt = _first(usage.prompt_tokens, usage.input_tokens)
    completion = _first(usage.completion_tokens, usage.output_tokens)
    total = _first(usage.total_tokens, None)
    if not (prompt or completion):
        return _NOTHING
    if prompt is None and total is not None and completion is not None and total >= completion:
        prompt = total - completion
    elif completion is None and total is not None and prompt is not None and total > prompt:
        completion = total - prompt
    read = usage.prompt_tokens_details or usage.input_tokens_details
    written = usage.completion_tokens_details or usage.output_tokens_details
    cached = _first(read.cached_tokens, None) if read else None
    reasoning = _first(written.reasoning_tokens, None) if written else None
    return _Counts(prompt, completion, total, cached, reasoning)


def _first(count: int | None, other: int | None) -> int | None:
    if count is not None and 0 <= count <= MAX_TOKENS:
        return count
    return other if other is not None and 0 <= other <= MAX_TOKENS else None

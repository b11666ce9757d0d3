"""What a job costs: prices from the model catalogue times tokens, as decimals. Pure.

An estimate is made from the size of the requests, before anything is sent. It is not the bill:
Workers AI counts tokens, and its free daily allocation is not subtracted.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

import msgspec

from dropbatch.core.formats.base import Task
from dropbatch.core.models import Model

CURRENCY = "USD"
BYTES_PER_TOKEN = 4
"""Bytes of a request that count as one token in an estimate.

English text has about four letters per token.
"""
DEFAULT_OUTPUT_TOKENS = 256
"""Output tokens that an estimate assumes for a record that sets no limit.

As Workers AI does for its chat models.
"""
MAX_NAMED_TOKENS = 1_000_000
"""Most output tokens that an estimate accepts as the limit that a single record names."""

_NAMED_TOKENS = re.compile(rb'"max_(?:completion_|output_)?tokens"(?:\s*:\s*([0-9]{1,9}))?')
_MILLION, _BILLION = Decimal(1_000_000), Decimal(1_000_000_000)
_SMALLEST = Decimal("0.00000001")
_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class Tokens:
    """Input and output tokens; None where none were reported.

    `cached` are those of the input read from a cache.
    """

    input: int | None
    output: int | None
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Cost:
    """US dollars, the day of the prices, and whether it is an estimate."""

    amount: Decimal
    priced_at: str
    estimated: bool

    def plus(self, other: Cost | None) -> Cost:
        """The cost of both, at the prices of the same day; estimated if one of them is."""
        if other is None:
            return self
        return Cost(self.amount + other.amount, self.priced_at, self.estimated or other.estimated)

    def to_manifest(self) -> dict[str, str | bool]:
        """The cost as the manifest shows it."""
        return {
            "amount": format_amount(self.amount),
            "currency": CURRENCY,
            "priced_at": self.priced_at,
            "estimated": self.estimated,
        }


def has_price(model: Model) -> bool:
    """Whether the model's price is known."""
    return model.input_price is not None


def cost_of(model: Model, tokens: Tokens, *, estimated: bool = False) -> Cost | None:
    """The cost of tokens; None for a model without a price, or if no tokens were reported."""
    if model.input_price is None or (tokens.input is None and tokens.output is None):
        return None
    cached = min(tokens.cached, tokens.input or 0)
    cached_price = model.input_price if model.cached_price is None else model.cached_price
    amount = model.input_price * ((tokens.input or 0) - cached) + cached_price * cached
    amount += (model.output_price or Decimal(0)) * (tokens.output or 0)
    return Cost(amount / _MILLION, model.priced_at, estimated)


def estimate_tokens(
    model: Model,
    body_bytes: int,
    records: int,
    max_tokens: int | None = None,
    each: int | None = None,
) -> Tokens:
    """Tokens that requests will probably use.

    Args:
        model: the job's.
        body_bytes: bytes of all requests.
        records: number of requests.
        max_tokens: output tokens of all requests together, if they set limits; None if they set
            none.
        each: output tokens of a request that sets none; None: the model's limit, or
            `DEFAULT_OUTPUT_TOKENS`.
    """
    taken = -(-body_bytes // BYTES_PER_TOKEN)
    return Tokens(taken, _output_tokens(model, taken, records, max_tokens, each))


def _output_tokens(
    model: Model, input_tokens: int, records: int, max_tokens: int | None, each: int | None
) -> int:
    if model.task in {Task.EMBEDDINGS, Task.TRANSCRIPTION, Task.SPEECH}:
        return 0
    if max_tokens is not None:
        return max_tokens
    if model.task is Task.TRANSLATION:
        return input_tokens
    return records * (each or model.output_tokens or DEFAULT_OUTPUT_TOKENS)


class _Limits(msgspec.Struct):
    """The members of a request that limit its answer, unread: a wrong one limits nothing."""

    max_tokens: msgspec.Raw = msgspec.Raw(b"0")
    max_completion_tokens: msgspec.Raw = msgspec.Raw(b"0")
    max_output_tokens: msgspec.Raw = msgspec.Raw(b"0")

    def highest(self) -> int:
        """The highest limit; 0 if the request names none."""
        named = (self.max_tokens, self.max_completion_tokens, self.max_output_tokens)
        return max(map(_limit, named))


class _Body(msgspec.Struct):
    requests: list[_Limits]


_decode_body = msgspec.json.Decoder(_Body).decode


def _limit(written: msgspec.Raw) -> int:
    """A limit as a request writes it; 0 for what is none."""
    try:
        tokens = float(bytes(written))
    except ValueError:
        return 0
    return math.ceil(min(max(tokens, 0.0), MAX_NAMED_TOKENS))


def highest_named(text: bytes) -> int:
    """The highest limit that seems to be named anywhere in a text; 0 if there is none."""
    found = (int(tokens or 0) for tokens in _NAMED_TOKENS.findall(text))
    return min(max(found, default=0), MAX_NAMED_TOKENS)


def output_tokens(model: Model, body: bytes, records: int, each: int | None = None) -> int | None:
    """Output tokens that the requests of a body may use; None if none of them names a limit.

    `each` as for `estimate_tokens`.
    """
    if not _NAMED_TOKENS.search(body):
        return None
    try:
        limits = [one.highest() for one in _decode_body(body).requests]
    except (msgspec.MsgspecError, RecursionError):
        limits = []
    if not any(limits):
        return None
    unnamed = max(records, len(limits)) - sum(map(bool, limits))
    return sum(limits) + unnamed * (each or model.output_tokens or DEFAULT_OUTPUT_TOKENS)


def estimate_cost(
    model: Model,
    body_bytes: int,
    records: int,
    max_tokens: int | None = None,
    each: int | None = None,
) -> Cost | None:
    """What requests will probably cost; None for a model without a price.

    Arguments are as for `estimate_tokens`.
    """
    return cost_of(
        model, estimate_tokens(model, body_bytes, records, max_tokens, each), estimated=True
    )


def to_billionths(amount: Decimal) -> int:
    """Dollars as a whole number of billionths, as the ledger holds them."""
    return int((amount * _BILLION).to_integral_value())


def format_amount(amount: Decimal) -> str:
    """Dollars as text, with four decimals, or more for smaller amounts."""
    whole, _, decimals = format(amount.quantize(_SMALLEST, ROUND_HALF_UP), "f").partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(_DECIMALS, '0')}"

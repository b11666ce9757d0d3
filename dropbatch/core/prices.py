"""What a job costs: prices from the model catalogue times tokens, as decimals. Pure.

An estimate is made from the size of the requests, before anything is sent. Workers AI counts
tokens, and its free daily allocation is not subtracted. For `max_cost`, an estimate counts each
answer as long as it may be, and first batches are small, so that none costs much of the limit
before anything is known (`shared.pacing.cost`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

import msgspec

from dropbatch.core.formats.base import Task
from dropbatch.core.models import Model

BYTES_PER_TOKEN = 4
"""English text has about four letters per token."""
DEFAULT_OUTPUT_TOKENS = 256
"""Of a record that sets no limit, as Workers AI assumes for its chat models."""
LONG_ANSWER_TOKENS = 10_000
"""The same where each answer is counted as long as it may be."""
MAX_NAMED_TOKENS = 1_000_000
"""Most output tokens that an estimate believes of one record's limit."""
FIRST_SHARE, FIRST_SHARE_UNLIMITED = 16, 2
"""A first batch has at most this part of `max_cost`; the second if nothing limits its answers."""

_WITHOUT_TEXT = frozenset({Task.EMBEDDINGS, Task.TRANSCRIPTION, Task.SPEECH})
"""Tasks whose answers cost nothing."""
_NAMED_TOKENS = re.compile(rb'"max_(?:completion_|output_)?tokens"(?:\s*:\s*([0-9]{1,9}))?')
_MILLION, _BILLION = Decimal(1_000_000), Decimal(1_000_000_000)
_SMALLEST = Decimal("0.00000001")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Input and output tokens, None where none were reported; `cached` are some of the input."""

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
            "currency": "USD",
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
    """Tokens that requests will use; their limits have `max_tokens` together, others `each`."""
    taken = -(-body_bytes // BYTES_PER_TOKEN)
    if model.task in _WITHOUT_TEXT:
        return Tokens(taken, 0)
    if max_tokens is not None:
        return Tokens(taken, max_tokens)
    if model.task is Task.TRANSLATION:
        return Tokens(taken, taken)
    return Tokens(taken, records * (each or model.output_tokens or DEFAULT_OUTPUT_TOKENS))


class _Limits(msgspec.Struct):
    """The members of a request that limit its answer, unread: a wrong one limits nothing."""

    max_tokens: msgspec.Raw = msgspec.Raw(b"0")
    max_completion_tokens: msgspec.Raw = msgspec.Raw(b"0")
    max_output_tokens: msgspec.Raw = msgspec.Raw(b"0")

    def highest(self) -> int:
        """0 if the request names none."""
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
    """Output tokens that the requests of a body may use; None if none of them names a limit."""
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
    """What requests will probably cost, by `estimate_tokens`; None for a model without a price."""
    tokens = estimate_tokens(model, body_bytes, records, max_tokens, each)
    return cost_of(model, tokens, estimated=True)


def to_billionths(amount: Decimal) -> int:
    """Dollars as a whole number of billionths, as the ledger holds them."""
    return int((amount * _BILLION).to_integral_value())


def format_amount(amount: Decimal) -> str:
    """Dollars as text, with four decimals, or more for smaller amounts."""
    whole, _, decimals = format(amount.quantize(_SMALLEST, ROUND_HALF_UP), "f").partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(4, '0')}"


# ── max_cost ──────────────────────────────────────────────────────────────────────────────────────


def estimate(model: Model, body: bytes, body_size: int, records: int, answer_tokens: int) -> int:
    """Billionths that a batch costs if each answer is as long as it may be; 0 without a price."""
    each = answer_tokens or model.output_tokens or LONG_ANSWER_TOKENS
    cost = estimate_cost(model, body_size, records, output_tokens(model, body, records, each), each)
    return to_billionths(cost.amount) if cost else 0


def first_batch(
    model: Model, limit: Decimal, named: int, answer_tokens: int
) -> tuple[int | None, int | None]:
    """Records and bytes that the first batches of a job with a limit have at most; None: any.

    As if no record named a lower limit for its answer than `named`, the highest of the first ones.
    """
    share = FIRST_SHARE if answer_tokens or model.output_tokens else FIRST_SHARE_UNLIMITED
    each = max(answer_tokens or model.output_tokens or LONG_ANSWER_TOKENS, named)
    by_bytes = model.input_price or Decimal(0)
    records = size = None
    if model.task is Task.TRANSLATION:
        by_bytes += model.output_price or Decimal(0)
    elif model.output_price is not None and model.task not in _WITHOUT_TEXT:
        records = max(int(limit / share * _MILLION / model.output_price / each), 1)
    if by_bytes:
        size = max(int(limit / FIRST_SHARE * _MILLION / by_bytes * BYTES_PER_TOKEN), 1)
    return records, size

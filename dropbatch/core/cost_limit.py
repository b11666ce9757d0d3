"""What a batch of a job with `max_cost` is estimated at, and how large its first batches are. Pure.

An estimate counts each answer as long as it may be, in billionths of a US dollar. The first batches
are small, later ones larger, so that none costs much of the limit before anything is known
(`shared.pacing.cost`).
"""

from __future__ import annotations

from decimal import Decimal

from dropbatch.core.cost import BYTES_PER_TOKEN, estimate_cost, output_tokens, to_billionths
from dropbatch.core.formats.base import Task
from dropbatch.core.models import Model

LONG_ANSWER_TOKENS = 10_000
"""Output tokens that a record may have if neither it, its model nor its user names a limit."""
FIRST_SHARE, FIRST_SHARE_UNLIMITED = 16, 2
"""A first batch has at most this part of the limit; the second if nothing limits its answers."""


def estimate(model: Model, body: bytes, body_size: int, records: int, answer_tokens: int) -> int:
    """What a batch costs if each answer is as long as it may be; 0 without a price.

    Args:
        model: the job's.
        body: the requests, which may name limits.
        body_size: their bytes.
        records: their number.
        answer_tokens: the option `output_tokens`; 0 without it.
    """
    each = answer_tokens or model.output_tokens or LONG_ANSWER_TOKENS
    cost = estimate_cost(model, body_size, records, output_tokens(model, body, records, each), each)
    return to_billionths(cost.amount) if cost else 0


def first_batch(
    model: Model, limit: Decimal, named: int, answer_tokens: int
) -> tuple[int | None, int | None]:
    """Records and bytes that the first batches of a job with a limit have at most; None: any.

    As if no record named a low limit for its answer: those after the first may name none.

    Args:
        model: the job's, which has a price.
        limit: the job's `max_cost`, US dollars.
        named: the highest limit that the first records name for an answer; 0 if they name none.
        answer_tokens: the option `output_tokens`; 0 without it.
    """
    share = FIRST_SHARE if answer_tokens or model.output_tokens else FIRST_SHARE_UNLIMITED
    each = max(answer_tokens or model.output_tokens or LONG_ANSWER_TOKENS, named)
    return (
        _records_for(model, limit / share, each),
        _bytes_for(model, limit / FIRST_SHARE),
    )


def _records_for(model: Model, dollars: Decimal, each: int) -> int | None:
    """Records whose answers, of so many tokens each, cost at most so much, at least one."""
    read_only = {Task.EMBEDDINGS, Task.TRANSLATION, Task.TRANSCRIPTION, Task.SPEECH}
    if model.output_price is None or model.task in read_only:
        return None
    return max(int(dollars * 1_000_000 / model.output_price / each), 1)


def _bytes_for(model: Model, dollars: Decimal) -> int | None:
    """Bytes whose tokens cost at most so much, at least one."""
    price = model.input_price or Decimal(0)
    if model.task is Task.TRANSLATION:
        price += model.output_price or Decimal(0)
    return max(int(dollars * 1_000_000 / price * BYTES_PER_TOKEN), 1) if price else None

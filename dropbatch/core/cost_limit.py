"""How far a job with `max_cost` may go before and after its own answers tell what they cost. Pure.

Each batch has an estimate, in billionths of a US dollar: what it costs if each answer is as long as
it may be. A batch's place in the sum of its job's estimates is its reservation: the batches up to
some sum may be submitted, those beyond it may not, and that sum, the room, follows from what the
job has spent (`shared.pacing.cost_limit`). There is no counter of reservations, so none is leaked
by a death or counted twice, and two functions never reserve the same money.

The first batches are small, later ones larger, so that none costs much of the limit before anything
is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from dropbatch.core.cost import BYTES_PER_TOKEN, estimate_cost, output_tokens, to_billionths
from dropbatch.core.formats.base import Task

if TYPE_CHECKING:
    from dropbatch.core.models import Model

LONG_ANSWER_TOKENS = 10_000
"""Output tokens that a record may have, as far as is known.

If neither it nor its model nor its user names a limit.
"""
UNMEASURED = 2
"""The limit is divided by this as long as no answer has told how many bytes of this job are a token."""
MOST_UNKNOWN = 8
"""Times the estimate of what was answered that may be submitted beyond it.

The next records may have longer answers.
"""
ANSWERS_SPREAD, TEXTS_SPREAD = 3.0, 1.0
"""Errors of a mean of n records, as multiples of the mean divided by the square root of n.

Of answers, which may have
10 or 10,000 tokens, and of texts that are only read.
"""
FIRST_SHARE = 16
"""A first batch has at most this part of the limit.

If the length of its answers is known to have one.
"""


@dataclass(frozen=True, slots=True)
class Spent:
    """What a job has spent, as far as its last visit knew.

    Attributes:
        amount: of its finished batches and of what was sent again, in billionths of a US dollar.
        settled: sum of their estimates, likewise: these reserve nothing more.
        measured: the part of it for records that have an answer.
        records: these records.
        vain: the part of the amount for what was sent and brought no answer: it tells nothing of
            what answers cost.
    """

    amount: int = 0
    settled: int = 0
    measured: int = 0
    records: int = 0
    vain: int = 0

    @property
    def answered(self) -> int:
        """What the records cost that have an answer."""
        return self.amount - self.vain


def estimate(model: Model, body: bytes, body_size: int, records: int, answer_tokens: int) -> int:
    """What a batch costs if each answer is as long as it may be, in billionths of a US dollar.

    0 without a price.

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


def fits(model: Model, limit: int, spent: Spent, before: int, more: int) -> bool:
    """Whether a batch may be submitted.

    Args:
        model: the job's.
        limit: the job's `max_cost`, in billionths of a US dollar.
        spent: what the job has spent.
        before: sum of the estimates of the batches before it.
        more: its own estimate.
    """
    left = limit - spent.amount
    if left <= 0:
        return False
    if not spent.measured and before <= spent.settled and more <= left:
        return True  # Nothing is outstanding; without this one nothing would ever be known.
    return before + more <= spent.settled + _room(model, left, spent)


def _room(model: Model, left: int, spent: Spent) -> int:
    """The estimate of the unfinished batches that may have been submitted at the same time."""
    unmeasured = left // UNMEASURED
    if not (spent.answered and spent.measured):
        return unmeasured
    ratio, a, b = _at_most(model, spent)
    root = (math.sqrt(b * b + 4 * a * left) - b) / (2 * a)
    # An estimate counts each answer as long as it may be.
    room = max(root * root, left / max(ratio, 1.0))
    return min(int(room), max(MOST_UNKNOWN * spent.measured, unmeasured))


def judged(model: Model, spent: Spent, longest: int) -> int:
    """What a batch costs at most, as far as its job's answers tell.

    Args:
        model: the job's.
        spent: what the job has spent.
        longest: the batch's estimate.
    """
    if not (spent.answered and spent.measured):
        return longest
    _, a, b = _at_most(model, spent)
    return min(math.ceil(a * longest + b * math.sqrt(longest)), longest)


def _at_most(model: Model, spent: Spent) -> tuple[float, float, float]:
    """The share of its estimate that a batch costs.

    And a and b, if one with the estimate x costs at most a x + b √x.

    More records with the mean m cost at most the sum of m, of the error of the mean, and of their
    own spread.
    """
    spread = TEXTS_SPREAD if model.task is Task.EMBEDDINGS else ANSWERS_SPREAD
    each = spent.measured / spent.records
    # As if one more answer was as long as it may be.
    ratio = (spent.answered + each) / (spent.measured + each)
    return ratio, ratio * (1 + spread / math.sqrt(spent.records)), ratio * spread * math.sqrt(each)


def first_batch(
    model: Model, limit: Decimal, named: int | None, answer_tokens: int
) -> tuple[int | None, int | None]:
    """Records and bytes that the first batches of a job with a limit have at most; None.

    As many as without it.

    Args:
        model: the job's, which has a price.
        limit: the job's `max_cost`, US dollars.
        named: the highest limit that the first records or the option `defaults` name for an answer;
            None: none.
        answer_tokens: the option `output_tokens`; 0 without it.
    """
    share = FIRST_SHARE if named or answer_tokens or model.output_tokens else UNMEASURED
    records, _ = most_for(model, limit / share, named, answer_tokens)
    return records, most_for(model, limit / FIRST_SHARE, named, answer_tokens)[1]


def most_for(
    model: Model, dollars: Decimal, named: int | None, answer_tokens: int
) -> tuple[int | None, int | None]:
    """Records whose answers, and bytes whose tokens, cost at most so much, but at least one.

    None: they cost nothing.

    The arguments are as for `first_batch`.
    """
    millions = dollars * 1_000_000
    read = model.input_price or Decimal(0)
    if model.task is Task.TRANSLATION:
        read += model.output_price or Decimal(0)
    size = max(int(millions / read * BYTES_PER_TOKEN), 1) if read else None
    if model.output_price is None or model.task in {
        Task.EMBEDDINGS,
        Task.TRANSLATION,
        Task.TRANSCRIPTION,
        Task.SPEECH,
    }:
        return None, size
    each = named or answer_tokens or model.output_tokens or LONG_ANSWER_TOKENS
    return max(int(millions / model.output_price / each), 1), size

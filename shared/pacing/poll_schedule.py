"""When to poll a pending batch, from how long batches of the same model took.

Knows no clock, no service.

The rule: poll when a third (`SHARE`) of the batches that were still pending at this age were
finished. Where none is known that took longer, the batch is polled when it is twice as old: at 2 s,
4 s, 8 s and so on.

How long a batch took is known between two polls: it was pending at one, finished at the next. It
counts as the middle of the two. One that was finished at its first poll counts as a fifth quicker,
so that a model that became faster is
seen: its next batches are polled sooner.

While nothing is known about a model, only the first batches of a job are polled this early. The
others wait longer: by then the first ones have shown how long the model takes.
"""

from __future__ import annotations

FIRST_POLL_SECONDS, UNKNOWN_SECONDS = 2.0, 22.0
"""Seconds from acceptance to the first poll of the first batches of a model never seen.

And to that of the others.
"""
SCOUTS = 6
"""How many of a job's batches are the first of them."""
MIN_SECONDS, MIN_SHARE, MAX_SECONDS = 0.6, 0.15, 900.0
"""Seconds between two polls of one batch.

And the share of its age that passes between them at least.
"""
MAX_FIRST_SECONDS = 300.0
"""Maximum seconds from acceptance to the first poll.

A stall that is over must not hide a fast model.
"""
HELD_POLL_SECONDS = 300.0
"""Seconds to the next poll of a batch of a paused job that is to be submitted again."""
SHARE = 0.34
"""The share of the batches still pending that should be finished at the next poll.

A larger one: fewer, later calls.
"""
QUICKER = 0.8
JITTER = 0.1
SAMPLES = 40
"""Times stored for one model; with them its item stays under 1 KB, one write unit."""
LIFE_SECONDS, LONG_SECONDS, LONG_LIFE_SECONDS = 14 * 86_400, 900.0, 6 * 3_600
"""Seconds for which a time counts; those of a long batch.

Yesterday's stall says nothing about today.
"""
SAMPLED_FIRST, SAMPLED_ONE_IN = 40, 8
"""Batches of a job that are sampled: this many first ones, then one in this many."""

Bound = tuple[float, float, int]
"""One batch: its age when last seen pending (0.

Never), its age when first seen finished, and when that was.
"""


def is_sampled(number: str) -> bool:
    """Whether a batch of this number is sampled.

    The choice does not depend on how long the batch took.
    """
    ordinal = int(number[:8])
    return ordinal < SAMPLED_FIRST or ordinal % SAMPLED_ONE_IN == 0


def times_of(bounds: tuple[Bound, ...], now: float) -> list[float]:
    """How long batches took, ascending, as far as it still counts."""
    return sorted(
        (after + by) / 2 if after else by * QUICKER
        for after, by, at in bounds
        if now - at < (LIFE_SECONDS if by <= LONG_SECONDS else LONG_LIFE_SECONDS)
    )


def percentile(times: list[float], share: float) -> float:
    """The time in which this share of the batches is finished; 0 if none is known."""
    return times[min(int(share * len(times)), len(times) - 1)] if times else 0.0


def first_poll(times: list[float], number: str, chance: float) -> float:
    """Seconds from acceptance to the first poll of the batch with a number.

    `chance` as for `next_poll`.
    """
    if not times and int(number[:8]) >= SCOUTS:
        return UNKNOWN_SECONDS * (1 + JITTER * chance)
    return next_poll(times, 0.0, chance)


def next_poll(times: list[float], age: float, chance: float) -> float:
    """Seconds until a batch that is pending at this age is polled.

    Args:
        times: how long batches of its model took, ascending.
        age: seconds since the API accepted it.
        chance: random, from 0 to 1: spreads batches that were accepted together.
    """
    longer = [one for one in times if one > age]
    wait = percentile(longer, SHARE) - age if longer else max(age, FIRST_POLL_SECONDS)
    latest = min(MAX_SECONDS, max(age, MAX_FIRST_SECONDS)) / (1 + JITTER)
    return min(max(wait, MIN_SECONDS, MIN_SHARE * age), latest) * (1 + JITTER * chance)

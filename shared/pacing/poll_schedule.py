"""When to poll a pending batch, estimated from how long batches of the same model took. Knows no clock, no service.

How long a batch took is never known exactly: it was pending at one poll, and finished at the next. Such bounds are
stored for some batches of each model; from them comes the distribution of times that explains them best (Turnbull's
estimate, by expectation maximisation, over buckets of age). The one rule: poll when a third (`SHARE`) of the batches
that were still pending at this age can be expected to be finished.

For a model never seen before, the assumption is that two in five of the pending batches finish before they are twice as
old; the rule then polls at 2 s, 4 s, 8 s and so on. The assumption counts as a third of a batch among the stored ones.
So it decides at ages for which nothing is known, and when the bounds have become too wide to tell, because every batch
was finished at its first poll: one of the next batches is then polled sooner, and shows whether the model became
faster.

Where batches are seen to finish in the order in which they were accepted, and some take much longer than others, as in
a queue, none is polled while an earlier one was just found pending, by whichever function.

While nothing at all is known about a model, only the first batches of a job are polled this early. The others wait
longer for their first poll: by then the first ones have shown how long the model takes, with a few calls instead of
many.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from math import log

FIRST_POLL_SECONDS = 2.0
"""Seconds from acceptance to the first poll of the first batch of a model never seen."""
MIN_SECONDS, MIN_SHARE, MAX_SECONDS = 0.6, 0.15, 900.0
"""Seconds between two polls of one batch, and the share of its age that passes between them at least."""
MAX_FIRST_SECONDS = 300.0
"""Maximum seconds from acceptance to the first poll: a stall that is over must not hide a fast model."""
HELD_POLL_SECONDS = 300.0
"""Seconds to the next poll of a batch of a paused job that is to be submitted again."""
SHARE = 0.38
"""The share of the batches still pending that should be finished at the next poll. A larger one: fewer, later calls."""
ASSUMED_SHARE, GROWTH = 0.4, 2.0
"""While nothing is known: the share of the pending batches that finish before they are this many times as old."""
SCOUTS, LATER_FIRST = 6, 22.0
"""While nothing is known: batches of a job polled early, and seconds from acceptance to the others' first poll."""
JITTER = 0.1
SAMPLES = 40
"""Bounds stored for one model; with them its item stays under 1 KB, one write unit."""
SAMPLE_LIFE_SECONDS, LONG_LIFE_SECONDS = 14 * 86_400, 6 * 3_600
"""Seconds for which bounds count, and those of long batches: yesterday's stall says nothing about today."""
LONG_SECONDS = 900.0
"""Seconds from which on a batch counts as long."""
REST_SECONDS, HALVED_SECONDS = 6 * 3_600, 60.0
"""Seconds without a new bound after which a job's first batch is polled once at half of its time, if that time is at
least the second of them: for less, a model that became quicker is seen soon enough."""
SAMPLED_FIRST, SAMPLED_ONE_IN = 40, 8
"""Batches of a job that are sampled: this many first ones, then one in this many."""
ASSUMED_WEIGHT = 0.3
LEAST_SECONDS = 0.25
"""By how much a batch is at least older when it is found finished than when it was last seen pending."""
ROUNDS = 6
"""Iterations of the estimate. Stopped early, it stays smooth; more of them turn chance into narrow peaks."""

ORDER_LIFE_SECONDS, ORDER_APART_SECONDS = 3_600.0, 5.0
"""Seconds for which bounds tell of the order, and seconds between two acceptances that count as one after the other."""
MIN_IN_ORDER, MAX_OUT_OF_ORDER = 20, 0.02
"""Pairs of batches that must have finished in order, and the share that may not have."""
MIN_TIMES_LONGER = 1.75
"""How many times longer the slowest eighth of them took than the quickest: otherwise their times alone tell enough."""
SEEN_SECONDS = 25.0
"""Seconds for which a batch that was found pending holds back those behind it."""
MIN_BEHIND_SECONDS, MAX_BEHIND_SECONDS = 10.0, 120.0
"""The shortest and the longest time for which one of them waits."""
MAX_IN_ORDER_SECONDS = 60.0
"""Seconds between two polls of one batch at most: only the earliest is polled, and all others wait for it."""
ASKED_ANYWAY = 0.03
"""The share of them that is polled all the same, to see whether the model still works in order."""

START, STEPS = FIRST_POLL_SECONDS / GROWTH, 14
BUCKET: float = GROWTH ** (1 / STEPS)
"""Upper edge of a bucket of age, as a multiple of its lower edge."""
EDGES = (0.0, *(START * GROWTH ** (step / STEPS) for step in range(-28, 232)))
"""Lower edges of the buckets of age: from a quarter of a second to a day in steps of a twentieth; the last is open.
"""

Bound = tuple[float, float, int]
"""One batch: its age when last seen pending (0: never), its age when first seen finished, and when that was."""
Sighting = tuple[float, float]
"""When a batch was found pending, and when it had been accepted, Unix seconds."""
Distribution = tuple[float, ...]
"""For each bucket of age, the share of batches that take that long."""


def _assumed() -> Distribution:
    power = log(1 - ASSUMED_SHARE) / log(GROWTH)
    left = [(max(edge, START) / START) ** power for edge in EDGES]
    return tuple(here - above for here, above in pairwise((*left, 0.0)))


ASSUMED = _assumed()


def is_sampled(number: str) -> bool:
    """Whether a batch of this number is sampled: the choice does not depend on how long the batch took.

    Sampling the batches that are found finished first, or last, would give too short or too long a time.
    """
    ordinal = int(number[:8])
    return ordinal < SAMPLED_FIRST or ordinal % SAMPLED_ONE_IN == 0


def distribution(bounds: tuple[Bound, ...], now: float) -> Distribution:
    """How long batches take, as far as the stored bounds show."""
    intervals = [
        (bisect_right(EDGES, max(after, 0)) - 1, bisect_left(EDGES, max(by, after + LEAST_SECONDS, LEAST_SECONDS)))
        for after, by, at in bounds
        if now - at < (SAMPLE_LIFE_SECONDS if by <= LONG_SECONDS else LONG_LIFE_SECONDS)
    ]
    if not intervals:
        return ASSUMED
    shares = [1 / len(EDGES)] * len(EDGES)
    for _ in range(ROUNDS):
        below = [0.0, *accumulate(shares)]
        steps = [0.0] * (len(EDGES) + 1)
        for low, high in intervals:
            factor = 1 / max(below[high] - below[low], 1e-9)
            steps[low] += factor
            steps[high] -= factor
        shares = [
            (share * max(factor, 0.0) + ASSUMED_WEIGHT * assumed) / (len(intervals) + ASSUMED_WEIGHT)
            for share, factor, assumed in zip(shares, accumulate(steps[:-1]), ASSUMED, strict=True)
        ]
    return tuple(shares)


def is_in_order(bounds: tuple[Bound, ...], now: float) -> bool:
    """Whether batches were lately seen to finish in the order in which they were accepted, hardly one before another.

    Not if all took about as long: then there is an order, too, but no queue.

    Of two batches that were outstanding at the same time, the later one was seen pending when the earlier one was seen
    finished, or the earlier one was seen pending when the later one was seen finished; other pairs tell nothing.
    """
    seen = [(at - by, at - by + after, at) for after, by, at in bounds if now - at < ORDER_LIFE_SECONDS]
    ages = sorted(by for _, by, at in bounds if now - at < ORDER_LIFE_SECONDS)
    if not ages or ages[len(ages) * 7 // 8] < MIN_TIMES_LONGER * ages[len(ages) // 8]:
        return False
    kept = broken = 0
    for accepted, pending, finished in seen:
        for later, later_pending, later_finished in seen:
            if accepted + ORDER_APART_SECONDS < later < finished:
                broken += pending >= later_finished
                kept += later_pending >= finished
    return kept >= MIN_IN_ORDER and broken <= MAX_OUT_OF_ORDER * (kept + broken)


def earlier_pending(known: Sighting | None, other: Sighting) -> Sighting:
    """Of two sightings the one that holds back more: of the batch accepted first, unless the other one is too old."""
    both = [known, other] if known else [other]
    newest = max(seen for seen, _ in both)
    return min((one for one in both if newest - one[0] < SEEN_SECONDS), key=lambda one: (one[1], -one[0]))


def seconds_behind(pending: Sighting | None, accepted: float, now: float) -> float:
    """Seconds for which a batch of a model that works in order is not polled; 0 if none is known to be before it.

    Args:
        pending: the earliest batch that was just found pending.
        accepted: when the batch was accepted.
        now: Unix seconds.
    """
    if pending is None or now - pending[0] >= SEEN_SECONDS or pending[1] >= accepted - 1.0:
        return 0.0
    return min(max(accepted - pending[1], MIN_BEHIND_SECONDS), MAX_BEHIND_SECONDS)


def first_poll(of: Distribution, number: str, chance: float, *, rested: bool = False) -> float:
    """Seconds from acceptance to the first poll of a batch.

    Args:
        of: how long batches of its model take.
        number: its number.
        chance: as for `next_poll`.
        rested: whether what is known is old: then a job's first batch shows whether the model became quicker.
    """
    wait = next_poll(of, 0.0, chance)
    if rested and wait >= HALVED_SECONDS and int(number[:8]) == 0:
        return wait / 2
    if of == ASSUMED and int(number[:8]) >= SCOUTS:
        return max(wait, LATER_FIRST * (1 + JITTER * chance))
    return wait


def percentile(of: Distribution, share: float) -> float:
    """The age, in seconds, at which this share of the batches is finished: the lower edge of its bucket."""
    bucket = bisect_left([*accumulate(of)], share)
    edge: float = EDGES[min(bucket, len(EDGES) - 1)]
    return edge


def next_poll(of: Distribution, age: float, chance: float, *, in_order: bool = False) -> float:
    """Seconds until a batch that is pending at this age is polled.

    Args:
        of: how long batches of its model take.
        age: seconds since the API accepted it.
        chance: random, from 0 to 1: spreads batches that were accepted together.
        in_order: whether they finish in the order in which they were accepted.
    """
    bucket = bisect_right(EDGES, max(age, 0.0)) - 1
    if bucket + 1 == len(EDGES):
        wait = MAX_SECONDS
    else:
        low, high = EDGES[bucket], EDGES[bucket + 1]
        above = sum(of[bucket + 1 :])
        left = (above + of[bucket] * (high - age) / (high - low)) * (1 - SHARE)
        # A tiny tolerance, because sums of floats miss the exact tie of the assumed distribution.
        while above > left * (1 + 1e-9) and bucket + 2 < len(EDGES):
            bucket += 1
            above -= of[bucket]
        wait = EDGES[bucket + 1] - age
    latest = min(MAX_IN_ORDER_SECONDS if in_order else MAX_SECONDS, max(age, MAX_FIRST_SECONDS))
    return min(max(wait, MIN_SECONDS, MIN_SHARE * age), latest / (1 + JITTER)) * (1 + JITTER * chance)

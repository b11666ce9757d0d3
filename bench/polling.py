"""`python -m bench.polling`: simulates when to poll a batch; writes bench/polling.md.

It runs the product's own rule at the product's rates, on its own clock: nothing waits, no API is
called, and the same seed gives the same table.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shared.pacing import cadence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Ready = Callable[[float, random.Random], float]
    """When a batch is finished that was accepted at a time."""

WRITTEN = Path(__file__).with_suffix(".md")
MINUTE, HOUR = 60.0, 3_600.0
CALLS_PER_MINUTE, BURST, SUBMIT_BURST = 200, 100, 50
OUTSTANDING = 1_500
"""Submits stop while so many batches are pending."""
MIN_WAIT = 5.0
"""Seconds between two polls of the ways without memory."""
GAP = 127.0
"""Seconds from the beginning of one job to that of the next, of those that follow each other."""
SEEDS = range(8)


# ── how long the API takes ────────────────────────────────────────────────────────────────────────


def evenly(least: float, most: float) -> Ready:
    """Each time between two is as likely."""
    return lambda at, chance: at + chance.uniform(least, most)


def around(median: float, sigma: float = 0.5) -> Ready:
    """A lognormal distribution."""
    return lambda at, chance: at + median * chance.lognormvariate(0, sigma)


def one_in_ten(usual: Ready, slow: Ready) -> Ready:
    """Most batches are as usual."""
    return lambda at, chance: (usual if chance.random() < 0.9 else slow)(at, chance)


def changing(before: Ready, after: Ready, changes_at: float = 2 * HOUR) -> Ready:
    """A model that became faster or slower at a time."""
    return lambda at, chance: (before if at < changes_at else after)(at, chance)


def stalled(at: float, chance: random.Random) -> float:
    """Nothing for ten hours, then all at once; after that, 33 s each."""
    return at + 33 if at > 10 * HOUR else 10 * HOUR + chance.uniform(0, 60)


REALISTIC = evenly(5, 90)
"""Of the targets."""
WORLDS: dict[str, Ready] = {
    "5 to 90 s, evenly": REALISTIC,
    "33 s, always": evenly(33, 33),
    "around 1 minute": around(60),
    "around 2 minutes": around(120),
    "around 5 minutes": around(300),
    "1 to 10 minutes, evenly": evenly(60, 600),
    "1 minute, one in ten an hour": one_in_ten(around(60, 0.2), around(HOUR, 0.2)),
    "5 minutes, from the third hour on 30 s": changing(around(300, 0.2), around(30, 0.2)),
    "30 s, from the third hour on 5 minutes": changing(around(30, 0.2), around(300, 0.2)),
    "2 to 6 s, from the third hour on 5 to 90 s": changing(evenly(2, 6), REALISTIC),
}
QUICK: dict[str, Ready] = {
    "0.5 s, always": evenly(0.5, 0.5),
    "1 to 3 s, evenly": evenly(1, 3),
    "5 to 12 s, evenly": evenly(5, 12),
}


# ── ways to poll ──────────────────────────────────────────────────────────────────────────────────


class EveryMinute:
    """Polls every batch each minute."""

    def wait(self, age: float, now: float, chance: float) -> float:  # noqa: ARG002
        """Seconds until the next poll of a batch that was found pending at this age."""
        return MINUTE

    def first(self, number: int, now: float, chance: float) -> float:  # noqa: ARG002
        """Seconds until the first poll of a batch that was just accepted."""
        return self.wait(0.0, now, chance)

    def finished(self, bound: cadence.Bound, chance: float) -> None:
        """Note that a batch was found finished."""


class Doubling(EveryMinute):
    """Waits as long as the batch is old, between 5 s and 15 minutes."""

    def wait(self, age: float, now: float, chance: float) -> float:  # noqa: ARG002
        """Its age."""
        return min(max(age, MIN_WAIT), cadence.MAX_WAIT) * (0.9 + 0.2 * chance)


@dataclass
class Learned(EveryMinute):
    """The product's own way."""

    bounds: list[cadence.Bound] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    read_at: float = 0.0

    def wait(self, age: float, now: float, chance: float) -> float:
        """By the remembered times."""
        self._read(now)
        return cadence.next_poll(self.times, age, chance)

    def first(self, number: int, now: float, chance: float) -> float:
        """The same; of a new model, only the first batches are polled early."""
        self._read(now)
        return cadence.first_poll(self.times, f"{number:08d}", chance)

    def finished(self, bound: cadence.Bound, chance: float) -> None:
        """Remember it."""
        slot = int(chance * cadence.SLOTS)
        self.bounds[slot : slot + 1] = [bound]

    def _read(self, now: float) -> None:
        every = cadence.READ_EVERY if self.times else cadence.READ_UNKNOWN_EVERY
        if now - self.read_at >= every:
            self.times, self.read_at = cadence.times_of(tuple(self.bounds), now), now


WAYS: dict[str, Callable[[], EveryMinute]] = {
    "every minute": EveryMinute,
    "back-off, doubling": Doubling,
    "learned": Learned,
}


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Found:
    """The result of runs: polls of each batch, and seconds from ready to collected."""

    polls: list[int] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)

    @property
    def calls(self) -> float:
        """Calls for each batch, the submit included."""
        return 1 + statistics.fmean(self.polls)

    def cell(self) -> str:
        """Calls for each batch; the median and the 95th percentile of the delays."""
        late = sorted(self.delays)[int(0.95 * (len(self.delays) - 1))]
        return f"{self.calls:.2f} / {statistics.median(self.delays):.0f} / {late:.0f}"

    def add(self, other: Found) -> None:
        """Add another run's."""
        self.polls += other.polls
        self.delays += other.delays


class Bucket:
    """The shared rate budget."""

    def __init__(self) -> None:
        """Start with a full bucket."""
        self.interval = MINUTE / CALLS_PER_MINUTE
        self.filled_at = 0.0

    def free_at(self, now: float, burst: int) -> float:
        """The earliest time from `now` on at which a call within this burst is allowed."""
        return max(now, self.filled_at - (burst - 1) * self.interval)

    def take(self, now: float) -> None:
        """Take the token of one call."""
        self.filled_at = max(self.filled_at, now) + self.interval


def run(way: EveryMinute, jobs: Sequence[tuple[float, int]], ready: Ready, seed: int = 1) -> Found:
    """Submit and poll until everything is collected.

    Args:
        way: decides when to poll.
        jobs: when each job begins, and its number of batches.
        ready: returns when the API has finished a batch.
        seed: the seed of all random numbers.
    """
    chance, bucket, found = random.Random(seed), Bucket(), Found()
    waiting = deque((begins, number) for begins, count in jobs for number in range(count))
    due: list[tuple[float, float, float, float, int]] = []
    """When to poll, accepted, finished, age last seen pending, polls."""
    while due or waiting:
        poll_at = bucket.free_at(due[0][0], BURST) if due else float("inf")
        if waiting and len(due) < OUTSTANDING:
            at = bucket.free_at(waiting[0][0], SUBMIT_BURST)
            if at < poll_at:
                _, number = waiting.popleft()
                bucket.take(at)
                first = at + way.first(number, at, chance.random())
                heapq.heappush(due, (first, at, ready(at, chance), 0.0, 0))
                continue
        _, accepted, finished, after, polls = heapq.heappop(due)
        bucket.take(poll_at)
        age = poll_at - accepted
        if poll_at >= finished:
            found.polls.append(polls + 1)
            found.delays.append(poll_at - finished)
            bound = (cadence.stored_age(after), cadence.stored_age(age), int(poll_at))
            way.finished(bound, chance.random())
        else:
            following = poll_at + way.wait(age, poll_at, chance.random())
            heapq.heappush(due, (following, accepted, finished, age, polls + 1))
    return found


def in_a_row(jobs: int = 5, batches: int = 40, seeds: int = 60) -> list[list[Found]]:
    """Jobs right after each other, the first on a new model: of each, its result by seed."""
    found: list[list[Found]] = [[] for _ in range(jobs)]
    for seed in range(seeds):
        way = Learned()
        for place, results in enumerate(found):
            begun = [(place * GAP, batches)]
            results.append(run(way, begun, REALISTIC, seed=1_000 * seed + place))
    return found


def by_way(
    worlds: dict[str, Ready], jobs: Sequence[tuple[float, int]], seeds: Sequence[int] = SEEDS
) -> str:
    """A table: each way in each world; the first job, on a new model, is not counted."""
    rows = []
    for name, ready in worlds.items():
        cells = []
        for make in WAYS.values():
            found = Found()
            for seed in seeds:
                way = make()
                run(way, jobs[:1], ready, seed)
                found.add(run(way, jobs[1:], ready, 100 + seed))
            cells.append(found.cell())
        rows.append([name, *cells])
        print(" | ".join(rows[-1]), flush=True)
    return table(["time to finish", *WAYS], rows)


def new_and_large() -> str:
    """A table of one job of 2,000 batches on a new model."""
    rows = [
        [name, *(run(make(), [(0.0, 2_000)], ready).cell() for make in WAYS.values())]
        for name, ready in WORLDS.items()
        if "third hour" not in name
    ]
    return table(["time to finish", *WAYS], rows)


def after_a_stall() -> str:
    """A table of a job that stalls, and of the one after it."""
    rows = [["20 batches that stall"], ["the job after them"]]
    for make in WAYS.values():
        way = make()
        rows[0].append(run(way, [(0.0, 20)], stalled).cell())
        rows[1].append(run(way, [(11 * HOUR, 20)], stalled).cell())
    return table(["", *WAYS], rows)


def jobs_in_a_row() -> str:
    """A table of five jobs right after each other: means, and nine jobs in ten."""
    rows = [["mean"], ["calls, nine in ten"], ["median, nine in ten"]]
    for results in in_a_row():
        whole = Found()
        for one in results:
            whole.add(one)
        rows[0].append(whole.cell())
        rows[1].append(_nine_in_ten([one.calls for one in results], 2))
        rows[2].append(_nine_in_ten([statistics.median(one.delays) for one in results], 0))
    return table(["", *(f"job {place}" for place in range(1, len(rows[0])))], rows)


def _nine_in_ten(values: list[float], digits: int) -> str:
    """The range without the lowest and the highest twentieth."""
    ordered, twentieth = sorted(values), len(values) // 20
    return f"{ordered[twentieth]:.{digits}f} to {ordered[-1 - twentieth]:.{digits}f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


TEXT = f"""\
# When to poll a batch

Without completion events ([events.md](events.md) has both ways). Written by `python -m
bench.polling`, a simulation; do not edit. Each cell: API calls per batch, the submit included, and
seconds from ready to collected, the median and the 95th percentile. At most {CALLS_PER_MINUTE}
calls a minute. *Around*: lognormal, sigma 0.5.

## Five jobs of 40 batches of 5 to 90 s, one right after the other, the first on a new model

The targets: at most 4 calls per batch in the first job, 3.3 in the others, and a median of 20 s.

{{in_a_row}}

## Jobs of 20 batches, one every 20 minutes, from the second on

{{regular}}

## Quick models: jobs of one batch, one every 20 minutes, from the second on

{{quick}}

## One job of 2,000 batches, on a new model

{{large}}

## The API stalls for ten hours; then batches take 33 s again

{{stall}}
"""


def main() -> None:
    """Simulate, print and write."""
    quick = [(1_200.0 * job, 1) for job in range(12)]
    text = TEXT.format(
        in_a_row=jobs_in_a_row(),
        regular=by_way(WORLDS, [(1_200.0 * job, 20) for job in range(12)]),
        quick=by_way(QUICK, quick),
        large=new_and_large(),
        stall=after_a_stall(),
    )
    WRITTEN.write_text(text)


if __name__ == "__main__":
    main()

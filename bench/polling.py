"""`python -m bench.polling`: simulates when to poll a batch; writes bench/polling.md.

It runs the product's own rule at the product's rates, on its own clock, beside two simple ways:
nothing waits, no API is called, and the same seed gives the same table.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.timing import grid, written_by
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
GAP = 127.0
"""Seconds from the beginning of one job to that of the next, of those that follow each other."""


# ── how long the API takes ────────────────────────────────────────────────────────────────────────


def evenly(least: float, most: float) -> Ready:
    """Each time between two is as likely."""
    return lambda at, chance: at + chance.uniform(least, most)


def around(median: float, sigma: float = 0.5) -> Ready:
    """A lognormal distribution."""
    return lambda at, chance: at + median * chance.lognormvariate(0, sigma)


def one_in_ten_an_hour(at: float, chance: random.Random) -> float:
    """A minute, or an hour."""
    return around(MINUTE if chance.random() < 0.9 else HOUR, 0.2)(at, chance)


def faster_later(at: float, chance: random.Random) -> float:
    """A model that became faster in the third hour."""
    return around(300 if at < 2 * HOUR else 30, 0.2)(at, chance)


REALISTIC = evenly(5, 90)
"""Of the targets."""
WORLDS: dict[str, Ready] = {
    "1 to 3 s, evenly": evenly(1, 3),
    "5 to 90 s, evenly": REALISTIC,
    "33 s, always": evenly(33, 33),
    "around 2 minutes": around(120),
    "1 to 10 minutes, evenly": evenly(60, 600),
    "1 minute, one in ten an hour": one_in_ten_an_hour,
    "5 minutes, from the third hour on 30 s": faster_later,
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
        return min(max(age, 5.0), cadence.MAX_WAIT) * (0.9 + 0.2 * chance)


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


def _rows() -> list[list[str]]:
    """Each way in each world; the first job, on a new model, is not counted."""
    jobs, rows = [(20 * MINUTE * job, 20) for job in range(12)], []
    for name, ready in WORLDS.items():
        cells = []
        for make in WAYS.values():
            found = Found()
            for seed in range(8):
                way = make()
                run(way, jobs[:1], ready, seed)
                found.add(run(way, jobs[1:], ready, 100 + seed))
            cells.append(found.cell())
        rows.append([name, *cells])
    return rows


_TEXT = """\
# When to poll a batch

Without completion events ([events.md](events.md) has both). {written}
A simulation: each cell has
API calls per batch, the submit included, and seconds from ready to collected, the median and the
95th percentile. At most {calls} calls a minute. *Around*: lognormal, sigma 0.5.

## Five jobs of 40 batches of 5 to 90 s, one right after the other, the first on a new model

The targets: at most 4 calls per batch in the first job, 3.3 in the others, and a median of 20 s.

{in_a_row}

## Jobs of 20 batches, one every 20 minutes, from the second on

{regular}
"""


def main() -> None:
    """Simulate and write."""
    jobs = []
    for results in in_a_row():
        whole = Found()
        for one in results:
            whole.add(one)
        jobs.append(whole.cell())
    text = _TEXT.format(
        written=written_by("python -m bench.polling"),
        calls=CALLS_PER_MINUTE,
        in_a_row=grid([f"job {place}" for place in range(1, len(jobs) + 1)], [jobs]),
        regular=grid(["time to finish", *WAYS], _rows()),
    )
    WRITTEN.write_text(text)


if __name__ == "__main__":
    main()

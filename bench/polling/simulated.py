"""`python -m bench.polling.simulated`: simulates ways to decide when to poll a batch.

Writes `bench/polling.md`.

It runs the product's own policy at the product's rates, on its own clock: nothing waits, no API is
called, and the same seed gives the same table. Faults and the duration of calls and rounds (about a
second) are not simulated.
"""

from __future__ import annotations

import heapq
import json
import random
import statistics
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.polling import on_stack
from bench.polling.ways import (
    MINUTE,
    Apart,
    EveryMinute,
    Forgetful,
    Growing,
    Knowing,
    Late,
    Learned,
    Unordered,
    Way,
)
from bench.polling.worlds import (
    EIGHT_AT_A_TIME,
    HOUR,
    QUICK_WORLDS,
    REALISTIC,
    STALL,
    WORLDS,
    World,
)
from shared.pacing import poll_schedule as cadence
from shared.pacing.completion_times import stored_age

if TYPE_CHECKING:
    from collections.abc import Callable

WRITTEN = Path(__file__).parents[1] / "polling.md"
CALLS_PER_MINUTE, BURST, SUBMIT_BURST = 200, 100, 50
OUTSTANDING = 1_500
"""The budget's limit with the template's defaults.

Submits stop while this many batches are pending.
"""
TICK, LOOKS = 60.0, 52.0
"""Seconds between two ticks, and seconds that a tick works.

A job's first batches are polled by message at any time.
"""
FAST_BATCHES = 20


GAP_SECONDS, GAP_SEEDS = 127.0, 60
"""Seconds from the beginning of one job to that of the next, as on the local stack.

Where each begins when the one
before is over.
"""


@dataclass
class Found:
    """The result of a run."""

    polls: list[int] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)

    def cell(self, digits: int = 1, tenths: int = 0) -> str:
        """API calls per batch, submit included.

        Seconds from ready to collected, median and 95th percentile.
        """
        late = sorted(self.delays)[int(0.95 * (len(self.delays) - 1))]
        middle = statistics.median(self.delays)
        return (
            f"{1 + statistics.fmean(self.polls):.{digits}f} / {middle:.{tenths}f} / "
            f"{late:.{tenths}f}"
        )


class Bucket:
    """The shared rate budget, as `shared/pacing/budget.py` keeps it."""

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


def run(
    way: Way,
    jobs: list[tuple[float, int]],
    ready: Callable[[float, random.Random], float],
    seed: int = 1,
) -> Found:
    """Submit and poll until everything is collected.

    Args:
        way: decides when to poll.
        jobs: when each job begins, and its number of batches.
        ready: returns when the API has finished a batch.
        seed: the seed of all random numbers.
    """
    chance = random.Random(seed)
    bucket, found = Bucket(), Found()
    waiting = deque((begins, number) for begins, count in jobs for number in range(count))
    due: list[tuple[float, float, float, float, int, int]] = []
    """When to poll, accepted, finished, age last seen pending, polls, number."""
    submit_at = 0.0
    while due or waiting:
        poll_at = bucket.free_at(due[0][0], BURST) if due else float("inf")
        if waiting and len(due) < OUTSTANDING:
            at = bucket.free_at(max(submit_at, waiting[0][0]), SUBMIT_BURST)
            if at < poll_at:
                _, number = waiting.popleft()
                bucket.take(at)
                submit_at = at + MINUTE / CALLS_PER_MINUTE
                first = at + way.first(number, at, chance.random())
                heapq.heappush(
                    due,
                    (
                        first if number < FAST_BATCHES else _look(first),
                        at,
                        ready(at, chance),
                        0.0,
                        0,
                        number,
                    ),
                )
                continue
        _, accepted, finished, after, polls, number = heapq.heappop(due)
        if wait := way.behind(accepted, poll_at):
            heapq.heappush(due, (_look(poll_at + wait), accepted, finished, after, polls, number))
            continue
        bucket.take(poll_at)
        if len(due) + 1 == OUTSTANDING:
            submit_at = max(submit_at, poll_at)
        age = poll_at - accepted
        if poll_at >= finished:
            found.polls.append(polls + 1)
            found.delays.append(poll_at - finished)
            way.finished(
                number, (stored_age(after), stored_age(age), int(poll_at)), chance.random()
            )
        else:
            way.pending(accepted, poll_at)
            following = _look(poll_at + way.wait(age, poll_at, chance.random()))
            heapq.heappush(due, (following, accepted, finished, age, polls + 1, number))
    return found


def _look(at: float) -> float:
    """When a tick finds what is due at `at`: no tick works in the last seconds of its minute."""
    return at if at % TICK < LOOKS else (at // TICK + 1) * TICK


def true_spread(world: World) -> cadence.Distribution:
    """The distribution of the times that batches really take."""
    chance, ready, many = random.Random(0), world.ready(), 20_000
    shares = [1e-6 * share for share in cadence.ASSUMED]
    for _ in range(many):
        shares[bisect_right(cadence.EDGES, ready(0.0, chance)) - 1] += 1 / many
    return tuple(shares)


WAYS: dict[str, Callable[[], Way]] = {
    "every minute": EveryMinute,
    "back-off, doubling": lambda: Growing(1.0),
    "half of the age": lambda: Growing(0.5),
    "learned": Learned,
}
SEEDS = 8
ORDERED_SEEDS = range(100, 116)
"""Others than those with which the rule for batches that finish in order was chosen."""
DAILY, DAILY_LARGER = ([(86_400.0 * day, count) for day in range(7)] for count in (1, 20))
REGULAR = [(1_200.0 * job, 20) for job in range(12)]
ONE_LARGE = [(0.0, 2_000)]


def row(name: str, world: World, jobs: list[tuple[float, int]]) -> list[str]:
    """One row: every way in one world."""
    cells = [run(make(), jobs, world.ready()).cell() for make in WAYS.values()]
    known = (
        run(Knowing(true_spread(world)), jobs, world.ready()).cell() if world.independent else "-"
    )
    print(" | ".join([name, *cells, known]))
    return [name, *cells, known]


def stalled(name: str, count: int) -> list[str]:
    """One row: a stall with `count` batches."""
    cells = [
        "-"
        if make is EveryMinute and count > FAST_BATCHES
        else run(make(), [(0.0, count)], STALL.ready()).cell()
        for make in WAYS.values()
    ]
    print(" | ".join([name, *cells]))
    return [name, *cells, "-"]


def next_day() -> list[str]:
    """One row: the job after a stall, with the times of its 20 batches still remembered."""
    cells = []
    for make in WAYS.values():
        way = make()
        run(way, [(0.0, FAST_BATCHES)], STALL.ready())
        cells.append(run(way, [(11 * HOUR, FAST_BATCHES)], STALL.ready()).cell())
    print(" | ".join(["the job after it", *cells]))
    return ["the job after it", *cells, "-"]


def compared(
    ways: tuple[Callable[[], Way], ...], worlds: tuple[World, ...], jobs: list[tuple[float, int]]
) -> str:
    """A table of two ways for the same jobs, from the second on.

    Of all seeds together, with tenths of a second.
    """
    rows = []
    for world in worlds:
        cells = []
        for make in ways:
            found = Found()
            for seed in range(SEEDS):
                way = make()
                run(way, jobs[:1], world.ready(), seed)
                for place, job in enumerate(jobs[1:]):
                    later = run(way, [job], world.ready(), 100 * seed + place)
                    found.polls += later.polls
                    found.delays += later.delays
            cells.append(found.cell(2, 1))
        rows.append([world.name, *cells])
        print(" | ".join(rows[-1]), flush=True)
    return _table(["time to finish", "before", "now"], rows)


def _compared_at_once() -> str:
    """A table of batches that are held back, by what one process knows or by what all know.

    Or not.
    """
    worlds = (
        *(world for world in WORLDS if world.name.startswith("in order")),
        EIGHT_AT_A_TIME,
        *WORLDS[:3],
    )
    rows = []
    for world in worlds:
        cells = []
        for make in (Unordered, Apart, Learned):
            found = Found()
            for seed in ORDERED_SEEDS:
                one = run(make(), [(0.0, 1_000)], world.ready(), seed)
                found.polls += one.polls
                found.delays += one.delays
            cells.append(found.cell(2))
        rows.append([world.name, *cells])
        print(" | ".join(rows[-1]), flush=True)
    return _table(["time to finish", "not held back", "each process alone", "now"], rows)


def in_a_row(jobs: int = on_stack.JOBS, seeds: int = GAP_SEEDS) -> list[list[Found]]:
    """Jobs right after each other, the first on a new model.

    For each of them, its result with each seed.
    """
    found: list[list[Found]] = [[] for _ in range(jobs)]
    for seed in range(seeds):
        way = Learned()
        for place, results in enumerate(found):
            begins = place * GAP_SECONDS
            results.append(
                run(way, [(begins, on_stack.BATCHES)], REALISTIC.ready(), seed=1_000 * seed + place)
            )
    return found


def _rows_in_a_row() -> list[list[str]]:
    """Means and ranges of the simulation, and what was measured on the stack."""
    found = in_a_row()
    means, calls, medians = (
        ["simulation"],
        ["calls, nine jobs in ten"],
        ["median, nine jobs in ten"],
    )
    for results in found:
        means.append(
            Found(
                [n for one in results for n in one.polls],
                [s for one in results for s in one.delays],
            ).cell(2)
        )
        calls.append(_nine_in_ten([1 + statistics.fmean(one.polls) for one in results], 2))
        medians.append(_nine_in_ten([statistics.median(one.delays) for one in results], 0))
    measured = json.loads(on_stack.FIGURES.read_text())
    head = ["", *(f"job {place}" for place in range(1, len(found) + 1))]
    on_stacks = [[way, *map(on_stack.cell, jobs)] for way, jobs in measured.items()]
    rows = [head, ["---"] * len(head), means, calls, medians, *on_stacks]
    print(rows)
    return rows


def _nine_in_ten(values: list[float], digits: int) -> str:
    """The range without the lowest and the highest twentieth."""
    ordered, twentieth = sorted(values), len(values) // 20
    return f"{ordered[twentieth]:.{digits}f} to {ordered[-1 - twentieth]:.{digits}f}"


_TEXT = """\
# When to poll a batch

With Cloudflare's completion events most of these polls are left out: [events.md](events.md) has both ways side by side,
with the functions themselves.

Written by `python -m bench.polling.simulated`; do not edit. A simulation, the same everywhere. Each cell
shows API calls per batch, including the submit, and seconds from ready to collected: the median and the 95th
percentile. Submits and polls together make at most {calls} calls a minute; submits stop while {outstanding:,} batches
are pending. *Around* means a lognormal distribution: with sigma 0.5, two thirds of the batches are between 0.6 and 1.65
times the median. *Knowing* is the rule of *learned* with the true distribution given in advance: the best that learning
can reach.

## Five jobs of 40 batches that finish after 5 to 90 s, one right after the other, the first on a new model

The targets: at most 4 calls per batch in the first job and 3 in the others, and the median answer collected within
20 s. One job of 40 batches says little: what the first one teaches depends on when its batches happened to be polled.
So the simulation also shows the range of nine jobs in ten, from {gap_seeds} seeds. *Local stack*: one run of
`python -m bench.polling.on_stack`, with real processes, queues and ticks.

{in_a_row}

## Jobs of 20 batches, one every 20 minutes, 12 times

The first job is on a new model.

{regular}

## A job each day, from the second day on

*Before*: whatever a batch took was forgotten after six hours. *Now* it counts for two weeks, if it took at most 15
minutes. A job's first batch is then polled once at half of its time, if that is a minute or more: a model that became
quicker is seen. One batch a day:

{daily}

20 batches a day:

{daily_larger}

## Quick models: jobs of one batch, one every 20 minutes, from the second on

*Before*: no poll came sooner than after five seconds. *Now* the first one comes from 0.6 s on where the model was seen
that quick, and after 2 s for a new one.

{quick}

## Batches that finish in order: one job of 1,000

*Not held back*: each batch is polled at its time. *Now*, where batches of a model were seen to finish in the order in
which they were accepted, and some took much longer than others, none is polled while an earlier one was just found
pending. Three processes poll in turn; each knows at once what it has found itself, and after at most 3 s what others
have found. *Each process alone*: it never knows that. The targets: at most 3.0 calls, and a median that is at most 2 s
longer than without; the slowest twentieth waits longer. *8 at a time*: of 10 s each (median, sigma 0.3).

{ordered}

## One job of 2,000 batches, on a new model

{large}

## By number of batches: around 2 minutes (sigma 0.5), on a new model

{counts}

## The API stalls

No batch finishes for 10 hours, then all finish within a minute; after that, batches take 33 s again. *The job after it*
begins an hour later and has 20 batches, like the stalled job, whose completion times are still remembered.

{stall}
"""


def main() -> None:
    """Simulate, print and write."""
    counted = next(world for world in WORLDS if world.name == "around 2 minutes (sigma 0.5)")
    text = _TEXT.format(
        in_a_row="\n".join(f"| {' | '.join(line)} |" for line in _rows_in_a_row()),
        gap_seeds=GAP_SEEDS,
        calls=CALLS_PER_MINUTE,
        outstanding=OUTSTANDING,
        regular=_grid("time to finish", [row(world.name, world, REGULAR) for world in WORLDS]),
        daily=compared((Forgetful, Learned), WORLDS[:6], DAILY),
        daily_larger=compared((Forgetful, Learned), WORLDS[:6], DAILY_LARGER),
        quick=compared((Late, Learned), QUICK_WORLDS, [(1_200.0 * job, 1) for job in range(12)]),
        ordered=_compared_at_once(),
        large=_grid("time to finish", [row(world.name, world, ONE_LARGE) for world in WORLDS[:8]]),
        counts=_grid(
            "batches",
            [row(f"{count:,}", counted, [(0.0, count)]) for count in (1, 20, 2_000, 10_000)],
        ),
        stall=_grid(
            "batches", [stalled("1", 1), stalled("20", 20), stalled("2,000", 2_000), next_day()]
        ),
    )
    WRITTEN.write_text(text)
    print(
        "Written: "
        f"{WRITTEN.relative_to(Path.cwd()) if WRITTEN.is_relative_to(Path.cwd()) else WRITTEN}"
    )


def _grid(first: str, rows: list[list[str]]) -> str:
    return _table([first, *WAYS, "knowing"], rows)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()

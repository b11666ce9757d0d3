"""The process dies at each boundary in turn, or an answer is lost there.

Nothing is lost, nothing paid twice unseen.

Small jobs of every kind pass by: what is read, split, tried again, answered at once. In the
everyday run the plain job dies after every eighth write, and of everything else a thin sample is
taken; `-m faults` takes every fifth write of each job, `-m slow` every boundary there is. A death
before a call is one after the call before it, and a death after a read is one after the last write:
neither is played twice.
"""

from __future__ import annotations

import random

import pytest

from tests.support.fault_table import note
from tests.support.journeys.deaths import ASK, SUBMIT, WRITES, Boundaries, Mode, strike_each
from tests.support.journeys.scenarios import JOURNEYS, Seen, recorded, run

SHARES = 8
"""A matrix is cut in so many tests, for two processors to share."""
MODES: dict[Mode, str] = {
    "before": "death before a call",
    "after": "death after a call",
    "unanswered": "answer of a call lost",
}


def run_once(name: str, boundaries: Boundaries) -> tuple[str, Seen]:
    """One run with one strike: its mode, and what the run came to."""
    seen, passed = run(JOURNEYS[name], boundaries), boundaries.passed
    # Only a death or a lost answer between the API's yes and the table's may cost a second submit;
    # and one between an answer and S3, if the API gives it only once.
    last = boundaries.struck_at - 1 - (boundaries.mode == "before")
    costly = {SUBMIT, ASK} if JOURNEYS[name].answers_once else {SUBMIT}
    assert seen.extra <= (last >= 0 and passed[last] in costly)
    return boundaries.mode, seen


def strike_all(name: str, chosen: list[tuple[int, Mode]]) -> None:
    """One run for each of these strikes; tells the table of faults."""
    struck = strike_each(chosen, lambda boundaries: run_once(name, boundaries))
    for mode, meaning in MODES.items():
        seen = [one for of, one in struck if of == mode]
        lost, twice = sum(one.lost for one in seen), sum(one.twice for one in seen)
        note(meaning, "moto", len(seen), name, lost=lost, twice=twice)


def writes(name: str) -> list[int]:
    return [number for number, call in enumerate(recorded(name), 1) if call in WRITES]


def test_death_after_write_loses_nothing_and_brings_no_second_bill():
    """But for a death between the API's yes and its record, which is counted: see `run_once`."""
    name = next(iter(JOURNEYS))
    strike_all(name, [(number, "after") for number in writes(name)[::8]])


@pytest.mark.parametrize("name", JOURNEYS)
def test_nothing_is_lost_at_some_boundary_of_any_job(name):
    everything = [(number, mode) for number in range(1, len(recorded(name)) + 1) for mode in MODES]
    strike_all(name, random.Random(name).sample(everything, 1))


@pytest.mark.faults
@pytest.mark.parametrize("mode", ["after", "unanswered"])
@pytest.mark.parametrize("name", JOURNEYS)
def test_nothing_is_lost_at_every_fifth_write(name, mode):
    strike_all(name, [(number, mode) for number in writes(name)[list(MODES).index(mode) :: 5]])


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("name", JOURNEYS)
def test_nothing_is_lost_at_any_boundary_of_any_job(name, share):
    everything = [(number, "unanswered") for number in range(1, len(recorded(name)) + 1)]
    everything += [(1, "before"), *((number, "after") for number in writes(name))]
    strike_all(name, everything[share::SHARES])

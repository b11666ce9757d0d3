"""How soon jobs are over on a stack that was idle, without noise: the API takes 2 s for a batch."""

from statistics import median

import pytest

from local.workers_ai import Behaviour, Fault
from shared.pacing.wake import Wakes
from tests.simulation.cloudflare.events import Events
from tests.simulation.worlds.judges import Laws, Promises
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import simulated

FIRST_POLL = 5.0
"""Seconds from a drop until its first poll."""


def seconds_of(seed, sizes, apart):
    """Seconds from drop to end of jobs of so many records, two a batch."""
    settings = {"MAX_REQUESTS_PER_BATCH": 2, "API_CALLS_PER_MINUTE": 200}
    with simulated(seed, behaviour=Behaviour(embedder="hash", latency=2.0), **settings) as world:
        promises = Promises(Laws(world))
        dropped = []
        world.run(90, lambda: world.functions["PollFunction"].invocations == 1)
        world.run(5)  # The next tick is as far away as it can be.
        for number, size in enumerate(sizes):
            dropped.append(drop(world, f"{number}.jsonl", size))
            world.run(apart)
        world.settle(3_600)
        promises.judge_small_drops(dropped, FIRST_POLL + 1)
        seconds = sorted(promises.seconds_of(one) for one in dropped)
        return seconds, world.functions["PollFunction"].invocations, promises.laws.violations


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_small_drops_are_over_soon(seed):
    """As many as are dropped at any second of a minute."""
    _, invocations, violations = seconds_of(seed, [2] * 60, 17.0)

    assert violations == []
    ticks = 90 / 60 + 60 * 17 / 60
    # 1.7 polls a job; a tick that finds one pending wakes for it.
    assert invocations <= 102 + 4 / 3 * ticks + 5


@pytest.mark.parametrize(
    ("sizes", "most"),
    [([140], 40.0), pytest.param([300], 97.0, marks=pytest.mark.slow), ([2] * 100, 50.0)],
)
def test_what_is_left_due_does_not_wait_for_next_tick(sizes, most, monkeypatch):
    """70 or 150 batches of a job, or 100 jobs together: more than the burst of the rate budget."""
    seconds, *_ = seconds_of(1, sizes, 0.0)
    monkeypatch.setattr(Wakes, "plan", lambda *_, **_named: None)
    unwoken, *_ = seconds_of(1, sizes, 0.0)

    assert seconds[-1] <= most < unwoken[-1]


@pytest.mark.parametrize(
    ("size", "bad", "most"), [(7_600, 4_711, 180.0), (2, 1, 90.0)], ids=["7,600 records", "two"]
)
def test_record_that_makes_its_batch_fail_after_acceptance_is_found_soon(size, bad, most):
    """A failure of the whole is believed after a minute, and then that of each piece at once."""
    settings = {"MAX_REQUESTS_PER_BATCH": 8_000, "API_CALLS_PER_MINUTE": 200}
    with simulated(1, behaviour=Behaviour(embedder="hash", latency=2.0), **settings) as world:
        promises = Promises(Laws(world))
        world.inject(Fault(kind="batch_fails", contains=f'"a.jsonl {bad}"', times=0))
        dropped = drop(world, "a.jsonl", size, may_fail=True)
        world.settle(3_600)

        assert promises.seconds_of(dropped) <= most
        assert len(world.api.accepted) <= 1 + 4 * 16
        assert promises.laws.violations == []


def test_job_of_which_every_batch_is_refused_ends_soon_and_reads_little():
    """Batches that wait for others to be divided look rarely: each look reads the whole job."""
    settings = {"MAX_REQUESTS_PER_BATCH": 4, "API_CALLS_PER_MINUTE": 200}
    with simulated(2, behaviour=Behaviour(embedder="hash"), **settings) as world:
        promises, read, real = Promises(Laws(world)), [], world.dynamodb.query
        world.inject(Fault(kind="5006", on="submit", times=0))

        def query(**given):
            read.append(real(**given))
            return read[-1]

        world.dynamodb.query = query
        dropped = drop(world, "a.jsonl", 60 * 4, may_fail=True)
        world.settle(3_600)

        assert promises.seconds_of(dropped) <= 180
        assert sum(page["Count"] for page in read) <= 20_000
        assert len(world.call_times) <= 60 + 64 + 4
        assert promises.laws.violations == []


def test_small_drops_are_as_soon_with_events_as_without():
    """An event comes a second after its batch is done, and is pulled later."""

    def half_of(events):
        behaviour = events.behaviour(Behaviour(embedder="hash", latency=3.0))
        with simulated(1, behaviour=behaviour, **events.settings()) as world:
            promises, dropped = Promises(Laws(world)), []
            for number in range(30):
                dropped.append(drop(world, f"{number}.jsonl", 2))
                world.run(37.0)
            world.settle(3_600)
            return median(promises.seconds_of(one) for one in dropped[10:])

    assert half_of(Events()) <= half_of(Events(is_on=False)) + 0.4

"""What completion events bring, beside the same worlds without; nothing is worse without."""

from statistics import mean

import pytest

from tests.simulation.cloudflare import both_ways
from tests.simulation.cloudflare.events import Events, Hand
from tests.simulation.worlds.plans import Drop, Plan
from tests.simulation.worlds.runs import run

pytestmark = pytest.mark.slow

OFF = Events(is_on=False)


def waits(events, *hands, batches=20):
    """Mean seconds from ready to collected of three jobs of so many batches each."""
    drops = [Drop(600.0 * place, f"{place}.jsonl", 2 * batches) for place in range(3)]
    plan = Plan(
        7,
        latency=40.0,
        settings=(("MAX_REQUESTS_PER_BATCH", 2),),
        acts=(*drops, *hands),
        events=events,
    )
    outcome = run(plan)
    assert outcome.violations == ()
    assert len(outcome.waits) == 3 * batches
    return [mean(outcome.waits[batches * place :][:batches]) for place in range(3)]


def test_answers_are_collected_sooner_with_events():
    with_events, without = waits(Events(), batches=8), waits(OFF, batches=8)
    assert max(with_events[1:]) < 5.5
    assert min(without[1:]) > 10


@pytest.mark.parametrize(
    "events",
    [
        Events(lost=1.0),
        Events(late=1.0),
        Events(refused="403/10000"),
        Events(delay=600.0, spread=0.1),
    ],
)
def test_without_events_nothing_waits_longer(events):
    """Completion times are drawn anew by what is sent, so two runs are the same on average only."""
    assert mean(waits(events)) < 1.25 * mean(waits(OFF)) + 2


@pytest.mark.parametrize("what", ["disable", "delete queue", "worker consumer", "refuse"])
def test_events_that_stop_cost_one_wave_two_minutes(what):
    without, stopped = waits(OFF), waits(Events(), Hand(500.0, what))
    assert stopped[1] < without[1] + 120
    assert stopped[2] < 1.5 * without[2] + 2


@pytest.mark.parametrize("name", both_ways.TIMES)
def test_batches_of_known_models_cost_two_calls(name):
    """Nearly none beside the submit and the poll that its event brings, and one in 15 minutes.

    Without events, three and more.

    These are the worlds of bench/events.md: of one alone, a few polls more or less decide.
    """
    is_slow = name == "an hour, always"
    every = both_ways.SLOW_EVERY_SECONDS if is_slow else both_ways.EVERY_SECONDS
    times = both_ways.TIMES[name]
    found = both_ways.of_all(
        [both_ways.figures(times, Events(), seed=seed, every=every) for seed in both_ways.SEEDS]
    )
    assert found.calls <= (5.1 if is_slow else 2.1)

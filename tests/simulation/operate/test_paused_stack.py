"""A stack that waits for the end of a pause costs little, however many batches wait."""

import pytest

from local.workers_ai import Behaviour, Fault
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import simulated

HOUR = 3_600.0
DAILY = {
    "update_item": 24 * 3 * 0.625e-6,
    "put_item": 24 * 3 * 0.625e-6,
    "query": 24 * 1.5 * 0.125e-6,
}
DAILY |= {
    "batch_get_item": 24 * 5 * 0.125e-6,
    "get_item": 24 * 0.125e-6,
    "head_object": 24 * 0.4e-6,
}
"""US dollars a day of one call an hour."""
MOST_A_DAY = 0.10


@pytest.mark.slow
def test_paused_stack_with_1000_batches_costs_cents_a_day():
    settings = {"MAX_REQUESTS_PER_BATCH": 1, "API_CALLS_PER_MINUTE": 200}
    with simulated(1, behaviour=Behaviour(embedder="hash", latency=3.0), **settings) as world:
        world.inject(Fault(kind="3036", on="submit", times=0))
        for number in range(10):
            drop(world, f"{number}.jsonl", 100, may_fail=True)
        world.run(HOUR / 2)
        lines = []
        world.trace = lines.append
        world.run(HOUR)

    calls = [line.split()[2].rpartition(".")[2] for line in lines]
    assert sum(DAILY.get(call, 0.0) for call in calls) < MOST_A_DAY
    assert 0 < calls.count("update_item") < 1_600

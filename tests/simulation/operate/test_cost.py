"""What a million records, an idle stack and a paused one cost: at their targets."""

import pytest

from bench.cost import EVENTS, JOBS, MILLION, POLLS, idle_rows, memories, of_job, of_tick
from bench.meter import computing
from local.workers_ai import Behaviour, Fault
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import simulated

pytestmark = pytest.mark.slow
TARGET_DOLLARS, TARGET_IDLE_DOLLARS = 0.025, 3.50
WAYS = pytest.mark.parametrize("events", [POLLS, EVENTS], ids=["polls", "events"])


@pytest.fixture(scope="module")
def taken():
    return computing()


@WAYS
def test_million_records_cost_at_most_2_5_cents(taken, events):
    million = of_job(MILLION, taken, events, range(1, 3))

    assert million.batches == 210
    assert million.dollars(memories()) - million.work(memories()) > 0.0005, "what is stored counts"
    assert million.dollars(memories()) <= TARGET_DOLLARS


def test_model_of_a_job_is_billed_as_the_job(taken, monkeypatch):
    """What is billed by size is the same; the rest differs by chance."""
    bills = []
    for times in (1, JOBS[MILLION]):
        monkeypatch.setitem(JOBS, 50_000, times)
        bills.append(of_job(50_000, taken, POLLS, range(1, 3)))
    whole, model = bills

    assert (whole.batches, model.batches) == (20, 20)
    for name, near in (("S3 writes", 0.03), ("S3 reads", 0.1), ("API calls", 0.1)):
        assert model.used[name] == pytest.approx(whole.used[name], rel=near), name
    assert [row[1] for row in model.storage()[:2]] == pytest.approx(
        [row[1] for row in whole.storage()[:2]], rel=0.02
    )
    assert model.dollars(memories()) == pytest.approx(whole.dollars(memories()), rel=0.08)


@WAYS
def test_idle_stack_costs_at_most_3_50_dollars_a_month(taken, events):
    assert sum(cost for *_, cost in idle_rows(*of_tick(taken, events))) <= TARGET_IDLE_DOLLARS


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

"""What a million records and an idle stack cost at list prices: the bench's own count, at its targets."""

import pytest

from bench.cost import EVENTS, MILLION, POLLS, idle_rows, memories, of_job, of_tick
from bench.meter import computing

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
    assert million.dollars(memories()) - million.work(memories()) > 0.001, "what is stored counts"
    assert million.dollars(memories()) <= TARGET_DOLLARS


@WAYS
def test_idle_stack_costs_at_most_3_50_dollars_a_month(taken, events):
    assert sum(cost for *_, cost in idle_rows(*of_tick(taken, events))) <= TARGET_IDLE_DOLLARS

"""What a million records and an idle stack cost: the bench's own count, at its targets."""

import pytest

from bench.cost import EVENTS, JOBS, MILLION, POLLS, idle_rows, memories, of_job, of_tick
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

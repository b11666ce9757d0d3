"""What the jobs of a stack with a limit for the day cost together, whatever happens; and what ends its pause."""

from decimal import Decimal
from random import Random

import pytest

from simulation import Awkward
from tests.simulation.costs.spending import MOST, spend_days

FIRST_DAY = "2026-11-21"


def judge(found, days=10):
    """Judge that no day but one whose limit was lifted costs more than it may, and that nothing is left reserved."""
    assert found.is_over
    assert set(found.codes) == {None}, "nothing is lost, it only waits"
    assert all(cost <= found.limit * MOST for cost in found.cost.values()), found.cost
    assert len(found.cost) <= days


def test_jobs_within_limit_wait_for_nothing():
    found = spend_days(1, (30, 20), share="9")

    judge(found, days=1)
    assert (found.reserved, found.waits) == (0, frozenset())


def test_resume_lifts_limit_for_the_day():
    found = spend_days(1, (30, 20), resumes=True)

    assert found.is_over
    assert found.cost.keys() == {FIRST_DAY}
    assert found.cost[FIRST_DAY] > found.limit * 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_days_cost_what_they_may(seed):
    found = spend_days(seed, (100, 60, 60))

    judge(found)
    assert found.reserved == 0
    assert found.cost[FIRST_DAY] > found.limit * Decimal("0.6")
    assert found.waits == {"day_limit"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_days_cost_what_they_may_whatever_happens(seed):
    judge(spend_days(seed, (100, 60, 60), awkward=Awkward.drawn(Random(seed))))

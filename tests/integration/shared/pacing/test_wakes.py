"""The note of who looks at what is due: a wake-up ends only its own; on DynamoDB."""

import pytest

from shared.pacing.wakes import Wakes

NOW = 1_795_253_400


@pytest.fixture
def wakes(budget):
    return Wakes(budget.client, budget.table)


def test_end_leaves_later_wake_its_place(wakes):
    wakes.plan(NOW, NOW)
    wakes.plan(NOW + 600, NOW + 600)

    wakes.end(NOW, NOW + 601)

    assert wakes.plan(NOW + 605, NOW + 602) is None


def test_end_gives_own_place_free(wakes):
    wakes.plan(NOW, NOW)

    wakes.end(NOW, NOW + 1)

    assert wakes.plan(NOW + 5, NOW + 2) == NOW + 5

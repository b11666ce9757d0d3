"""How many records and bytes a batch may have, by its model and its number."""

from dataclasses import replace

import pytest

from dropbatch.core.plan import FIRST_BATCH_RECORDS, SplitPlan, body_room, max_records


def plan_of(most, first):
    return SplitPlan("@cf/baai/bge-m3", most, 9_500_000, "account", first_requests=first)


def test_million_records_are_at_most_450_batches():
    """A small job keeps to small batches."""
    plan = plan_of(5_000, FIRST_BATCH_RECORDS)
    sizes = [max_records(plan, number) for number in range(450)]
    assert sum(sizes) >= 1_000_000
    assert sizes == sorted(sizes)
    assert max(sizes) == 5_000
    assert sum(sizes[:4]) == 2_000


@pytest.mark.parametrize(
    ("number", "records"),
    [
        (0, 500),
        (3, 500),
        (4, 1_000),
        (7, 1_000),
        (8, 2_000),
        (11, 2_000),
        (12, 4_000),
        (15, 4_000),
        (16, 5_000),
    ],
)
def test_batch_size_doubles_every_four_batches(number, records):
    assert max_records(plan_of(5_000, 500), number) == records


def test_number_beyond_all_batches_is_no_trouble():
    assert max_records(plan_of(5_000, 500), 10**20) == 5_000


@pytest.mark.parametrize("number", [0, 4, 400])
@pytest.mark.parametrize(("most", "first"), [(300, 500), (500, 500)])
def test_batch_size_is_constant_without_growth(number, most, first):
    assert max_records(plan_of(most, first), number) == most


@pytest.mark.parametrize(
    ("number", "size"),
    [
        (0, 3_000_000),
        (3, 3_000_000),
        (4, 6_000_000),
        (7, 6_000_000),
        (8, 9_500_000),
        (400, 9_500_000),
    ],
)
def test_body_doubles_every_four_batches_up_to_the_most(number, size):
    grows, even = (
        replace(plan_of(5_000, 500), first_bytes=3_000_000),
        replace(plan_of(5_000, 500), max_bytes=size),
    )
    assert body_room(grows, number) == body_room(even, number)

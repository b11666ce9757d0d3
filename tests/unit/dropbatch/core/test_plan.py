"""How many records and bytes a batch may have, by its model and its number."""

from dataclasses import replace

from dropbatch.core.plan import FIRST_BATCH_RECORDS, SplitPlan, body_room, max_records
from dropbatch.core.read.index import WRAPPER_BYTES


def plan_of(most, first, first_bytes=0):
    plan = SplitPlan("@cf/baai/bge-m3", most, 9_500_000, "account", first_requests=first)
    return replace(plan, first_bytes=first_bytes)


def test_million_records_are_at_most_450_batches():
    """A small job keeps to small batches."""
    plan = plan_of(5_000, FIRST_BATCH_RECORDS)
    sizes = [max_records(plan, number) for number in range(450)]
    assert sum(sizes) >= 1_000_000
    assert sizes == sorted(sizes)
    assert max(sizes) == 5_000
    assert sum(sizes[:4]) == 2_000


RECORDS = {
    (5_000, 500): {0: 500, 3: 500, 4: 1_000, 8: 2_000, 15: 4_000, 16: 5_000, 10**20: 5_000},
    (300, 500): {0: 300, 4: 300, 400: 300},
    (500, 500): {0: 500, 4: 500, 400: 500},
}
BYTES = {
    3_000_000: {0: 3_000_000, 3: 3_000_000, 4: 6_000_000, 8: 9_500_000, 400: 9_500_000},
    0: {0: 9_500_000, 400: 9_500_000},
}


def test_sizes_double_every_four_batches(subtests):
    for (most, first), sizes in RECORDS.items():
        for number, size in sizes.items():
            with subtests.test(most=most, number=number):
                assert max_records(plan_of(most, first), number) == size
    for first, sizes in BYTES.items():
        for number, size in sizes.items():
            with subtests.test(first_bytes=first, number=number):
                room = body_room(plan_of(5_000, 500, first), number)
                assert room == size - WRAPPER_BYTES + 1

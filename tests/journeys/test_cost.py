"""What a job of a million records costs at list prices, its storage included: the bench's own count, at its target."""

import pytest

from bench.cost import FULL_BATCHES, FULL_RECORDS, FULL_TEXT, FUNCTIONS, SIZES, bills, storage
from bench.meter import measure
from bench.share import memory_of

TARGET_DOLLARS, TARGET_WORK_DOLLARS = 0.0265, 0.0235
"""Of them $0.0023 are for the request bodies, which `StagingRetentionDays` keeps for three days."""


@pytest.mark.slow
def test_million_records_cost_at_most_2_65_cents():
    small, large = (measure(size, 1, 20, 60.0) for size in SIZES[::2])
    one, idle = measure(1, 1, 20, 60.0), measure(0, 1, 0, 60.0)
    full = measure(FULL_BATCHES, FULL_RECORDS, FULL_TEXT, 60.0)

    million = bills(one, small, large, full, idle).of_job(1_000_000)
    work = million.dollars({name: memory_of(name) for name in FUNCTIONS})
    stored = sum(dollars for *_, dollars in storage(full, million.used["log bytes"]))

    assert work < TARGET_WORK_DOLLARS
    assert 0.001 < stored < TARGET_DOLLARS - work

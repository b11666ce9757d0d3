"""How many records a batch may have, by its model and its number."""

from functions.submit.batch_limits import FIRST_BATCH_RECORDS, max_records
from shared.models import SplitPlan


def test_a_million_records_are_at_most_450_batches_and_a_small_job_keeps_to_small_ones():
    plan = SplitPlan("@cf/baai/bge-m3", 5_000, 9_500_000, "account", first_requests=FIRST_BATCH_RECORDS)
    sizes = [max_records(plan, number) for number in range(450)]
    assert sum(sizes) >= 1_000_000
    assert sizes == sorted(sizes)
    assert max(sizes) == 5_000
    assert sum(sizes[:4]) == 2_000

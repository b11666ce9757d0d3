"""Jobs of more batches than one look at a job sees."""

import pytest

BGE = "@cf/baai/bge-small-en-v1.5"


@pytest.mark.slow
def test_job_of_many_batches_with_small_answers_ends(start):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.upload_records("many.jsonl", [{"text": f"text {number}"} for number in range(130)], model=BGE)

    world.settle(minutes=30)

    assert world.manifest()["counts"] == {"total": 130, "succeeded": 130, "failed": 0}
    assert [line["id"] for line in world.lines()] == list(range(130))

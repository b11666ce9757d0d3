"""How many records a batch may have, by its model and its number."""

import pytest

from functions.submit.batch_limits import (
    ANSWER_BYTES,
    FIRST_BATCH_RECORDS,
    REPLY_TARGET_BYTES,
    max_records,
    records_per_reply,
)
from shared.models import SplitPlan


@pytest.mark.parametrize(
    ("model", "records"),
    [
        ("@cf/baai/bge-m3", 8_333),
        ("@cf/meta/m2m100-1.2b", 25_000),
        ("@cf/meta/llama-3.3-70b-instruct-fp8-fast", 10_000),
        ("@cf/openai/gpt-oss-20b", 10_000),
        ("@cf/deepgram/aura-2-en", 500),
        ("@cf/somebody/something", 500),
        ("", 500),
    ],
)
def test_a_batch_has_as_many_records_as_their_answers_leave_room_for(model, records):
    assert records_per_reply(model) == records


@pytest.mark.parametrize(
    ("model", "records"), [("@cf/baai/bge-m3", 500), ("@cf/openai/gpt-oss-20b", 600), ("@cf/somebody/something", 30)]
)
def test_a_batch_over_a_worker_has_a_reply_that_fits_in_its_memory(model, records):
    assert records_per_reply(model, "worker") == records


def test_no_listed_model_is_hidden_by_another_and_none_is_allowed_less_than_an_unknown_one():
    prefixes = [prefix for prefix, _ in ANSWER_BYTES]
    assert not [one for one in prefixes if any(one != other and one.startswith(other) for other in prefixes)]
    assert all(REPLY_TARGET_BYTES // size >= records_per_reply("") for _, size in ANSWER_BYTES)


def test_a_million_records_are_at_most_450_batches_and_a_small_job_keeps_to_small_ones():
    plan = SplitPlan("@cf/baai/bge-m3", 5_000, 9_500_000, "account", first_requests=FIRST_BATCH_RECORDS)
    sizes = [max_records(plan, number) for number in range(450)]
    assert sum(sizes) >= 1_000_000
    assert sizes == sorted(sizes)
    assert max(sizes) == 5_000
    assert sum(sizes[:4]) == 2_000

"""What batches of a job with a limit are estimated at, and how large its first ones are."""

import json
from decimal import Decimal

import pytest

from dropbatch.core.models import find_model
from dropbatch.core.prices import estimate, first_batch

KIMI = find_model("@cf/moonshotai/kimi-k2.6")
LLAMA = find_model("@cf/meta/llama-3.3-70b-instruct-fp8-fast")
BGE = find_model("@cf/baai/bge-small-en-v1.5")
M2M = find_model("@cf/meta/m2m100-1.2b")
TOKEN = 4_000
"""Billionths of a dollar for a token that Kimi writes."""


@pytest.mark.parametrize(
    ("model", "size", "records", "answer_tokens", "cost"),
    [
        (KIMI, 0, 1, 0, 10_000 * TOKEN),
        (KIMI, 0, 2, 500, 1_000 * TOKEN),
        (LLAMA, 0, 1, 0, 576_768),
        (BGE, 4_000, 9, 500, 20_200),
        (find_model("@cf/some/model"), 100, 2, 0, 0),
    ],
)
def test_estimate_counts_each_answer_as_long_as_it_may_be(
    model, size, records, answer_tokens, cost
):
    assert estimate(model, b"", size, records, answer_tokens) == cost


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        ('"max_tokens":100', 100),
        ('"max_completion_tokens":100', 100),
        ('"max_output_tokens" : 100', 100),
        ('"max_tokens":16,"max_completion_tokens":100', 100),
        ('"max_completion_tokens":16,"max_tokens":16', 16),
        ('"max_tokens":1e3', 1_000),
        ('"max_tokens":10.5', 11),
        ('"max_tokens":1e999', 1_000_000),
        ('"max_tokens":0', 500),
        ('"max_tokens":-5', 500),
        ('"max_tokens":null', 500),
        ('"max_tokens":"16"', 500),
        ('"max_tokens":[16]', 500),
        ('"tools":[{"max_tokens":16}]', 500),
        ('"text":"\\"max_tokens\\":16"', 500),
        ('"a":1', 500),
    ],
)
def test_limit_of_a_record_is_what_itself_names(written, tokens):
    """Beside one that names 100 and one that names none."""
    body = b'{"requests":[{"max_tokens":100},{"prompt":"a"},{%s}]}' % written.encode()
    json.loads(body)

    assert estimate(KIMI, body, 0, 3, 500) == (100 + 500 + tokens) * TOKEN


@pytest.mark.parametrize(
    ("model", "named", "answer_tokens", "expected"),
    [
        (KIMI, 0, 0, (12, 263_157)),  # At 10,000 tokens they cost half.
        (KIMI, 16, 0, (12, 263_157)),
        (KIMI, 20_000, 0, (6, 263_157)),
        (KIMI, 0, 500, (31, 263_157)),
        (KIMI, 1_000, 500, (15, 263_157)),
        (LLAMA, 0, 0, (108, 853_242)),
        (BGE, 0, 0, (None, 12_376_237)),
        (M2M, 0, 0, (None, 365_497)),
    ],
)
def test_first_batches_are_parts_of_limit(model, named, answer_tokens, expected):
    assert first_batch(model, Decimal(1), named, answer_tokens) == expected


def test_first_batch_has_a_record_however_low_the_limit():
    assert first_batch(KIMI, Decimal(0), 0, 0) == (1, 1)

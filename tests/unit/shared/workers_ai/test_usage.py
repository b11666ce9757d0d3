"""Tokens in replies, under every name."""

import msgspec
import pytest

from shared.workers_ai.usage import Usage, usage_of


@pytest.mark.parametrize(
    ("told", "read"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}, Usage(3, 4, 7)),
        ({"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}, Usage(3, 4, 7)),
        ({"prompt_tokens": 3, "input_tokens": 9, "output_tokens": 4}, Usage(3, 4)),
        ({"prompt_tokens": None, "input_tokens": 9}, Usage(9)),
        (
            {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}},
            Usage(3, cached_tokens=2),
        ),
        (
            {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 0}},
            Usage(3, cached_tokens=0),
        ),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": -1}}, Usage(3)),
        (
            {"prompt_tokens": 3, "prompt_tokens_details": None, "input_tokens_details": None},
            Usage(3),
        ),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, Usage()),
        ({"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}, Usage(5, 0, 5)),
        ({"prompt_tokens": 5, "total_tokens": 12}, Usage(5, 7, 12)),
        ({"completion_tokens": 5, "total_tokens": 12}, Usage(7, 5, 12)),
        ({"prompt_tokens": 12, "total_tokens": 12}, Usage(12, None, 12)),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 12}, Usage()),
        ({"prompt_tokens": 10.5, "completion_tokens": 1}, Usage()),
        ({"prompt_tokens": True, "completion_tokens": 2**53, "total_tokens": "7"}, Usage()),
        ([], Usage()),
    ],
)
def test_usage_is_read(told, read):
    assert usage_of(msgspec.Raw(msgspec.json.encode(told))) == read


def test_usage_that_is_too_large_is_not_read():
    told = {"prompt_tokens": "x" * 1_000_000, "input_tokens": 3}

    assert usage_of(msgspec.Raw(msgspec.json.encode(told))) == Usage()

"""How far a job with a limit may go: by its estimates, and by what its answers have cost."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.cost_limit import MOST_UNKNOWN, Spent, estimate, first_batch, fits
from dropbatch.core.models import find_model

KIMI = find_model("@cf/moonshotai/kimi-k2.6")
LLAMA = find_model("@cf/meta/llama-3.3-70b-instruct-fp8-fast")
BGE = find_model("@cf/baai/bge-small-en-v1.5")
M2M = find_model("@cf/meta/m2m100-1.2b")
SPENT = Spent(amount=100, settled=1_000, measured=1_000, records=100)


def room(spent, limit=1_000_000, model=KIMI):
    """The highest sum of estimates that fits."""
    low, high = 0, 10**15
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(model, limit, spent, 0, middle) else (low, middle - 1)
    return low


def test_half_of_limit_is_sent_before_anything_is_known():
    # As the first batch, which nothing else can precede.
    assert room(Spent(records=0), limit=1_000) == 1_000
    assert not fits(KIMI, 1_000, Spent(), 400, 101)
    assert fits(KIMI, 1_000, Spent(), 400, 100)


def test_batch_after_refused_ones_is_as_the_first():
    refused = Spent(settled=400)

    assert fits(KIMI, 1_000, refused, 400, 900)
    assert not fits(KIMI, 1_000, refused, 400, 1_001)
    assert not fits(KIMI, 1_000, refused, 401, 600)


def test_nothing_fits_when_limit_is_spent():
    assert not fits(KIMI, 1_000, Spent(amount=1_000, settled=5, measured=5, records=1), 0, 0)


def test_unknown_records_are_few_times_those_that_are_known():
    assert room(SPENT, limit=10_000) == SPENT.settled + MOST_UNKNOWN * SPENT.measured


def test_answers_as_long_as_they_may_be_need_no_reserve():
    assert room(Spent(900, 900, 900, 9), limit=1_800) == 1_800


def test_what_brought_no_answer_takes_money_and_no_room_twice():
    """Half of what is spent was sent in vain: what is left is judged by what the answers cost."""
    in_vain = Spent(amount=200, settled=1_000, measured=1_000, records=100, vain=100)

    assert room(in_vain, limit=700) == room(SPENT, limit=600)


def test_only_answers_tell_what_answers_cost():
    nothing = Spent(amount=100, settled=200, measured=100, records=1, vain=100)

    assert room(nothing, limit=1_100) == 200 + 500


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 10**6), st.integers(0, 10**9))
def test_more_known_records_never_leave_less_room(amount, measured, records, left):
    few, many = (Spent(amount, measured, measured, one) for one in (records, records + 1))

    # One answer less may be a long one.
    assert room(few, amount + left) <= room(many, amount + left) + measured


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 10**7))
def test_room_never_costs_more_than_is_left_at_known_ratio(amount, measured, records, left):
    spent = Spent(min(amount, measured), measured, measured, records)
    ratio = spent.amount / measured

    beyond = room(spent, spent.amount + left) - spent.settled

    assert beyond * ratio <= left + 1


def test_estimate_counts_each_answer_as_long_as_it_may_be():
    body = b'{"requests":[{"prompt":"a","max_tokens":100},{"prompt":"b"}]}'

    assert estimate(KIMI, b"", 0, 1, 0) == 40_000_000  # 10,000 tokens at $4 a million.
    assert estimate(KIMI, b"", 0, 2, 500) == 4_000_000
    assert estimate(LLAMA, b"", 0, 1, 0) == 576_768
    assert estimate(KIMI, body, 0, 2, 500) == 2_400_000
    assert estimate(BGE, b"", 4_000, 9, 500) == 20_200
    assert estimate(find_model("@cf/some/model"), body, 100, 2, 0) == 0


@pytest.mark.parametrize(
    ("model", "named", "answer_tokens", "expected"),
    [
        (KIMI, None, 0, (12, 263_157)),  # At 10,000 tokens they cost half.
        (KIMI, None, 500, (31, 263_157)),
        (KIMI, 1_000, 500, (15, 263_157)),
        (LLAMA, None, 0, (108, 853_242)),
        (BGE, None, 0, (None, 12_376_237)),
        (M2M, None, 0, (None, 365_497)),
    ],
)
def test_first_batches_are_parts_of_limit(model, named, answer_tokens, expected):
    assert first_batch(model, Decimal(1), named, answer_tokens) == expected


def test_first_batch_has_a_record_however_low_the_limit():
    assert first_batch(KIMI, Decimal(0), None, 0) == (1, 1)

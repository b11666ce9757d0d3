"""What the API says and what it means: every code of DESIGN's table has its verdict, and nothing else has one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import verdicts
from shared.verdicts import RETRYABLE_ITEM_CODES, Verdict, judge

# Of the design's table, row by row; a code added there or here without the other is noticed below.
CODES = {
    Verdict.MODEL_WAITS: {3040, 3021},
    Verdict.HOLD: {971},
    Verdict.QUOTA: {3036, 4006},
    Verdict.ACCOUNT: {10000, 9106, 9109, 6003, 3023, 7003},
    Verdict.MODEL: {5007, 3042, 5016, 5018, 3041, 5035, 5005, 7000},
    Verdict.REQUEST: {5006, 5004, 3003, 3006, 8007},
    Verdict.BATCH_FAILED: {3030},
    Verdict.TRY_LATER: {3007, 3008},
}
OBSERVED_ONLY = {3050: Verdict.MODEL_WAITS}
"""Seen in the field, and not in the design's table."""

EVERY = [(code, verdict) for verdict, codes in CODES.items() for code in sorted(codes)]


@pytest.mark.parametrize(("code", "verdict"), EVERY)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 410, 413, 429, 500, 502, 503, 200, 302])
def test_on_a_submit_the_code_decides_whatever_the_status(code, verdict, status):
    assert judge(status, code, "words") is verdict


def test_no_other_code_has_a_verdict():
    assert {**dict(EVERY), **OBSERVED_ONLY} == verdicts._CODES


@pytest.mark.parametrize(("code", "verdict"), EVERY)
@pytest.mark.parametrize("status", [400, 404, 500])
def test_on_a_poll_the_code_decides_likewise_and_a_refused_request_is_a_failed_batch(code, verdict, status):
    wanted = Verdict.BATCH_FAILED if verdict is Verdict.REQUEST else verdict
    assert judge(status, code, "words", polling=True) is wanted


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (401, Verdict.ACCOUNT),
        (403, Verdict.ACCOUNT),
        (301, Verdict.ACCOUNT),
        (302, Verdict.ACCOUNT),
        (307, Verdict.ACCOUNT),
        (308, Verdict.ACCOUNT),
        (410, Verdict.MODEL),
        (413, Verdict.REQUEST),
        (400, Verdict.REQUEST),
        (429, Verdict.HOLD),
        (404, Verdict.TRY_LATER),
        (408, Verdict.TRY_LATER),
        (500, Verdict.TRY_LATER),
        (503, Verdict.TRY_LATER),
        (0, Verdict.TRY_LATER),
    ],
)
@pytest.mark.parametrize("code", [None, 123456])
def test_without_a_known_code_the_status_decides(status, verdict, code):
    assert judge(status, code, "") is verdict


@pytest.mark.parametrize("code", [8007, None, 5006, 3040])
@pytest.mark.parametrize("polling", [True, False])
def test_a_model_without_a_queue_is_the_models_fault(code, polling):
    assert judge(400, code, "AiError: Model does not support request queuing.", polling=polling) is Verdict.MODEL


def test_an_unknown_id_is_known_by_its_404_on_a_poll_only():
    assert judge(404, None, "", polling=True) is Verdict.UNKNOWN_ID
    assert judge(404, 1234, "not found", polling=True) is Verdict.UNKNOWN_ID
    assert judge(404, 7003, "no route", polling=True) is Verdict.ACCOUNT
    assert judge(404, None, "") is Verdict.TRY_LATER


def test_codes_of_failed_items_that_are_tried_again():
    assert {3040, 3007, 3008, 3021, 971} == RETRYABLE_ITEM_CODES


@given(status=st.integers(0, 999), code=st.one_of(st.none(), st.integers()), message=st.text(), polling=st.booleans())
def test_whatever_it_says_means_something(status, code, message, polling):
    verdict = judge(status, code, message, polling=polling)
    assert verdict in Verdict
    assert not (polling and verdict is Verdict.REQUEST)
    assert polling or verdict is not Verdict.UNKNOWN_ID

"""What the API says and what it means: every code of its table has its verdict, and nothing else has one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.workers_ai import error_codes as verdicts
from shared.workers_ai.error_codes import (
    RETRYABLE_ITEM_CODES,
    ErrorClass,
    advice,
    classify_poll_error,
    classify_submit_error,
    classify_with_valid_token,
    is_doubtful,
    is_like_lost,
    model_error_message,
)
from shared.workers_ai.replies import Rejected

# Of the design's table, row by row; a code added there or here without the other is noticed below.
CODES = {
    ErrorClass.MODEL_WAITS: {3040, 3021},
    ErrorClass.RATE_LIMIT: {971},
    ErrorClass.QUOTA: {3036, 4006},
    ErrorClass.ACCOUNT: {10000, 9106, 9109, 6003, 3023, 7003},
    ErrorClass.MODEL: {5007, 3042, 5016, 5018, 3041, 5035, 5005},
    ErrorClass.CHECK_TOKEN: {7000},
    ErrorClass.REQUEST: {5006, 5004, 3003, 3006, 8007},
    ErrorClass.BATCH_FAILED: {3030},
    ErrorClass.TRY_LATER: {3007, 3008, 3046, 5001, 7010, 10013},
}
OBSERVED_ONLY = {
    3050: ErrorClass.MODEL_WAITS,
    2001: ErrorClass.ACCOUNT,  # 2001, 2009 and 2003 are AI Gateway's own.
    2009: ErrorClass.ACCOUNT,
    2003: ErrorClass.RATE_LIMIT,
    2016: ErrorClass.REQUEST,  # From here on AI Gateway's too, documented but for 2041.
    2017: ErrorClass.REQUEST,
    2029: ErrorClass.REQUEST,
    2030: ErrorClass.REQUEST,
    2021: ErrorClass.CREDITS,
    2041: ErrorClass.SPEND_LIMIT,
    7013: ErrorClass.TRY_LATER,
}
"""Not in the design's table."""

CLASSIFY = (classify_submit_error, classify_poll_error)

EVERY = [
    *((code, verdict) for verdict, codes in CODES.items() for code in sorted(codes)),
    *OBSERVED_ONLY.items(),
]
ON_A_POLL = {ErrorClass.MODEL: ErrorClass.TRY_LATER}
"""What differs on a poll: a paid answer is not given up because the model cannot be used for more."""
WITH_5XX = {ErrorClass.MODEL: ErrorClass.TRY_LATER, ErrorClass.CHECK_TOKEN: ErrorClass.TRY_LATER}
"""What differs on a submit with a 5xx or 408: these codes come with a 4xx, and nothing shows that it is the model's."""


def reply(status, code, message="words"):
    """An error in the API's own JSON."""
    return Rejected(status, code, message, enveloped=True)


@pytest.mark.parametrize(("code", "verdict"), EVERY)
def test_code_decides_on_submit(code, verdict):
    statuses = (400, 401, 403, 404, 410, 413, 429, 200, 302)
    servers = (408, 500, 502, 503)
    expected = dict.fromkeys(statuses, verdict) | dict.fromkeys(servers, WITH_5XX.get(verdict, verdict))
    assert {status: classify_submit_error(reply(status, code)) for status in (*statuses, *servers)} == expected


@pytest.mark.parametrize("code", sorted(CODES[ErrorClass.MODEL] | {7000}))
@pytest.mark.parametrize("status", [408, 500, 502, 504, 599])
def test_no_model_is_given_up_by_an_error_of_a_server(code, status):
    assert classify_submit_error(reply(status, code)) is ErrorClass.TRY_LATER
    assert is_like_lost(reply(status, code))


def test_no_other_code_has_verdict():
    assert dict(EVERY) == verdicts._CODES


@pytest.mark.parametrize(("code", "verdict"), EVERY)
def test_on_poll_code_decides_likewise(code, verdict):
    for status in (200, 400, 401, 403, 404, 410, 500):
        expected = ErrorClass.REQUEST if code == 5001 else ON_A_POLL.get(verdict, verdict)
        assert classify_poll_error(reply(status, code)) is expected, status


# Status, then what it means on a submit and on a poll: without a code in the API's own JSON, with an unknown code
# there, and as a page.
STATUSES = {
    0: ("try_later try_later", "try_later try_later", "try_later try_later"),
    200: ("try_later try_later", "try_later try_later", "try_later try_later"),
    300: ("account account", "account account", "account check_token"),
    301: ("account account", "account account", "account check_token"),
    308: ("account account", "account account", "account check_token"),
    400: ("request try_later", "request try_later", "try_later try_later"),
    401: ("account account", "check_token check_token", "check_token check_token"),
    402: ("try_later try_later", "try_later try_later", "try_later try_later"),
    403: ("account account", "check_token check_token", "check_token check_token"),
    404: ("try_later unknown_id", "try_later unknown_id", "try_later try_later"),
    405: ("try_later try_later", "try_later try_later", "try_later try_later"),
    408: ("try_later try_later", "try_later try_later", "try_later try_later"),
    410: ("model try_later", "model try_later", "try_later try_later"),
    413: ("request try_later", "request try_later", "request try_later"),
    422: ("request try_later", "request try_later", "try_later try_later"),
    424: ("try_later try_later", "try_later try_later", "try_later try_later"),
    429: ("rate_limit rate_limit", "rate_limit rate_limit", "rate_limit rate_limit"),
    500: ("try_later try_later", "try_later try_later", "try_later try_later"),
    503: ("try_later try_later", "try_later try_later", "try_later try_later"),
}
FORMS = ((None, True), (123456, True), (None, False))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("form", range(3), ids=["without-code", "unknown-code", "page"])
def test_status_decides_without_known_code(status, form):
    code, enveloped = FORMS[form]
    said = [classify(Rejected(status, code, "", enveloped=enveloped)).value for classify in CLASSIFY]
    assert " ".join(said) == STATUSES[status][form]


@pytest.mark.parametrize(
    ("status", "code", "enveloped", "submitting", "polling"),
    [
        (400, 7000, True, ErrorClass.MODEL, ErrorClass.TRY_LATER),
        (403, 7000, True, ErrorClass.MODEL, ErrorClass.TRY_LATER),
        (403, None, False, ErrorClass.REQUEST, ErrorClass.TRY_LATER),
        (401, None, False, ErrorClass.TRY_LATER, ErrorClass.TRY_LATER),
        (302, None, False, ErrorClass.TRY_LATER, ErrorClass.TRY_LATER),
        (403, 123456, True, ErrorClass.TRY_LATER, ErrorClass.TRY_LATER),
        (404, 7000, False, ErrorClass.TRY_LATER, ErrorClass.TRY_LATER),
    ],
)
def test_what_token_decides_once_it_is_good(status, code, enveloped, submitting, polling):
    for on_poll, wanted in ((False, submitting), (True, polling)):
        assert classify_with_valid_token(Rejected(status, code, "", enveloped=enveloped), polling=on_poll) is wanted


@pytest.mark.parametrize(("code", "verdict"), [(1999, "unknown_id"), (2000, "try_later"), (2999, "try_later")])
def test_gateway_knows_nothing_of_ids(code, verdict):
    assert classify_poll_error(reply(404, code)).value == verdict


@pytest.mark.parametrize("code", [8007, None, 424242])
@pytest.mark.parametrize(
    "words",
    [
        "AiError: Model does not support request queuing.",
        "This model DOES NOT Support Request Queuing",
        "AiError: AiError: The model @cf/a/b-1.5 does not support request queuing",
    ],
)
def test_model_without_queue_is_models_fault(code, words):
    told = reply(400, code, words)
    assert classify_submit_error(told) is ErrorClass.MODEL
    assert classify_poll_error(told) is ErrorClass.TRY_LATER


@pytest.mark.parametrize("code", [5006, 3040, 5004])
def test_words_do_not_decide_what_a_code_says(code):
    told = reply(400, code, "This model does not support request queuing")
    assert classify_submit_error(told) is classify_submit_error(reply(400, code))


@pytest.mark.parametrize("code", [8007, None, 424242])
@pytest.mark.parametrize(
    "words",
    [
        "AiError: Bad input: This model does not support request queuing",
        "AiError: 'Why does it say: this model does not support request queuing?' is too long",
        'AiError: "model" does not support request queuing',
        "AiError: bad tool\nThis model does not support request queuing",
    ],
)
def test_words_of_a_quoted_record_are_no_verdict(code, words):
    assert classify_submit_error(reply(400, code, words)) is not ErrorClass.MODEL


# Status, then whether a submit is surely refused (-), doubtful (?) or as doubtful as a lost reply (!): without a code
# in the API's own JSON, with an unknown code there, with 10013, with 3040, and as a page.
DOUBTS = {
    0: "- - - - -",
    200: "! ! ! - !",
    400: "- - - - ?",
    402: "- - - - ?",
    404: "- - - - ?",
    408: "! ! ! - !",
    410: "- - - - ?",
    422: "- - - - ?",
    424: "- - - - ?",
    499: "- - - - ?",
    500: "! ! ! - !",
    502: "! ! ! - !",
    503: "! ! ! - !",
    599: "! ! ! - !",
}


@pytest.mark.parametrize("status", DOUBTS)
def test_submit_is_refused_for_sure_only_by_api_itself(status):
    forms = ((None, True), (123456, True), (10013, True), (3040, True), (None, False))
    told = [Rejected(status, code, "", enveloped=enveloped) for code, enveloped in forms]
    assert " ".join("!" if is_like_lost(one) else "?" if is_doubtful(one) else "-" for one in told) == DOUBTS[status]


@pytest.mark.parametrize(("code", "verdict"), EVERY)
def test_code_that_says_what_it_refuses_leaves_no_doubt(code, verdict):
    for status in (200, 400, 408, 500, 504):
        meant = verdict if status in {200, 400} else WITH_5XX.get(verdict, verdict)
        says_nothing_was_taken = meant not in {ErrorClass.TRY_LATER, ErrorClass.REQUEST, ErrorClass.BATCH_FAILED}
        is_known = says_nothing_was_taken or status == 400
        assert is_doubtful(reply(status, code)) is is_like_lost(reply(status, code)) is not is_known


def test_page_is_not_believed_of_model_without_queue():
    page = Rejected(500, None, "does not support request queuing")
    assert classify_poll_error(page) is ErrorClass.TRY_LATER


@pytest.mark.parametrize(
    ("code", "words"), [(5016, "terms"), (5035, "Workers Paid"), (3041, "access"), (5018, "access"), (5007, "Batch")]
)
def test_message_of_rejected_model_says_what_to_do(code, words):
    told = model_error_message("@cf/a/b", code)
    assert "@cf/a/b" in told
    assert str(code) in told
    assert words in told


def test_there_is_advice_for_every_code():
    assert "billing" in advice(402)
    assert all(advice(code) for code in range(1000))


def test_codes_of_failed_items_that_are_tried_again():
    assert {3040, 3007, 3008, 3021, 971} == RETRYABLE_ITEM_CODES


@given(status=st.integers(0, 999), code=st.one_of(st.none(), st.integers()), message=st.text())
def test_every_reply_is_classified(status, code, message):
    said = reply(status, code, message)
    assert classify_poll_error(said) in set(ErrorClass) - {ErrorClass.MODEL}
    assert classify_submit_error(said) in set(ErrorClass) - {ErrorClass.UNKNOWN_ID}

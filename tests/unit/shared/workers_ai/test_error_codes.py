"""What the API says and what it means: one table, a row a kind of reply, a column a question.

Columns: the reply to a submit with a 4xx; with 408 or a 5xx; to a poll; and whether a submit that
is so answered with a 5xx is surely refused (`-`) or ambiguous (`!`). With a 4xx each is refused.
"""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.errors import PASSING_CODES
from local.workers_ai.codes import KNOWN
from shared.workers_ai.error_codes import (
    _CODES,
    ErrorClass,
    advice,
    classify_poll_error,
    classify_submit_error,
    classify_with_valid_token,
    is_ambiguous,
    model_error_message,
)
from shared.workers_ai.replies import Rejected

ROOT = Path(__file__).resolve().parents[4]
CODES = """
3040 3021 3050                    model_waits  model_waits  model_waits  -
971 2003                          rate_limit   rate_limit   rate_limit   -
3036 4006                         quota        quota        quota        -
2021                              credits      credits      credits      -
2041                              spend_limit  spend_limit  spend_limit  -
10000 9106 9109 6003 3023 7003 2001 2009   account account  account      -
5007 3042 5016 5018 3041 5035 5005   model     try_later    try_later    !
5028                              withdrawn    try_later    withdrawn    !
7000                              check_token  try_later    check_token  !
5006 5004 5025 3003 3006 3039 8007 request      request      request      !
2016 2017 2029 2030               request      request      request      !
3030                              batch_failed batch_failed batch_failed !
5001                              try_later    try_later    batch_failed !
3007 3008 3046 7010 7013 10013    try_later    try_later    try_later    !
"""
# Without a known code: submit, poll and doubt, in the API's own JSON without a code, with an
# unknown code, and as a page.
STATUSES = """
0   try_later try_later -      try_later try_later -      try_later try_later -
200 try_later try_later !      try_later try_later !      try_later try_later !
300 account account !          account account !          account check_token !
308 account account !          account account !          account check_token !
399 account account !          account account !          account check_token !
400 request try_later -        request try_later -        try_later try_later -
401 account account -          check_token check_token -  check_token check_token -
403 account account -          check_token check_token -  check_token check_token -
404 try_later unknown_id -     try_later unknown_id -     try_later try_later -
405 try_later try_later -      try_later try_later -      try_later try_later -
408 try_later try_later !      try_later try_later !      try_later try_later !
410 model try_later -          model try_later -          try_later try_later -
413 request try_later -        request try_later -        request try_later -
422 request try_later -        request try_later -        try_later try_later -
429 rate_limit rate_limit -    rate_limit rate_limit -    rate_limit rate_limit -
499 try_later try_later -      try_later try_later -      try_later try_later -
500 try_later try_later !      try_later try_later !      try_later try_later !
599 try_later try_later !      try_later try_later !      try_later try_later !
"""
ROWS = [
    (int(code), *row.split()[-4:]) for row in CODES.split("\n") for code in re.findall(r"\d+", row)
]
NO_QUEUE = "does not support request queuing"


def reply(status, code=None, words="words", *, page=False):
    return Rejected(status, code, words, enveloped=not page)


def verdicts(*told):
    """On a submit, on a poll, and whether a submit is ambiguous."""
    said = reply(*told[:3], page=told[3:] == (True,))
    doubt = "!" if is_ambiguous(said) else "-"
    return [classify_submit_error(said).value, classify_poll_error(said).value, doubt]


@pytest.mark.parametrize(("code", "client", "server", "poll", "doubt"), ROWS)
def test_code_decides(code, client, server, poll, doubt):
    for status in (400, 401, 403, 404, 410, 413, 429):
        assert verdicts(status, code) == [client, poll, "-"], status
    for status in (408, 500, 503, 599):
        assert verdicts(status, code) == [server, poll, doubt], status
    assert verdicts(200, code)[:2] == [client, poll]


def test_no_other_code_has_a_verdict():
    assert {row[0] for row in ROWS} == _CODES.keys()


@pytest.mark.parametrize("row", STATUSES.split("\n")[1:-1], ids=lambda row: row[:3])
def test_status_decides_without_known_code(row):
    status, *expected = row.split()
    told = [verdicts(int(status), *form) for form in ((None,), (123456,), (None, "", True))]
    assert sum(told, []) == expected  # noqa: RUF017


@pytest.mark.parametrize(
    ("status", "code", "words", "submit", "poll"),
    [
        (404, 1999, "", "try_later", "unknown_id"),
        (404, 2000, "", "try_later", "try_later"),  # AI Gateway's own codes say nothing of an id
        (404, 2999, "", "try_later", "try_later"),
        (404, 3000, "", "try_later", "unknown_id"),
        *(
            (400, code, f"AiError: AiError: The model @cf/a/b-1.5 {NO_QUEUE}", "model", "try_later")
            for code in (8007, None, 424242)
        ),
        (400, 8007, f"This model {NO_QUEUE.upper()}", "model", "try_later"),
        (400, 5006, f"This model {NO_QUEUE}", "request", "request"),
        (429, 3040, f"This model {NO_QUEUE}", "model_waits", "model_waits"),
        # it quotes a record
        (400, 8007, f"AiError: Bad input: This model {NO_QUEUE}", "request", "request"),
        (400, 8007, f'AiError: "model" {NO_QUEUE}', "request", "request"),
        (400, 424242, f"AiError: bad tool\nThis model {NO_QUEUE}", "request", "try_later"),
    ],
)
def test_words_and_gateways(status, code, words, submit, poll):
    assert verdicts(status, code, words)[:2] == [submit, poll]


def test_page_is_not_believed_of_model_without_queue():
    assert verdicts(500, None, NO_QUEUE, True) == ["try_later", "try_later", "!"]  # noqa: FBT003


@pytest.mark.parametrize(
    ("told", "submitting"),
    [
        (reply(400, 7000), "model"),
        (reply(404, 7000, page=True), "try_later"),
        (reply(403, page=True), "request"),
        (reply(401, page=True), "try_later"),
        (reply(403, 123456), "try_later"),
    ],
)
def test_what_token_decides_once_it_is_good(told, submitting):
    assert classify_with_valid_token(told, polling=False).value == submitting
    assert classify_with_valid_token(told, polling=True) is ErrorClass.TRY_LATER


def test_words_for_people():
    said = {5016: "terms", 5035: "Workers Paid", 3041: "access", 5018: "access", 5007: "Batch"}
    for code, words in said.items():
        told = model_error_message("@cf/a/b", code)
        assert all(word in told for word in ("@cf/a/b", str(code), words))
    assert "billing" in advice(402)
    assert all(map(advice, range(1000)))


def test_codes_of_failed_items_that_are_tried_again():
    assert {3040, 3050, 3007, 3008, 3021, 971} == PASSING_CODES


@given(status=st.integers(0, 999), code=st.one_of(st.none(), st.integers()), message=st.text())
def test_every_reply_is_classified(status, code, message):
    said = reply(status, code, message)
    assert classify_poll_error(said) in set(ErrorClass) - {ErrorClass.MODEL}
    assert classify_submit_error(said) in set(ErrorClass) - {ErrorClass.UNKNOWN_ID}


def test_worker_restores_the_status_of_every_code_that_has_a_meaning():
    """What the AI binding throws has no status: one table says it for both transports."""
    source = (ROOT / "worker" / "src" / "errors.ts").read_text("utf-8")
    statuses = dict(re.findall(r"^  (\d+): (\d+),$", source, re.MULTILINE))
    of_edge = {6003, 7003, 9106, 9109}
    for code in _CODES.keys() - of_edge:
        assert statuses[str(code)] == str(KNOWN[code].status), code

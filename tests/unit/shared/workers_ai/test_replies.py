"""The client of the API: what each reply is taken for."""

import json
from itertools import product

import httpx
import pytest
import time_machine
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.errors import MAX_CODE
from shared.workers_ai.replies import (
    MAX_REQUEST_ID_CHARACTERS,
    MAX_RETRY_AFTER_SECONDS,
    Accepted,
    Failed,
    NoAnswers,
    OutcomeUnknown,
    Pending,
    Rejected,
    Unreadable,
    parse_reply,
)
from shared.workers_ai.results import Answer
from tests.support.doubles.api_client import ITEMS, Api, ask, enveloped, refusal, submit

DONE = [
    enveloped({"responses": ITEMS}),
    enveloped({"responses": ITEMS, "status": "completed", "usage": {"total_tokens": 1}}),
    enveloped({"results": ITEMS, "status": "queued"}),
    {"responses": ITEMS},
    {"success": True, "responses": ITEMS},
    {"result": {"responses": ITEMS}},
    enveloped([{"responses": ITEMS}]),
    {"result": [{"results": ITEMS, "status": "completed"}]},
    enveloped({"responses": [], "results": ITEMS}),
    enveloped({"responses": ITEMS, "results": []}),
    enveloped(ITEMS),
]


@pytest.mark.parametrize("content", DONE)
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("status", [200, 201, 202])
def test_results_of_either_shape_are_an_answer(content, indent, status):
    body = json.dumps(content, indent=indent).encode()
    assert ask(Api(httpx.Response(status, content=body))) == body


@pytest.mark.parametrize(
    "wrong", [b"[" * 3_000 + b"]" * 3_000, b"NaN", b'"\\x"'], ids=["deep", "NaN", "an escape"]
)
@pytest.mark.parametrize("padding", [0, 1_200_000], ids=["small", "large"])
def test_answer_that_is_wrong_in_itself_cannot_be_read_and_one_cut_off_is_none(wrong, padding):
    good = b'{"id":0,"success":true,"result":{"a":"' + b"x" * padding + b'"}}'
    items = b'%b,{"id":1,"success":true,"result":%b}' % (good, wrong)
    whole = b'{"result":{"responses":[%b]},"success":true}\n' % items

    assert parse_reply(200, None, whole, submitting=False) == Unreadable()
    for end in (len(whole) - 4, len(good) + 30, len(good) + 25, len(good) + 50):
        assert isinstance(parse_reply(200, None, whole[:end], submitting=False), OutcomeUnknown)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (enveloped({"status": "queued", "request_id": "id-1"}), "queued"),
        (enveloped({"status": "Running"}), "running"),
        ({"status": "in_progress"}, "in_progress"),
        ({"status": "done"}, "done"),
        (enveloped({"status": "a word nobody knows"}), "a word nobody knows"),
        (enveloped({"request_id": "id-1"}), ""),
        (enveloped({}), ""),
        (enveloped({"status": "queued", "responses": None}), "queued"),
        (enveloped(None), ""),
        ({"success": True}, ""),
        ({"status": "queued", "request_id": "id-1"}, "queued"),
        (enveloped({"status": "running", "request_id": "id-1", "responses": []}), "running"),
        (enveloped({"status": "queued", "results": []}), "queued"),
        ({"status": "a word nobody knows", "results": []}, "a word nobody knows"),
        ({"results": []}, ""),
        (enveloped({"responses": []}), ""),
        (enveloped({"responses": [{"id": 0}, {"id": 1, "success": None, "status": "queued"}]}), ""),
        ({"results": [None, {}]}, ""),
    ],
)
def test_poll_without_results_is_pending(content, word):
    assert ask(Api(httpx.Response(200, json=content))) == Pending(word)


@pytest.mark.parametrize(
    "more", [{}, {"responses": None}, {"results": {}}, {"request_id": "id-1"}, {"results": []}]
)
@pytest.mark.parametrize("word", ["completed", "Done"])
def test_completed_batch_without_array_is_doubtful(word, more):
    assert ask(Api(httpx.Response(200, json=enveloped({"status": word, **more})))) == NoAnswers()
    assert ask(Api(httpx.Response(200, json={"status": "completed"}))) == NoAnswers()


@pytest.mark.parametrize("status", [200, 201, 202])
@pytest.mark.parametrize(
    "content",
    [
        enveloped({"request_id": "id-1"}),
        {"request_id": "id-1"},
        enveloped({"status": "x", "request_id": "id-1"}),
        enveloped({"status": "queued", "request_id": "id-1", "results": []}),
        enveloped({"request_id": "id-1", "responses": []}),
        enveloped([{"status": "queued", "request_id": "id-1"}]),
    ],
)
def test_request_id_accepts_submit(status, content):
    assert submit(Api(httpx.Response(status, json=content))) == Accepted("id-1")
    for number in (1, 2**63 - 1):
        numbered = httpx.Response(status, json=enveloped({"request_id": number}))
        assert submit(Api(numbered)) == Accepted(str(number))


@pytest.mark.parametrize("word", ["failed", "FAILED", "error", "errored", "cancelled", "canceled"])
def test_failed_batch_has_its_code_and_message(word):
    inner = {"status": word, "errors": [{"code": 3030, "message": "batch failed"}]}
    assert ask(Api(httpx.Response(200, json=enveloped(inner)))) == Failed(3030, "batch failed")
    named = {"status": word, "request_id": "id-1"}
    assert ask(Api(httpx.Response(200, json=named))) == Failed(None, "")


@pytest.mark.parametrize("word", ["failed", "error"])
def test_failure_without_batch_may_be_foreign(word):
    answer = httpx.Response(200, json={"status": word, "message": "upstream"})
    assert ask(Api(answer)) == Failed(None, "upstream", enveloped=False)
    assert isinstance(submit(Api(answer)), OutcomeUnknown)


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (refusal(3040), 3040, "words"),
        (refusal("3040"), 3040, "words"),
        (refusal("²"), None, "words"),
        (refusal("9" * 5_000), None, "words"),
        (refusal("AiError"), None, "words"),
        (refusal(MAX_CODE), MAX_CODE, "words"),
        *(
            (refusal(odd), None, "words")
            for odd in (MAX_CODE + 1, 0, "0", -1, 10**400, True, 1.5, [1], {"a": 1})
        ),
        ({"success": False, "errors": []}, None, ""),
        ({"errors": [{"message": "only words"}]}, None, "only words"),
        ({"error": {"code": 5007, "message": "no model"}}, 5007, "no model"),
        ({"code": 10000, "message": "auth"}, 10000, "auth"),
        ({"internalCode": 3030, "message": "m"}, 3030, "m"),
        ({"internalCode": 3030, "name": "n", "message": "m", "description": "d"}, 3030, "d"),
        ({"errors": [{"code": None, "internalCode": 3030}]}, 3030, ""),
        ({"errors": ["text first"]}, None, "text first"),
    ],
)
@pytest.mark.parametrize("submitting", [True, False])
def test_4xx_is_rejection_with_code_and_message(content, code, words, submitting):
    reply = (submit if submitting else ask)(Api(httpx.Response(400, json=content)))
    assert reply == Rejected(400, code, words, None, enveloped=True)


PAGES = [b"", b"<html>no</html>", b"{", b"\xff", b"{}", b'{"message":"Forbidden"}']


@pytest.mark.parametrize("content", [*PAGES, b'{"error":"no"}', b'{"errors":{}}'])
@pytest.mark.parametrize("submitting", [True, False])
def test_any_3xx_or_4xx_page_is_refusal(content, submitting):
    for status in (300, 301, 302, 307, 308, 400, 401, 403, 404, 405, 408, 410, 413, 422, 429):
        reply = (submit if submitting else ask)(Api(httpx.Response(status, content=content)))
        assert isinstance(reply, Rejected), status
        assert (reply.status, reply.code, reply.enveloped) == (status, None, False)


@pytest.mark.parametrize("submitting", [True, False])
@pytest.mark.parametrize(
    ("status", "content"),
    [
        *product((500, 502, 503, 504, 520, 524), (b"", b"<html>bad gateway</html>", b"{}", b"[]")),
        *product((200,), (b"", b"<html>ok</html>", b"[]", b"null", b"\xff\xfe")),
        (200, b'{"result":{"request_id":"id'),
    ],
)
def test_foreign_reply_is_outcome_unknown(status, content, submitting):
    reply = (submit if submitting else ask)(Api(httpx.Response(status, content=content)))
    assert isinstance(reply, OutcomeUnknown)


LOST = [
    *({}, {"responses": []}, enveloped({}), enveloped(None), enveloped([]), enveloped(["id-1"])),
    *(enveloped({"request_id": id_}) for id_ in ("", 0, -7, 7.5, True)),
    enveloped({"request_id": "x" * (MAX_REQUEST_ID_CHARACTERS + 1)}),
    enveloped([{"request_id": "id-1"}, {"request_id": "id-2"}]),
    *(enveloped({"status": status, "results": []}) for status in ("queued", "completed")),
    enveloped({"status": "queued"}),
]


@pytest.mark.parametrize("content", LOST)
def test_good_submit_without_id_or_results_is_lost(content):
    assert isinstance(submit(Api(httpx.Response(200, json=content))), OutcomeUnknown)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("1.5", 1.5),
        ("900", 900.0),
        ("901", MAX_RETRY_AFTER_SECONDS),
        ("999999999", MAX_RETRY_AFTER_SECONDS),
        ("9" * 400, MAX_RETRY_AFTER_SECONDS),
        ("Sat, 21 Nov 2026 09:30:40 GMT", 40.0),
        ("Sat, 21 Nov 2099 09:30:40 GMT", MAX_RETRY_AFTER_SECONDS),
        *((odd, None) for odd in ("0", "-1", "soon", "", "²", "1e3", "inf", "nan")),
        ("Sat, 21 Nov 2026 09:29:00 GMT", None),
    ],
)
@time_machine.travel("2026-11-21T09:30:00Z", tick=False)
def test_retry_after_is_bounded(header, seconds):
    reply = parse_reply(429, header, b"", submitting=True)
    assert reply.retry_after == seconds


@given(content=st.binary(max_size=80), status=st.integers(200, 599), submitting=st.booleans())
def test_any_bytes_are_classified(content, status, submitting):
    reply = parse_reply(status, None, content, submitting=submitting)
    kinds = (Accepted, Answer, Pending, Rejected, Failed, OutcomeUnknown)
    assert isinstance(reply, Rejected if 300 <= status < 500 else kinds)


@pytest.mark.parametrize(
    ("items", "sent", "is_answer"),
    [
        ([{"id": 0, "result": 1}, {"id": 1, "result": 2}], 2, True),
        ([{"id": 0, "result": 1}, {"id": 1, "result": 2}], 3, False),
        ([{"id": 0, "result": 1}, {"id": 1}], 2, False),
        ([], 0, False),
    ],
)
@pytest.mark.parametrize("submitting", [True, False])
def test_refused_array_is_an_answer_only_as_a_whole(items, sent, is_answer, submitting):
    body = json.dumps({"success": False, "errors": [], "result": {"responses": items}}).encode()

    good, bad = (
        parse_reply(status, None, body, submitting=submitting, sent=sent) for status in (200, 500)
    )
    assert isinstance(good, Answer) is is_answer
    assert isinstance(bad, Rejected)

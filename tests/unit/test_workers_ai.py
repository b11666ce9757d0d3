"""The client of the API: what each reply is taken for, and that a submit is never sent twice."""

import gc
import inspect
import json
import mmap
import sys
import weakref

import httpx
import msgspec
import pytest
import time_machine
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import StorageError
from shared.spool import MAX_BYTES_IN_MEMORY
from shared.workers_ai import client as module
from shared.workers_ai.client import TokenState, WorkersAI, http_client
from shared.workers_ai.replies import (
    MAX_CODE,
    MAX_REQUEST_ID_CHARACTERS,
    MAX_RETRY_AFTER_SECONDS,
    Accepted,
    Failed,
    OutcomeUnknown,
    Pending,
    Rejected,
    parse_reply,
)
from shared.workers_ai.results import Answer
from shared.workers_ai.transports import Credentials, rest

BASE = "https://api.cloudflare.com/client/v4"
ACCOUNT = "0123456789abcdef0123456789abcdef"
REST = rest(BASE, ACCOUNT)
MODEL = "@cf/baai/bge-small-en-v1.5"
BODY = b'{"requests":[{"text":"a"}]}'
TOKEN = "secret-canary"
ITEMS = [{"id": 0, "success": True, "result": {"data": [[0.5]]}}]


class Api:
    """An API that answers by a list, and keeps what it was asked."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    def __call__(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer


class Secret:
    """The token's secret; what it holds may change, and a warm process keeps the value it read."""

    def __init__(self, *values):
        self.values = list(values)
        self.known = None

    def __call__(self, fresh):
        if fresh and len(self.values) > 1:
            self.values.pop(0)
        if fresh or self.known is None:
            self.known = self.values[0]
        if isinstance(self.known, Exception):
            error, self.known = self.known, None
            raise error
        return self.known


def client(api, secret=None, transport=REST):
    read = secret or Secret(TOKEN)
    return WorkersAI(http_client(httpx.MockTransport(api)), transport, lambda fresh: Credentials(read(fresh)))


def submit(api, secret=None):
    with client(api, secret).submit(MODEL, BODY, 60) as reply:
        return reply


def ask(api, secret=None):
    with client(api, secret).poll(MODEL, "id-1", 60) as reply:
        return bytes(reply.body[:]) if isinstance(reply, Answer) else reply


def enveloped(result, **more):
    return {"result": result, "success": True, "errors": [], "messages": [], **more}


def refusal(code, message="words", **more):
    return {"result": None, "success": False, "errors": [{"code": code, "message": message}], "messages": [], **more}


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_submit_is_one_post_of_the_very_body():
    api = Api(httpx.Response(200, json=enveloped({"status": "queued", "request_id": "id-1", "model": MODEL})))
    assert submit(api) == Accepted("id-1")
    (request,) = api.requests
    assert request.method == "POST"
    assert str(request.url) == f"{BASE}/accounts/{ACCOUNT}/ai/run/{MODEL}?queueRequest=true"
    assert request.content == BODY
    assert request.headers["authorization"] == f"Bearer {TOKEN}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["content-length"] == str(len(BODY))


def reset(_request):
    raise httpx.ReadError("reset")


@pytest.mark.parametrize("answer", [httpx.Response(200, json={"request_id": "r"}), reset])
def test_a_body_that_was_sent_is_not_held_on_to(answer):
    """Else a warm function that submits one batch of 10 MB after another grows by each."""
    body = BODY * 100_000
    gc.collect()
    gc.disable()  # A cycle would be found some time: not in time, for few large objects do not make it look.
    try:
        before = sys.getrefcount(body)
        with client(Api(answer)).submit(MODEL, body, 60):
            pass
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()


def test_a_poll_names_the_request_id_and_nothing_else():
    api = Api(httpx.Response(200, json=enveloped({"status": "running"})))
    assert ask(api) == Pending("running")
    (request,) = api.requests
    assert json.loads(request.content) == {"request_id": "id-1"}
    assert str(request.url).endswith("?queueRequest=true")


def test_nothing_is_taken_from_the_environment(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert http_client()._mounts == {}


# ── what replies are taken for ───────────────────────────────────────────────────────────────────────────────────────

DONE = [
    enveloped({"responses": ITEMS}),
    enveloped({"responses": ITEMS, "status": "completed", "usage": {"total_tokens": 1}}),
    enveloped({"results": ITEMS, "status": "queued"}),
    {"responses": ITEMS},
    {"results": []},
    enveloped({"results": [], "status": "completed"}),
    {"success": True, "responses": ITEMS},
    {"result": {"responses": ITEMS}},
]


@pytest.mark.parametrize("content", DONE)
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("status", [200, 201, 202])
def test_results_of_either_shape_with_or_without_envelope_are_an_answer(content, indent, status):
    body = json.dumps(content, indent=indent).encode()
    assert ask(Api(httpx.Response(status, content=body))) == body


@pytest.mark.parametrize("content", DONE)
def test_results_at_once_are_the_answer_of_a_submit(content):
    assert isinstance(submit(Api(httpx.Response(200, json=content))), Answer)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (enveloped({"status": "queued", "request_id": "id-1"}), "queued"),
        (enveloped({"status": "Running"}), "running"),
        ({"status": "in_progress"}, "in_progress"),
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
    ],
)
def test_a_poll_without_results_is_pending_under_the_apis_own_word(content, word):
    assert ask(Api(httpx.Response(200, json=content))) == Pending(word)


@pytest.mark.parametrize("status", [200, 201, 202])
@pytest.mark.parametrize(
    "content",
    [
        enveloped({"request_id": "id-1"}),
        {"request_id": "id-1"},
        enveloped({"status": "x", "request_id": "id-1"}),
        enveloped({"status": "queued", "request_id": "id-1", "results": []}),
        enveloped({"request_id": "id-1", "responses": []}),
    ],
)
def test_a_request_id_accepts_a_submit(status, content):
    assert submit(Api(httpx.Response(status, json=content))) == Accepted("id-1")


@pytest.mark.parametrize("word", ["failed", "FAILED", "error", "errored", "cancelled", "canceled"])
def test_a_failed_batch_is_told_with_code_and_words(word):
    inner = {"status": word, "errors": [{"code": 3030, "message": "batch failed"}]}
    assert ask(Api(httpx.Response(200, json=enveloped(inner)))) == Failed(3030, "batch failed")
    named = {"status": word, "request_id": "id-1"}
    assert ask(Api(httpx.Response(200, json=named))) == Failed(None, "")


@pytest.mark.parametrize("word", ["failed", "error"])
def test_a_failure_that_does_not_name_the_batch_may_be_any_programs(word):
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
        *((refusal(odd), None, "words") for odd in (MAX_CODE + 1, 0, "0", -1, 10**400, True, 1.5, [1], {"a": 1})),
        ({"success": False, "errors": []}, None, ""),
        ({"errors": [{"message": "only words"}]}, None, "only words"),
        ({"error": {"code": 5007, "message": "no model"}}, 5007, "no model"),
        ({"code": 10000, "message": "auth"}, 10000, "auth"),
        ({"internalCode": 3030, "message": "m"}, 3030, "m"),
        ({"errors": [{"code": None, "internalCode": 3030}]}, 3030, ""),
        ({"errors": ["text first"]}, None, "text first"),
    ],
)
@pytest.mark.parametrize("submitting", [True, False])
def test_a_4xx_is_a_refusal_with_code_and_words_wherever_they_stand(content, code, words, submitting):
    reply = (submit if submitting else ask)(Api(httpx.Response(400, json=content)))
    assert reply == Rejected(400, code, words, None, enveloped=True)


@pytest.mark.parametrize("status", [200, 500, 503])
def test_the_apis_own_envelope_of_an_error_is_a_refusal_whatever_the_status(status):
    assert submit(Api(httpx.Response(status, json=refusal(3040)))) == Rejected(status, 3040, "words", enveloped=True)


@pytest.mark.parametrize("status", [300, 301, 302, 307, 308, 400, 401, 403, 404, 405, 408, 410, 413, 422, 429])
@pytest.mark.parametrize(
    "content",
    [b"", b"<html>no</html>", b"{", b"\xff", b"{}", b'{"message":"Forbidden"}', b'{"error":"no"}', b'{"errors":{}}'],
)
@pytest.mark.parametrize("submitting", [True, False])
def test_any_3xx_or_4xx_page_is_a_refusal(status, content, submitting):
    reply = (submit if submitting else ask)(Api(httpx.Response(status, content=content)))
    assert isinstance(reply, Rejected)
    assert (reply.status, reply.code, reply.enveloped) == (status, None, False)


@pytest.mark.parametrize("submitting", [True, False])
@pytest.mark.parametrize(
    ("status", "content"),
    [
        *(
            (status, page)
            for status in (500, 502, 503, 504, 520, 524)
            for page in (b"", b"<html>bad gateway</html>", b"{}", b"[]")
        ),
        *(
            (200, page)
            for page in (b"", b"<html>ok</html>", b'{"result":{"request_id":"id', b"[]", b"null", b"\xff\xfe")
        ),
    ],
)
def test_what_is_not_the_apis_is_lost(status, content, submitting):
    assert isinstance((submit if submitting else ask)(Api(httpx.Response(status, content=content))), OutcomeUnknown)


@pytest.mark.parametrize(
    "content",
    [
        enveloped({}),
        enveloped(None),
        enveloped({"request_id": ""}),
        enveloped({"request_id": 7}),
        enveloped({"request_id": "x" * (MAX_REQUEST_ID_CHARACTERS + 1)}),
        enveloped({"status": "queued", "results": []}),
        enveloped({"status": "queued"}),
        {},
    ],
)
def test_a_good_submit_without_id_or_results_is_lost(content):
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
        *((odd, None) for odd in ("0", "-1", "soon", "", "²", "1e3", "inf", "nan", "Sat, 21 Nov 2026 09:29:00 GMT")),
    ],
)
@time_machine.travel("2026-11-21T09:30:00Z", tick=False)
def test_retry_after_is_a_bounded_number_of_seconds_or_says_nothing(header, seconds):
    reply = parse_reply(429, header, b"", submitting=True)
    assert reply.retry_after == seconds


@given(header=st.text(max_size=40))
def test_any_retry_after_is_bounded(header):
    seconds = parse_reply(429, header, b"", submitting=True).retry_after
    assert seconds is None or 0 < seconds <= MAX_RETRY_AFTER_SECONDS


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b"cut \\ud83d", b"cut \\ufffd"),
        (b"cut \\ud83d too", b"cut \\ufffd too"),
        (b"\\uDE00", b"\\ufffd"),
        (b"\\ud83d\\ude00", b"\\ud83d\\ude00"),
        (b"\\ud83d\\ud83d\\ude00", b"\\ufffd\\ud83d\\ude00"),
        (b"\\\\ud83d \\ud83d", b"\\\\ud83d \\ufffd"),
    ],
)
def test_half_a_surrogate_pair_does_not_lose_the_answer(written, kept):
    template = b'{"result":{"responses":[{"id":0,"success":true,"result":{"response":"%b"}}]},"success":true}'
    assert ask(Api(httpx.Response(200, content=template % written))) == template % kept


@given(content=st.binary(max_size=80), status=st.integers(200, 599), submitting=st.booleans())
def test_any_bytes_are_taken_for_something(content, status, submitting):
    reply = parse_reply(status, None, content, submitting=submitting)
    assert isinstance(
        reply, Rejected if 300 <= status < 500 else (Accepted, Answer, Pending, Rejected, Failed, OutcomeUnknown)
    )


@given(
    content=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(
                    [
                        "result",
                        "success",
                        "errors",
                        "error",
                        "code",
                        "message",
                        "status",
                        "request_id",
                        "responses",
                        "results",
                    ]
                ),
                inner,
                max_size=5,
            ),
        ),
        max_leaves=12,
    ),
    status=st.sampled_from([200, 302, 400, 500]),
    submitting=st.booleans(),
)
def test_any_json_of_the_apis_words_is_taken_for_something(content, status, submitting):
    reply = parse_reply(status, None, json.dumps(content).encode(), submitting=submitting)
    if isinstance(reply, Accepted):
        assert submitting
        assert reply.request_id
    assert not (submitting and isinstance(reply, Pending))


# ── what the wire does ───────────────────────────────────────────────────────────────────────────────────────────────

NOT_SENT = {httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout}
UNKNOWABLE = {
    httpx.CloseError,
    httpx.DecodingError,
    httpx.HTTPError,
    httpx.HTTPStatusError,
    httpx.LocalProtocolError,
    httpx.NetworkError,
    httpx.ProtocolError,
    httpx.ProxyError,
    httpx.ReadError,
    httpx.ReadTimeout,
    httpx.RemoteProtocolError,
    httpx.RequestError,
    httpx.TimeoutException,
    httpx.TooManyRedirects,
    httpx.TransportError,
    httpx.UnsupportedProtocol,
    httpx.WriteError,
    httpx.WriteTimeout,
}
NOT_OF_AN_EXCHANGE = {
    httpx.CookieConflict,
    httpx.InvalidURL,
    httpx.RequestNotRead,
    httpx.ResponseNotRead,
    httpx.StreamClosed,
    httpx.StreamConsumed,
    httpx.StreamError,
}
"""Raised for misuse of the library only."""


def test_every_exception_of_httpx_is_known_here():
    exceptions = {kind for kind in vars(httpx).values() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert exceptions == NOT_SENT | UNKNOWABLE | NOT_OF_AN_EXCHANGE


def made(kind):
    if kind is httpx.HTTPStatusError:
        return kind("words", request=httpx.Request("POST", BASE), response=httpx.Response(500))
    return kind("words")


def by_name(kinds):
    return sorted(kinds, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", by_name(NOT_SENT))
def test_without_a_connection_nothing_was_done(kind):
    api = Api(made(kind))
    assert submit(api) == Rejected(0, None, f"no connection: {kind.__name__}")
    assert len(api.requests) == 1


@pytest.mark.parametrize("kind", by_name(UNKNOWABLE))
@pytest.mark.parametrize("submitting", [True, False])
def test_any_other_trouble_is_lost_and_nothing_is_sent_again(kind, submitting):
    api = Api(made(kind))
    assert (submit if submitting else ask)(api) == OutcomeUnknown(kind.__name__)
    assert len(api.requests) == 1


class Stream(httpx.SyncByteStream):
    """A body in pieces; between them time passes or it breaks off."""

    def __init__(self, pieces):
        self.pieces = pieces

    def __iter__(self):
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece() if callable(piece) else piece


@pytest.mark.parametrize("kind", [httpx.ReadError, httpx.ReadTimeout, httpx.RemoteProtocolError])
def test_a_body_that_breaks_off_is_lost(kind):
    pieces = [b'{"result":{"request_id":"id-1"}', kind("words")]
    api = Api(httpx.Response(200, stream=Stream(pieces)))
    assert submit(api) == OutcomeUnknown(kind.__name__)
    assert len(api.requests) == 1


def test_a_body_that_dribbles_ends_at_the_deadline(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    given_out = []

    def piece():
        clock[0] += 7
        given_out.append(1)
        return b" "

    assert submit(Api(httpx.Response(200, stream=Stream([piece] * 1_000)))) == OutcomeUnknown("TimeoutError")
    assert len(given_out) == 9  # of 60 seconds


def test_the_deadline_is_the_longest_wait_for_an_answer():
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    with client(api).submit(MODEL, BODY, 42):
        pass
    timeout = api.requests[0].extensions["timeout"]
    assert 41 < timeout["read"] <= 42
    assert timeout["connect"] == module.CONNECT_SECONDS


def test_a_body_in_an_unasked_encoding_that_is_broken_is_lost():
    api = Api(httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Stream([b"no gzip"])))
    assert submit(api) == OutcomeUnknown("DecodingError")


@pytest.mark.parametrize("size", [MAX_BYTES_IN_MEMORY - 100, MAX_BYTES_IN_MEMORY + 1, 4 * MAX_BYTES_IN_MEMORY])
def test_a_large_answer_lies_on_disk_and_is_the_same_bytes(size):
    body = json.dumps(enveloped({"responses": [{"id": 0, "result": "x" * size}]})).encode()
    pieces = [body[at : at + 70_000] for at in range(0, len(body), 70_000)]
    with client(Api(httpx.Response(200, stream=Stream(pieces)))).poll(MODEL, "id-1", 60) as reply:
        assert isinstance(reply, Answer)
        assert isinstance(reply.body, mmap.mmap if len(body) > MAX_BYTES_IN_MEMORY else bytes)
        assert reply.body[:] == body
        held = weakref.ref(reply.body) if isinstance(reply.body, mmap.mmap) else None
    del reply
    assert held is None or held() is None


@pytest.mark.parametrize("submitting", [True, False])
def test_an_answer_beyond_what_can_be_held_is_a_failed_batch_and_is_not_read_on(monkeypatch, submitting):
    monkeypatch.setattr(module, "MAX_REPLY_BYTES", 1_000)
    taken = []

    def pieces():
        for number in range(100):
            taken.append(number)
            yield b" " * 300

    api = Api(httpx.Response(200, stream=Stream(pieces())))
    reply = (submit if submitting else ask)(api)
    assert reply == Failed(None, "its answer has over 1,000 bytes, more than Dropbatch can hold")
    assert len(taken) == 4


def test_a_large_answer_may_be_let_go_while_views_of_it_live():
    body = json.dumps({"responses": ["x" * 2 * MAX_BYTES_IN_MEMORY]}).encode()
    with client(Api(httpx.Response(200, content=body))).poll(MODEL, "id-1", 60) as reply:
        (raw,) = msgspec.json.decode(reply.body, type=dict[str, msgspec.Raw]).values()
    assert bytes(raw)[:3] == b'["x'


# ── redirects and tokens ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_the_token_not_sent_on(status):
    api = Api(httpx.Response(status, headers={"location": "https://evil.example/"}))
    assert isinstance(submit(api), Rejected)
    assert [request.url.host for request in api.requests] == ["api.cloudflare.com"]


def test_a_redirect_of_the_tokens_check_is_not_followed():
    api = Api(httpx.Response(302, headers={"location": "https://evil.example/"}))
    assert client(api).check_token() is TokenState.REFUSED
    assert len(api.requests) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_read_anew_and_a_changed_one_tried_once(status):
    api = Api(httpx.Response(status, json=refusal(10000)), httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    assert submit(api, Secret("old", "new")) == Accepted("id-1")
    assert [request.headers["authorization"] for request in api.requests] == ["Bearer old", "Bearer new"]
    assert [request.content for request in api.requests] == [BODY, BODY]


def test_a_changed_token_that_is_refused_too_is_not_tried_a_third_time():
    api = Api(httpx.Response(401, json=refusal(10000)))
    assert submit(api, Secret("old", "new", "newer")) == Rejected(401, 10000, "words", enveloped=True)
    assert len(api.requests) == 2


def test_an_unchanged_token_is_not_tried_again():
    api = Api(httpx.Response(401, json=refusal(10000)))
    assert submit(api) == Rejected(401, 10000, "words", enveloped=True)
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        *(httpx.Response(status, json=refusal(10000)) for status in (400, 404, 408, 409, 413, 429, 500, 503)),
        *(httpx.Response(status, content=b"<html>") for status in (200, 307, 404, 500, 502, 504)),
        httpx.Response(200, json=enveloped({})),
        *map(made, by_name(NOT_SENT | UNKNOWABLE)),
    ],
)
def test_no_other_reply_to_a_submit_is_followed_by_a_second_post(answer):
    api = Api(answer)
    submit(api, Secret("old", "new"))
    assert len(api.requests) == 1


def test_a_lost_second_post_is_lost():
    api = Api(httpx.Response(401, json=refusal(10000)), made(httpx.ReadTimeout))
    assert submit(api, Secret("old", "new")) == OutcomeUnknown("ReadTimeout")


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "zero\u200bwidth", "tökén"])
def test_a_secret_that_holds_no_token_is_a_refused_token_and_no_lost_post(token):
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    assert submit(api, Secret(token)) == Rejected(401, None, "The secret holds no token.")
    assert client(api, Secret(token)).check_token() is TokenState.REFUSED
    assert api.requests == []


def test_a_secret_that_cannot_be_read_sends_nothing():
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    reply = submit(api, Secret(StorageError("Secrets Manager: throttled")))
    assert reply == Rejected(0, None, "no token: Secrets Manager: throttled")
    assert api.requests == []


def test_a_refused_token_stays_one_when_the_secret_cannot_be_read_anew():
    api = Api(httpx.Response(401, json=refusal(10000)))
    assert submit(api, Secret("old", StorageError("down"))) == Rejected(401, 10000, "words", enveloped=True)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (httpx.Response(200, json={"success": True, "result": []}), TokenState.GOOD),
        *((httpx.Response(status, json=refusal(10000)), TokenState.REFUSED) for status in (400, 401, 403)),
        (httpx.Response(403, json=refusal(9109)), TokenState.REFUSED),
        (httpx.Response(404, json=refusal(7003)), TokenState.REFUSED),
        (httpx.Response(400, json=refusal(7000)), TokenState.REFUSED),
        (httpx.Response(403, json={"success": False, "errors": []}), TokenState.REFUSED),
        (httpx.Response(200, content=b"<html>welcome</html>"), TokenState.UNKNOWN),
        (httpx.Response(200, json={"message": "ok"}), TokenState.UNKNOWN),
        *((httpx.Response(status), TokenState.UNKNOWN) for status in (401, 403, 404, 429, 500)),
        (httpx.Response(403, content=b"<html>firewall</html>"), TokenState.UNKNOWN),
        (httpx.Response(429, json=refusal(971)), TokenState.UNKNOWN),
        (httpx.Response(500, json=refusal(10013)), TokenState.UNKNOWN),
        (made(httpx.ConnectError), TokenState.UNKNOWN),
        (made(httpx.ReadTimeout), TokenState.UNKNOWN),
    ],
)
def test_a_token_is_good_or_refused_only_when_the_api_itself_says_so(answer, state):
    api = Api(answer)
    assert client(api).check_token() is state
    (request,) = api.requests
    assert request.method == "GET"
    assert request.url.path == f"/client/v4/accounts/{ACCOUNT}/ai/models/search"


def test_a_refused_token_is_unknown_when_the_secret_holds_another_by_now():
    api = Api(httpx.Response(401, json=refusal(10000)))
    assert client(api, Secret("old", "new")).check_token() is TokenState.UNKNOWN
    assert client(api, Secret(StorageError("down"))).check_token() is TokenState.UNKNOWN
    assert len(api.requests) == 1


def test_a_token_never_shows_in_a_reply():
    replies = [submit(Api(answer)) for answer in (httpx.Response(401), made(httpx.ReadError), made(httpx.ConnectError))]
    assert TOKEN not in repr(replies)


def test_an_error_of_the_caller_is_the_callers():
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    with pytest.raises(ZeroDivisionError), client(api).submit(MODEL, BODY, 60):
        raise ZeroDivisionError
    assert len(api.requests) == 1

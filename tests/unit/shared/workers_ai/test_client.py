"""The client of the API: what is sent where, with which token, and what breaks off."""

import gc
import json
import mmap
import sys
import weakref

import httpx
import pytest

from shared.errors import StorageError
from shared.spool import MAX_BYTES_IN_MEMORY
from shared.workers_ai import client as module
from shared.workers_ai.client import TokenState, WorkersAI, http_client
from shared.workers_ai.replies import Accepted, Failed, OutcomeUnknown, Rejected
from shared.workers_ai.results import Answer
from shared.workers_ai.transports import Credentials, rest, worker
from tests.support.doubles.api_client import (
    ACCOUNT,
    BASE,
    BODY,
    MODEL,
    NOT_SENT,
    REST,
    TOKEN,
    UNKNOWABLE,
    Api,
    Secret,
    ask,
    by_name,
    client,
    enveloped,
    made,
    refusal,
    submit,
)


def test_submit_is_one_post_of_very_body():
    api = Api(httpx.Response(200, json=enveloped({"status": "queued", "request_id": "id-1"})))
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
def test_body_that_was_sent_is_not_held_on_to(answer):
    """Else a warm function that submits one batch of 10 MB after another grows by each."""
    body = BODY * 100_000
    # A cycle would be found some time: not in time, for few large objects do not make it look.
    gc.disable()
    try:
        before = sys.getrefcount(body)
        with client(Api(answer)).submit(MODEL, body, 60):
            pass
        assert sys.getrefcount(body) == before
    finally:
        gc.enable()


def test_nothing_is_taken_from_environment(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert http_client()._mounts == {}


@pytest.mark.parametrize("kind", by_name(NOT_SENT))
def test_without_connection_nothing_was_done(kind):
    api = Api(made(kind))
    assert submit(api) == Rejected(0, None, f"no connection: {kind.__name__}")
    assert len(api.requests) == 1


@pytest.mark.parametrize("kind", by_name(UNKNOWABLE))
@pytest.mark.parametrize("submitting", [True, False])
def test_other_errors_are_outcome_unknown_and_not_retried(kind, submitting):
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
def test_body_that_breaks_off_is_lost(kind):
    pieces = [b'{"result":{"request_id":"id-1"}', kind("words")]
    api = Api(httpx.Response(200, stream=Stream(pieces)))
    assert submit(api) == OutcomeUnknown(kind.__name__)
    assert len(api.requests) == 1


def test_body_that_dribbles_ends_at_deadline(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    given_out = []

    def piece():
        clock[0] += 7
        given_out.append(1)
        return b" "

    reply = submit(Api(httpx.Response(200, stream=Stream([piece] * 1_000))))
    assert reply == OutcomeUnknown("TimeoutError")
    assert len(given_out) == 9  # of 60 seconds


def test_deadline_is_longest_wait_for_answer():
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    with client(api).submit(MODEL, BODY, 42):
        pass
    timeout = api.requests[0].extensions["timeout"]
    assert 41 < timeout["read"] <= 42
    assert timeout["connect"] == module.CONNECT_SECONDS


@pytest.mark.parametrize(
    "size", [MAX_BYTES_IN_MEMORY - 100, MAX_BYTES_IN_MEMORY + 1, 4 * MAX_BYTES_IN_MEMORY]
)
def test_large_answer_is_kept_on_disk_byte_for_byte(size):
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
def test_too_large_answer_is_failed_batch(monkeypatch, submitting):
    monkeypatch.setattr(module, "MAX_REPLY_BYTES", 1_000)
    taken = []

    def pieces():
        for number in range(100):
            taken.append(number)
            yield b" " * 300 if number else b'{"result":{"responses":[{"id":0,"result":"'

    api = Api(httpx.Response(200, stream=Stream(pieces())))
    reply = (submit if submitting else ask)(api)
    assert reply == Failed(None, "its answer has over 1,000 bytes, more than Dropbatch can hold")
    assert len(taken) == 5


@pytest.mark.parametrize("submitting", [True, False])
@pytest.mark.parametrize(
    ("status", "begin", "reply"),
    [
        (200, b"<html>", OutcomeUnknown),
        (502, b"<html>", OutcomeUnknown),
        (404, b"<html>", Rejected),
        (500, b'{"result":{"responses":[{"id":0,"result":"', OutcomeUnknown),
        (200, b'{"result":{"responses":[{},{},{},', OutcomeUnknown),
        (200, b'{"result":{"text":"\\"responses\\":[{\\"result\\":1', OutcomeUnknown),
        (200, b'{"result":null,"success":false,"errors":[', OutcomeUnknown),
    ],
)
def test_too_large_reply_is_no_answer_if_it_does_not_begin_as_one(
    monkeypatch, submitting, status, begin, reply
):
    monkeypatch.setattr(module, "MAX_REPLY_BYTES", 1_000)
    api = Api(httpx.Response(status, stream=Stream([begin, b"x" * 2_000])))

    found = (submit if submitting else ask)(api)

    assert isinstance(found, reply)
    assert not getattr(found, "enveloped", False)


@pytest.mark.parametrize(("size", "status"), [(1_000_000, 200), (1_000_001, 0)])
def test_reply_of_other_api_is_read_up_to_a_size(size, status):
    fetched, _ = client(Api(httpx.Response(200, content=b" " * size))).fetch("GET", "/a", None, 5.0)
    assert fetched == status


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(status):
    api = Api(httpx.Response(status, headers={"location": "https://evil.example/"}))
    assert isinstance(submit(api), Rejected)
    assert client(api).check_token() is TokenState.REFUSED
    assert [request.url.host for request in api.requests] == ["api.cloudflare.com"] * 2


@pytest.mark.parametrize("status", [401, 403])
def test_refused_token_is_reread_and_retried_once(status):
    api = Api(
        httpx.Response(status, json=refusal(10000)),
        httpx.Response(200, json=enveloped({"request_id": "id-1"})),
    )
    assert submit(api, Secret("old", "new")) == Accepted("id-1")
    sent = [(request.headers["authorization"], request.content) for request in api.requests]
    assert sent == [("Bearer old", BODY), ("Bearer new", BODY)]


def test_second_refusal_is_not_retried():
    api = Api(httpx.Response(401, json=refusal(10000)))
    reply = submit(api, Secret("old", "new", "newer"))
    assert reply == Rejected(401, 10000, "words", enveloped=True)
    assert len(api.requests) == 2


@pytest.mark.parametrize(
    "answer",
    [
        *(httpx.Response(status, json=refusal(10000)) for status in (400, 404, 429, 500, 503)),
        *(httpx.Response(status, content=b"<html>") for status in (200, 307, 404, 500, 504)),
        httpx.Response(200, json=enveloped({})),
        *map(made, by_name(NOT_SENT | UNKNOWABLE)),
    ],
)
def test_other_replies_cause_no_second_post(answer):
    api = Api(answer)
    submit(api, Secret("old", "new"))
    assert len(api.requests) == 1


@pytest.mark.parametrize("token", ["", "bad\n", "zero\u200bwidth", "tökén"])
def test_secret_that_no_header_can_hold_is_refused_token(token):
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    assert submit(api, Secret(token)) == Rejected(401, None, "The secret holds no token.")
    assert client(api, Secret(token)).check_token() is TokenState.REFUSED
    for wrong in (Credentials(token), Credentials("a b"), Credentials("good", f"{token}\n")):
        assert call(client_of("gateway", api, wrong)).status == 401
    assert api.requests == []


def test_secret_that_cannot_be_read_sends_nothing():
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    reply = submit(api, Secret(StorageError("Secrets Manager: throttled")))
    assert reply == Rejected(0, None, "no token: Secrets Manager: throttled")
    assert api.requests == []


def refused(status, code):
    return httpx.Response(status, json=refusal(code))


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (httpx.Response(200, json={"success": True, "result": []}), TokenState.GOOD),
        *((refused(status, 10000), TokenState.REFUSED) for status in (400, 401, 403)),
        (refused(403, 9109), TokenState.REFUSED),
        (refused(404, 7003), TokenState.REFUSED),
        (refused(400, 7000), TokenState.REFUSED),
        (httpx.Response(403, json={"success": False, "errors": []}), TokenState.REFUSED),
        (httpx.Response(200, content=b"<html>welcome</html>"), TokenState.UNKNOWN),
        (httpx.Response(200, json={"message": "ok"}), TokenState.UNKNOWN),
        *((httpx.Response(status), TokenState.UNKNOWN) for status in (401, 403, 404, 429, 500)),
        (httpx.Response(403, content=b"<html>firewall</html>"), TokenState.UNKNOWN),
        (refused(429, 971), TokenState.UNKNOWN),
        (refused(500, 10013), TokenState.UNKNOWN),
        (refused(502, 7000), TokenState.UNKNOWN),
        (made(httpx.ConnectError), TokenState.UNKNOWN),
        (made(httpx.ReadTimeout), TokenState.UNKNOWN),
    ],
)
def test_only_api_judges_token(answer, state):
    api = Api(answer)
    assert client(api).check_token() is state
    (request,) = api.requests
    assert request.method == "GET"
    assert request.url.path == f"/client/v4/accounts/{ACCOUNT}/ai/models/search"


def test_refused_token_is_unknown_after_change():
    api = Api(httpx.Response(401, json=refusal(10000)))
    assert client(api, Secret("old", "new")).check_token() is TokenState.UNKNOWN
    assert client(api, Secret(StorageError("down"))).check_token() is TokenState.UNKNOWN
    assert len(api.requests) == 1


def test_token_never_shows_in_reply():
    replies = [
        submit(Api(answer))
        for answer in (httpx.Response(401), made(httpx.ReadError), made(httpx.ConnectError))
    ]
    assert TOKEN not in repr(replies)


TRANSPORTS = {
    "rest": REST,
    "gateway": rest(BASE, ACCOUNT, "my-gateway"),
    "worker": worker("https://dropbatch.example.workers.dev"),
}
AI = f"{BASE}/accounts/{ACCOUNT}/ai"
RUN_URLS = {
    **dict.fromkeys(("rest", "gateway"), f"{AI}/run/{MODEL}"),
    "worker": f"https://dropbatch.example.workers.dev/run/{MODEL}",
}
ACCEPTED = {"status": "queued", "request_id": "id-1"}


def client_of(name, api, *credentials):
    secret = Secret(*credentials or [Credentials("secret")])
    return WorkersAI(http_client(httpx.MockTransport(api)), TRANSPORTS[name], secret)


def call(ai, *, poll=False):
    with ai.poll(MODEL, "id-1", 60) if poll else ai.submit(MODEL, b'{"requests":[]}', 60) as reply:
        return reply


GATEWAYS = {"gateway-id": "my-gateway", "skip-cache": "true", "max-attempts": "1"}


@pytest.mark.parametrize("name", TRANSPORTS)
@pytest.mark.parametrize("poll", [False, True])
def test_calls_go_to_transports_address_and_no_gateway_caches_or_repeats_them(name, poll):
    api = Api(httpx.Response(200, json=ACCEPTED))
    call(client_of(name, api), poll=poll)
    (request,) = api.requests
    assert str(request.url) == f"{RUN_URLS[name]}?queueRequest=true"
    assert request.method == "POST"
    assert request.headers["authorization"] == "Bearer secret"
    told = {one[7:]: value for one, value in request.headers.items() if one[:7] == "cf-aig-"}
    assert told == (GATEWAYS if name == "gateway" else {})


def test_only_gateway_gets_gateways_token():
    api = Api(httpx.Response(200, json={"success": True}))
    ai = client_of("gateway", api, Credentials("secret", "gateway-secret"))
    call(ai)
    assert ai.check_token() is TokenState.GOOD
    run, check = api.requests
    assert run.headers["cf-aig-authorization"] == "Bearer gateway-secret"
    assert check.url.host == "api.cloudflare.com"
    assert "cf-aig-authorization" not in check.headers


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("rest", f"{AI}/models/search?per_page=1"),
        ("gateway", f"{AI}/models/search?per_page=1"),
        ("worker", "https://dropbatch.example.workers.dev/check"),
    ],
)
def test_free_call_says_whether_secret_is_good(name, url):
    api = Api(httpx.Response(200, json={"success": True}))
    assert client_of(name, api).check_token() is TokenState.GOOD
    (request,) = api.requests
    assert (request.method, str(request.url)) == ("GET", url)


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, 2009, "Unauthorized"),
        (400, 2001, "Please configure AI Gateway in the Cloudflare dashboard"),
        (429, 2003, "Rate limited"),
    ],
)
def test_error_in_gateways_own_form_is_read(status, code, message):
    error = {"error": [{"code": code, "message": message}]}
    api = Api(httpx.Response(status, json={"success": False, "result": []} | error))
    assert call(client_of("gateway", api)) == Rejected(status, code, message, enveloped=True)


def test_changed_gateway_token_is_retried_once():
    def answer(request):
        good = request.headers["cf-aig-authorization"] == "Bearer new"
        refused = {"success": False, "error": [{"code": 2009, "message": "Unauthorized"}]}
        return httpx.Response(200, json=ACCEPTED) if good else httpx.Response(401, json=refused)

    api = Api(answer)
    ai = client_of("gateway", api, Credentials("a", "old"), Credentials("a", "new"))
    assert call(ai) == Accepted("id-1")
    assert len(api.requests) == 2

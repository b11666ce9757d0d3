"""The client of the API: what is sent, connections that fail, and answers too large for memory."""

import gc
import inspect
import json
import mmap
import sys
import weakref

import httpx
import msgspec
import pytest

from shared.spool import MAX_BYTES_IN_MEMORY
from shared.workers_ai import client as module
from shared.workers_ai.client import http_client
from shared.workers_ai.replies import (
    Accepted,
    Failed,
    OutcomeUnknown,
    Pending,
    Rejected,
)
from shared.workers_ai.results import Answer
from tests.support.doubles.api_client import (
    ACCOUNT,
    BASE,
    BODY,
    MODEL,
    NOT_SENT,
    TOKEN,
    UNKNOWABLE,
    Api,
    ask,
    by_name,
    client,
    enveloped,
    made,
    submit,
)


def test_submit_is_one_post_of_very_body():
    api = Api(
        httpx.Response(
            200, json=enveloped({"status": "queued", "request_id": "id-1", "model": MODEL})
        )
    )
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


def test_poll_names_request_id_and_nothing_else():
    api = Api(httpx.Response(200, json=enveloped({"status": "running"})))
    assert ask(api) == Pending("running")
    (request,) = api.requests
    assert json.loads(request.content) == {"request_id": "id-1"}
    assert str(request.url).endswith("?queueRequest=true")


def test_nothing_is_taken_from_environment(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    assert http_client()._mounts == {}


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
    exceptions = {
        kind
        for kind in vars(httpx).values()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert exceptions == NOT_SENT | UNKNOWABLE | NOT_OF_AN_EXCHANGE


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

    assert submit(Api(httpx.Response(200, stream=Stream([piece] * 1_000)))) == OutcomeUnknown(
        "TimeoutError"
    )
    assert len(given_out) == 9  # of 60 seconds


def test_deadline_is_longest_wait_for_answer():
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    with client(api).submit(MODEL, BODY, 42):
        pass
    timeout = api.requests[0].extensions["timeout"]
    assert 41 < timeout["read"] <= 42
    assert timeout["connect"] == module.CONNECT_SECONDS


def test_broken_unasked_encoding_is_outcome_unknown():
    api = Api(
        httpx.Response(200, headers={"content-encoding": "gzip"}, stream=Stream([b"no gzip"]))
    )
    assert submit(api) == OutcomeUnknown("DecodingError")


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
            yield (
                b" " * 300
                if number
                else b'{"result":{"responses":[{"id":0,"success":true,"result":"'
            )

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


def test_large_answer_may_be_freed_under_views():
    body = json.dumps({"responses": [{"result": "x" * 2 * MAX_BYTES_IN_MEMORY}]}).encode()
    with client(Api(httpx.Response(200, content=body))).poll(MODEL, "id-1", 60) as reply:
        (raw,) = msgspec.json.decode(reply.body, type=dict[str, msgspec.Raw]).values()
    assert bytes(raw)[:3] == b'[{"'


# ── the account's other APIs ──────────────────────────────────────────────────────────────────────


def test_silence_of_other_api_lasts_no_longer_than_its_call():
    api = Api(httpx.Response(200, json=enveloped([])))
    assert client(api).fetch("GET", "/queues", None, 5.0)[0] == 200
    assert api.requests[0].extensions["timeout"]["read"] == pytest.approx(5.0, abs=0.5)


def test_silence_of_tokens_check_lasts_no_longer_than_its_call():
    api = Api(httpx.Response(200, json=enveloped([])))
    client(api).check_token()
    longest = api.requests[0].extensions["timeout"]["read"]
    assert longest == pytest.approx(module.TOKEN_CHECK_SECONDS, abs=0.5)


@pytest.mark.parametrize(("size", "status"), [(1_000_000, 200), (1_000_001, 0)])
def test_reply_of_other_api_is_read_up_to_a_size(size, status):
    fetched, _ = client(Api(httpx.Response(200, content=b" " * size))).fetch("GET", "/a", None, 5.0)
    assert fetched == status

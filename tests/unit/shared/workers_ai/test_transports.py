"""The transports: what each sends where, and which secret goes along."""

import contextlib

import httpx
import pytest

from shared.errors import StorageError
from shared.workers_ai.client import WorkersAI, http_client
from shared.workers_ai.error_codes import TokenState
from shared.workers_ai.replies import Accepted, Rejected
from shared.workers_ai.transports import Credentials, rest, worker
from tests.support.doubles.api_client import ACCOUNT, BASE, MODEL, REST, Api, Secret, enveloped

TRANSPORTS = {
    "rest": REST,
    "gateway": rest(BASE, ACCOUNT, "my-gateway"),
    "worker": worker("https://dropbatch.example.workers.dev"),
}
RUN_URLS = {
    "rest": f"{BASE}/accounts/{ACCOUNT}/ai/run/{MODEL}",
    "gateway": f"{BASE}/accounts/{ACCOUNT}/ai/run/{MODEL}",
    "worker": f"https://dropbatch.example.workers.dev/run/{MODEL}",
}
ACCEPTED = {"status": "queued", "request_id": "id-1"}


def client(name, api, *credentials):
    return WorkersAI(
        http_client(httpx.MockTransport(api)),
        TRANSPORTS[name],
        Secret(*credentials or [Credentials("secret")]),
    )


def call(ai, *, poll=False):
    with ai.poll(MODEL, "id-1", 60) if poll else ai.submit(MODEL, b'{"requests":[]}', 60) as reply:
        return reply


@pytest.mark.parametrize("name", TRANSPORTS)
@pytest.mark.parametrize("poll", [False, True])
def test_calls_go_to_transports_address(name, poll):
    api = Api(httpx.Response(200, json=ACCEPTED))
    call(client(name, api), poll=poll)
    (request,) = api.requests
    assert str(request.url) == f"{RUN_URLS[name]}?queueRequest=true"
    assert request.method == "POST"
    assert request.headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("name", TRANSPORTS)
def test_batch_is_accepted_with_and_without_envelope(name):
    bare = Api(httpx.Response(200, json=ACCEPTED))
    wrapped = Api(httpx.Response(200, json=enveloped(ACCEPTED)))
    assert call(client(name, bare)) == call(client(name, wrapped)) == Accepted("id-1")


@pytest.mark.parametrize("poll", [False, True])
def test_gateway_neither_caches_nor_repeats(poll):
    api = Api(httpx.Response(200, json=ACCEPTED))
    call(client("gateway", api), poll=poll)
    (request,) = api.requests
    assert request.headers["cf-aig-gateway-id"] == "my-gateway"
    assert request.headers["cf-aig-skip-cache"] == "true"
    assert request.headers["cf-aig-max-attempts"] == "1"
    assert "cf-aig-authorization" not in request.headers


def test_only_gateway_gets_gateways_token():
    api = Api(httpx.Response(200, json={"success": True}))
    ai = client("gateway", api, Credentials("secret", "gateway-secret"))
    call(ai)
    assert ai.check_token() is TokenState.GOOD
    run, check = api.requests
    assert run.headers["cf-aig-authorization"] == "Bearer gateway-secret"
    assert check.url.host == "api.cloudflare.com"
    assert "cf-aig-authorization" not in check.headers


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("rest", f"{BASE}/accounts/{ACCOUNT}/ai/models/search?per_page=1"),
        ("gateway", f"{BASE}/accounts/{ACCOUNT}/ai/models/search?per_page=1"),
        ("worker", "https://dropbatch.example.workers.dev/check"),
    ],
)
@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (httpx.Response(200, json={"success": True}), TokenState.GOOD),
        (
            httpx.Response(401, json={"success": False, "errors": [{"code": 10000}]}),
            TokenState.REFUSED,
        ),
        (httpx.Response(404, text="There is nothing here yet"), TokenState.UNKNOWN),
    ],
)
def test_free_call_says_whether_secret_is_good(name, url, answer, state):
    api = Api(answer)
    assert client(name, api).check_token() is state
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
    body = {
        "success": False,
        "result": [],
        "messages": [],
        "error": [{"code": code, "message": message}],
    }
    api = Api(httpx.Response(status, json=body))
    assert call(client("gateway", api)) == Rejected(status, code, message, enveloped=True)


def test_changed_gateway_token_is_retried_once():
    def answer(request):
        good = request.headers["cf-aig-authorization"] == "Bearer new"
        refused = {"success": False, "error": [{"code": 2009, "message": "Unauthorized"}]}
        return httpx.Response(200, json=ACCEPTED) if good else httpx.Response(401, json=refused)

    api = Api(answer)
    assert call(
        client("gateway", api, Credentials("a", "old"), Credentials("a", "new"))
    ) == Accepted("id-1")
    assert len(api.requests) == 2


@pytest.mark.parametrize(
    "credentials", [Credentials(""), Credentials("a b"), Credentials("good", "bad\n")]
)
def test_secret_that_no_header_can_hold_is_never_sent(credentials):
    api = Api(lambda request: pytest.fail("it was sent"))
    with contextlib.suppress(StorageError):
        assert call(client("gateway", api, credentials)).status == 401

"""The check of the token after `make deploy`: a wrong token and a wrong permission are different messages."""

import httpx
import pytest

from local.token_check import check_token, check_worker

ACCOUNT = "0123456789abcdef0123456789abcdef"
TOKEN = "secret-canary"
BASE = "https://api.cloudflare.com/client/v4"


def _api(models, verify=401):
    """An API that answers so to the list of models and to the token's own check."""

    def answer(request):
        assert request.headers["authorization"] == f"Bearer {TOKEN}"
        status = models if request.url.path.endswith("/ai/models/search") else verify
        errors = [] if status == 200 else [{"code": 10000, "message": "Authentication error"}]
        return httpx.Response(status, json={"success": status == 200, "errors": errors})

    return httpx.MockTransport(answer)


@pytest.mark.parametrize(
    ("transport", "words"),
    [
        (_api(403, 200), "Workers AI - Edit"),
        (_api(401), "does not know this token"),
        (_api(302), "try again later"),
        (_api(500), "try again later"),
    ],
)
def test_says_what_is_wrong(transport, words):
    told = check_token(BASE, ACCOUNT, TOKEN, transport)

    assert words in told
    assert TOKEN not in told


def test_a_good_token_needs_no_words():
    assert check_token(BASE, ACCOUNT, TOKEN, _api(200)) == ""


@pytest.mark.parametrize("token", ["", "token\n", " token"])
def test_a_token_with_white_space_is_not_even_sent(token):
    def refuse(request):
        raise AssertionError("sent")

    assert "bare token" in check_token(BASE, ACCOUNT, token, httpx.MockTransport(refuse))


def test_an_api_out_of_reach_is_not_a_wrong_token():
    def fail(request):
        raise httpx.ConnectError("no")

    assert "cannot be reached" in check_token(BASE, ACCOUNT, TOKEN, httpx.MockTransport(fail))


WORKER = "https://dropbatch.example.workers.dev"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (httpx.Response(200, json={"success": True}), ""),
        (httpx.Response(401, json={"success": False, "errors": [{"code": 10000}]}), "make deploy-worker"),
        (httpx.Response(404, text="error code: 1042"), "no such Worker"),
    ],
)
def test_the_workers_free_check_says_what_is_wrong(reply, said):
    asked = []

    def answer(request):
        asked.append((request.method, str(request.url), request.headers["authorization"]))
        return reply

    told = check_worker(WORKER, "shared", httpx.MockTransport(answer))
    assert (said in told) if said else told == ""
    assert asked == [("GET", f"{WORKER}/check", "Bearer shared")]


def test_a_worker_that_cannot_be_reached_is_named():
    def fail(request):
        raise httpx.ConnectError("no route")

    assert WORKER in check_worker(WORKER, "shared", httpx.MockTransport(fail))

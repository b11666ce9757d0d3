"""The client of the API.

Redirects, tokens that are refused and read anew, and a submit that is never sent twice.
"""

from types import SimpleNamespace

import httpx
import pytest

from shared.errors import StorageError
from shared.workers_ai.error_codes import TokenState, token_state
from shared.workers_ai.replies import (
    Accepted,
    OutcomeUnknown,
    Rejected,
)
from tests.support.doubles.api_client import (
    ACCOUNT,
    BODY,
    MODEL,
    NOT_SENT,
    TOKEN,
    UNKNOWABLE,
    Api,
    Secret,
    by_name,
    client,
    enveloped,
    made,
    refusal,
    submit,
)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(status):
    api = Api(httpx.Response(status, headers={"location": "https://evil.example/"}))
    assert isinstance(submit(api), Rejected)
    assert [request.url.host for request in api.requests] == ["api.cloudflare.com"]


def test_redirect_of_tokens_check_is_not_followed():
    api = Api(httpx.Response(302, headers={"location": "https://evil.example/"}))
    assert client(api).check_token() is TokenState.REFUSED
    assert len(api.requests) == 1


@pytest.mark.parametrize("status", [401, 403])
def test_refused_token_is_reread_and_retried_once(status):
    api = Api(
        httpx.Response(status, json=refusal(10000)),
        httpx.Response(200, json=enveloped({"request_id": "id-1"})),
    )
    assert submit(api, Secret("old", "new")) == Accepted("id-1")
    assert [request.headers["authorization"] for request in api.requests] == [
        "Bearer old",
        "Bearer new",
    ]
    assert [request.content for request in api.requests] == [BODY, BODY]


def test_second_refusal_is_not_retried():
    api = Api(httpx.Response(401, json=refusal(10000)))
    assert submit(api, Secret("old", "new", "newer")) == Rejected(
        401, 10000, "words", enveloped=True
    )
    assert len(api.requests) == 2


def test_unchanged_token_is_not_tried_again():
    api = Api(httpx.Response(401, json=refusal(10000)))
    assert submit(api) == Rejected(401, 10000, "words", enveloped=True)
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        *(
            httpx.Response(status, json=refusal(10000))
            for status in (400, 404, 408, 409, 413, 429, 500, 503)
        ),
        *(httpx.Response(status, content=b"<html>") for status in (200, 307, 404, 500, 502, 504)),
        httpx.Response(200, json=enveloped({})),
        *map(made, by_name(NOT_SENT | UNKNOWABLE)),
    ],
)
def test_other_replies_cause_no_second_post(answer):
    api = Api(answer)
    submit(api, Secret("old", "new"))
    assert len(api.requests) == 1


def test_failed_second_post_is_outcome_unknown():
    api = Api(httpx.Response(401, json=refusal(10000)), made(httpx.ReadTimeout))
    assert submit(api, Secret("old", "new")) == OutcomeUnknown("ReadTimeout")


@pytest.mark.parametrize("token", ["", "zero\u200bwidth", "tökén"])
def test_empty_secret_is_refused_token(token):
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    assert submit(api, Secret(token)) == Rejected(401, None, "The secret holds no token.")
    assert client(api, Secret(token)).check_token() is TokenState.REFUSED
    assert api.requests == []


def test_secret_that_cannot_be_read_sends_nothing():
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    reply = submit(api, Secret(StorageError("Secrets Manager: throttled")))
    assert reply == Rejected(0, None, "no token: Secrets Manager: throttled")
    assert api.requests == []


def test_unreadable_secret_keeps_token_refused():
    api = Api(httpx.Response(401, json=refusal(10000)))
    assert submit(api, Secret("old", StorageError("down"))) == Rejected(
        401, 10000, "words", enveloped=True
    )


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (httpx.Response(200, json={"success": True, "result": []}), TokenState.GOOD),
        *(
            (httpx.Response(status, json=refusal(10000)), TokenState.REFUSED)
            for status in (400, 401, 403)
        ),
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
        (httpx.Response(502, json=refusal(7000)), TokenState.UNKNOWN),
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


def test_without_call_left_token_is_not_checked():
    services = SimpleNamespace(
        now=lambda: 0.0, budget=SimpleNamespace(permit_check=lambda now: False)
    )
    assert token_state(services) is None


def test_token_never_shows_in_reply():
    replies = [
        submit(Api(answer))
        for answer in (httpx.Response(401), made(httpx.ReadError), made(httpx.ConnectError))
    ]
    assert TOKEN not in repr(replies)


def test_error_of_caller_is_callers():
    api = Api(httpx.Response(200, json=enveloped({"request_id": "id-1"})))
    with pytest.raises(ZeroDivisionError), client(api).submit(MODEL, BODY, 60):
        raise ZeroDivisionError
    assert len(api.requests) == 1

"""The client of the API, connected to an API that answers from a list."""

from typing import Any

import httpx

from shared.workers_ai.client import WorkersAI, http_client
from shared.workers_ai.results import Answer
from shared.workers_ai.transports import Credentials, Transport, rest

BASE = "https://api.cloudflare.com/client/v4"
ACCOUNT = "0123456789abcdef0123456789abcdef"
REST = rest(BASE, ACCOUNT)
MODEL = "@cf/baai/bge-small-en-v1.5"
BODY = b'{"requests":[{"text":"a"}]}'
TOKEN = "secret-canary"
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
"""httpx's exceptions by what they mean for a submit: certainly not sent, or unknown."""
ITEMS = [{"id": 0, "success": True, "result": {"data": [[0.5]]}}]


class Api:
    """An API that answers from a list, and keeps the requests."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> Any:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer


class Secret:
    """The token's secret; its value may change, and a warm process keeps the value it read."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)
        self.known: Any = None

    def __call__(self, fresh: bool) -> Any:  # noqa: FBT001 - as the client calls it
        if fresh and len(self.values) > 1:
            self.values.pop(0)
        if fresh or self.known is None:
            self.known = self.values[0]
        if isinstance(self.known, Exception):
            error, self.known = self.known, None
            raise error
        return self.known


def client(api: Any, secret: Secret | None = None, transport: Transport = REST) -> WorkersAI:
    read = secret or Secret(TOKEN)
    return WorkersAI(
        http_client(httpx.MockTransport(api)), transport, lambda fresh: Credentials(read(fresh))
    )


def submit(api: Any, secret: Secret | None = None) -> Any:
    with client(api, secret).submit(MODEL, BODY, 60) as reply:
        return reply


def ask(api: Any, secret: Secret | None = None) -> Any:
    with client(api, secret).poll(MODEL, "id-1", 60) as reply:
        return bytes(reply.body[:]) if isinstance(reply, Answer) else reply


def enveloped(result: Any, **more: Any) -> dict[str, Any]:
    return {"result": result, "success": True, "errors": [], "messages": [], **more}


def refusal(code: int, message: str = "words", **more: Any) -> dict[str, Any]:
    return {
        "result": None,
        "success": False,
        "errors": [{"code": code, "message": message}],
        "messages": [],
        **more,
    }


def made(kind: type[Exception]) -> Exception:
    if kind is httpx.HTTPStatusError:
        return kind("words", request=httpx.Request("POST", BASE), response=httpx.Response(500))
    return kind("words")


def by_name(kinds: Any) -> list[type[Exception]]:
    return sorted(kinds, key=lambda kind: kind.__name__)

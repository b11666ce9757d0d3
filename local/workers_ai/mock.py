"""The local Workers AI behind httpx without a socket.

Replies become responses, and broken connections become httpx's own errors.
"""

import math
from collections.abc import Iterator

import httpx

from local.workers_ai import routes
from local.workers_ai.api import WorkersAI
from local.workers_ai.replies import Cut, Reply


def transport(api: WorkersAI) -> httpx.MockTransport:
    """A transport that answers from `api`.

    A delay longer than the client's read timeout raises `ReadTimeout` immediately. A shorter one
    takes no time.
    """

    def wait(seconds: float, request: httpx.Request) -> None:
        patience = request.extensions.get("timeout", {}).get("read")
        if math.isinf(seconds) or (patience is not None and seconds > patience):
            raise httpx.ReadTimeout("The read operation timed out", request=request)

    def content(reply: Reply, request: httpx.Request) -> Iterator[bytes]:
        size, seconds = reply.pace or (65_536, 0.0)
        body = reply.body[: reply.cut_after]
        for start in range(0, len(body), size):
            wait(seconds, request)
            yield body[start : start + size]
        if reply.cut is not None:
            raise _broken(reply.cut, request, f"received {len(body)} of {len(reply.body)} bytes")

    def respond(request: httpx.Request) -> httpx.Response:
        path, _, query = request.url.raw_path.decode("ascii").partition("?")
        reply = routes.handle(api, request.method, path, query, request.headers, request.read())
        if reply.cut is Cut.REFUSE:
            raise httpx.ConnectError("[Errno 111] Connection refused", request=request)
        wait(reply.delay, request)
        if reply.cut is not None and reply.cut_after is None:
            raise _broken(reply.cut, request, "without sending a response")
        headers = [*reply.headers, ("content-length", str(len(reply.body)))]
        return httpx.Response(reply.status, headers=headers, content=content(reply, request))

    return httpx.MockTransport(respond)


def _broken(cut: Cut, request: httpx.Request, how: str) -> httpx.TransportError:
    """The error that httpx raises when a connection ends in this way."""
    if cut is Cut.RESET:
        return httpx.ReadError("[Errno 104] Connection reset by peer", request=request)
    return httpx.RemoteProtocolError(f"Server disconnected: {how}", request=request)

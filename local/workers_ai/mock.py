"""The local Workers AI behind httpx without a socket.

Replies become responses, and broken connections become httpx's own errors.
"""

import math
from collections.abc import AsyncIterator, Callable, Iterator

import httpx

from local.workers_ai.api import WorkersAI
from local.workers_ai.replies import Cut, Reply
from local.workers_ai.routes import Routes


def transport(api: WorkersAI, sleep: Callable[[float], None] | None = None) -> httpx.MockTransport:
    """A transport that answers from `api`.

    A delay longer than the client's read timeout raises `ReadTimeout` immediately. A shorter one
    takes no time, unless `sleep` is given (`time.sleep`, or a function that moves a test's clock).
    """
    routes = Routes(api)

    def respond(request: httpx.Request) -> httpx.Response:
        path, _, query = request.url.raw_path.decode("ascii").partition("?")
        reply = routes.handle(request.method, path, query, request.headers, request.read())
        patience = _patience(request)
        if reply.cut is Cut.REFUSE:
            raise httpx.ConnectError("[Errno 111] Connection refused", request=request)
        if reply.delay > patience or math.isinf(reply.delay):
            raise httpx.ReadTimeout("The read operation timed out", request=request)
        if sleep is not None and reply.delay:
            sleep(reply.delay)
        if reply.cut is not None and reply.cut_after is None:
            raise _broken(reply.cut, request)
        headers = [*reply.headers, ("content-length", str(len(reply.body)))]
        return httpx.Response(
            reply.status, headers=headers, stream=_Body(reply, request, patience, sleep)
        )

    return httpx.MockTransport(respond)


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A reply's body in its chunks, until the connection is cut off or the read timeout passes."""

    def __init__(
        self,
        reply: Reply,
        request: httpx.Request,
        patience: float,
        sleep: Callable[[float], None] | None,
    ) -> None:
        self._reply = reply
        self._request = request
        self._patience = patience
        self._sleep = sleep

    def __iter__(self) -> Iterator[bytes]:
        reply = self._reply
        size, wait = reply.pace or (65_536, 0.0)
        body = reply.body[: reply.cut_after]
        for start in range(0, len(body), size):
            if wait > self._patience:
                raise httpx.ReadTimeout("The read operation timed out", request=self._request)
            if self._sleep is not None and wait:
                self._sleep(wait)
            yield body[start : start + size]
        if reply.cut is not None:
            raise _broken(reply.cut, self._request, len(body), len(reply.body))

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


def _patience(request: httpx.Request) -> float:
    """The client's read timeout."""
    read = request.extensions.get("timeout", {}).get("read")
    return math.inf if read is None else float(read)


def _broken(
    cut: Cut, request: httpx.Request, got: int | None = None, whole: int = 0
) -> httpx.TransportError:
    """The error that httpx raises when a connection ends in this way."""
    if cut is Cut.RESET:
        return httpx.ReadError("[Errno 104] Connection reset by peer", request=request)
    if got is None:
        return httpx.RemoteProtocolError(
            "Server disconnected without sending a response.", request=request
        )
    return httpx.RemoteProtocolError(
        f"peer closed connection without sending complete message body (received {got} "
        f"bytes, expected {whole})",
        request=request,
    )

"""The local Workers AI on a socket: a thin ASGI application, and uvicorn to serve it.

The replies are made elsewhere.
"""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from local.workers_ai.api import WorkersAI
from local.workers_ai.replies import Cut, Reply
from local.workers_ai.routes import Routes

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: closing sends a reset.
_CHUNK = 262_144


class _Connections:
    """The open connections by their client's address."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], asyncio.Transport] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """The HTTP protocol of uvicorn, which also keeps this list."""
        register = self._open

        class Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type] # Chosen by uvicorn at run time.
            def connection_made(self, transport: asyncio.Transport) -> None:
                super().connection_made(transport)
                self.registered = self.client
                register[self.registered] = transport

            def connection_lost(self, exc: Exception | None) -> None:
                register.pop(self.registered, None)
                super().connection_lost(exc)

        return Protocol

    def end(self, client: tuple[str, int], cut: Cut) -> None:
        """Break the connection of a client."""
        transport = self._open.get((client[0], client[1]))
        if transport is None:
            return
        if cut is Cut.CLOSE:
            transport.close()
            return
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        transport.abort()


class App:
    """The ASGI application around one `WorkersAI`."""

    def __init__(self, api: WorkersAI, connections: _Connections) -> None:
        self._routes = Routes(api)
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        reply = await asyncio.to_thread(
            self._routes.handle,
            scope["method"],
            scope["raw_path"].decode("latin-1").partition("?")[0],
            scope["query_string"].decode("latin-1"),
            headers,
            bytes(body),
        )
        if reply.delay and await _left_within(reply.delay, receive):
            return
        if reply.cut is not None and reply.cut_after is None:
            self._connections.end(scope["client"], reply.cut)
            return
        await self._send(reply, scope, receive, send)

    async def _send(self, reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
        length = ("content-length", str(len(reply.body)))
        await send(
            {
                "type": "http.response.start",
                "status": reply.status,
                "headers": [
                    (name.encode(), value.encode()) for name, value in (*reply.headers, length)
                ],
            }
        )
        size, wait = reply.pace or (_CHUNK, 0.0)
        body = reply.body[: reply.cut_after]
        for start in range(0, len(body), size):
            if wait and await _left_within(wait, receive):
                return
            await send(
                {
                    "type": "http.response.body",
                    "body": body[start : start + size],
                    "more_body": True,
                }
            )
        if reply.cut is None:
            await send({"type": "http.response.body", "body": b""})
            return
        # Wait until the client has what was written: a reset discards it.
        await asyncio.sleep(0.05)
        self._connections.end(scope["client"], reply.cut)


async def _left_within(seconds: float, receive: Receive) -> bool:
    """Wait; return whether the client disconnected meanwhile."""
    try:
        async with asyncio.timeout(None if seconds == float("inf") else seconds):
            while (await receive())["type"] != "http.disconnect":
                pass
    except TimeoutError:
        return False
    return True


class _Server(uvicorn.Server):
    """uvicorn, which reports its port as soon as it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[int], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready(self.servers[0].sockets[0].getsockname()[1])


def server(
    api: WorkersAI, port: int = 0, ready: Callable[[int], None] = lambda _: None
) -> uvicorn.Server:
    """A server on the loopback address; `ready` is called with the port."""
    connections = _Connections()
    config = uvicorn.Config(
        App(api, connections),
        host="127.0.0.1",
        port=port,
        http=connections.protocol(),
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        date_header=False,  # Replies have their own, by the API's clock.
        timeout_keep_alive=75,
        # A client that waits for a hanging reply must not delay the shutdown.
        timeout_graceful_shutdown=1,
    )
    return _Server(config, ready)

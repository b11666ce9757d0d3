"""The local Workers AI on a socket; the replies are made elsewhere."""

import os
import select
import socket
import struct
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from local.workers_ai import routes
from local.workers_ai.api import WorkersAI
from local.workers_ai.replies import Cut

_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time: closing sends a reset.
_CHUNK = 262_144


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "Server"

    def handle(self) -> None:
        """Answer request after request, until either side ends the connection."""
        with suppress(OSError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _answer(self) -> None:
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        asked = self.command, path, query, dict(self.headers), body
        reply = routes.handle(self.server.api, *asked)
        if reply.delay and self._is_left_within(reply.delay):
            return
        if reply.cut is not None and reply.cut_after is None:
            self._end(reply.cut)
            return
        self.send_response_only(reply.status)
        for name, value in (*reply.headers, ("content-length", str(len(reply.body)))):
            self.send_header(name, value)
        self.end_headers()
        size, wait = reply.pace or (_CHUNK, 0.0)
        body = reply.body[: reply.cut_after]
        for start in range(0, len(body), size):
            if wait and self._is_left_within(wait):
                return
            self.wfile.write(body[start : start + size])
        if reply.cut is not None:
            # Wait until the client has what was written: a reset discards it.
            time.sleep(0.05)
            self._end(reply.cut)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - as the class wants

    def _is_left_within(self, seconds: float) -> bool:
        """Wait; return whether the client disconnected meanwhile."""
        patience = None if seconds == float("inf") else seconds
        self.close_connection = bool(select.select([self.connection], [], [], patience)[0])
        return self.close_connection

    def _end(self, cut: Cut) -> None:
        self.close_connection = True
        if cut is not Cut.CLOSE:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            os.close(self.connection.detach())


class Server(ThreadingHTTPServer):
    """A server on a port of the loopback address, of which 0 is any; it listens already."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, api: WorkersAI, port: int = 0) -> None:
        self.api = api
        super().__init__(("127.0.0.1", port), _Handler)

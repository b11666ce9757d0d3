"""An HTTP server in another process that replaces AWS: its answers cost this process no processor time."""

from __future__ import annotations

import multiprocessing
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from http import HTTPStatus
    from multiprocessing.connection import Connection


class Handler(BaseHTTPRequestHandler):
    """What the servers have in common: ranges, response headers as S3 writes them, and no log."""

    protocol_version = "HTTP/1.1"

    def range(self) -> tuple[int, int]:
        """The first and the last byte of the requested range."""
        begin, end = map(int, re.findall(r"\d+", self.headers["Range"]))
        return begin, end

    def head(self, status: HTTPStatus, length: int) -> None:
        """Send the status line and the headers of an answer."""
        self.send_response_only(status)
        self.send_header("ETag", '"etag"')
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """Write nothing."""


def _serve(port: Connection, handler: type[Handler]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    port.send(server.server_port)
    server.serve_forever()


@contextmanager
def serving(handler: type[Handler]) -> Iterator[str]:
    """Run a server in its own process; yield its address."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs, handler), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        server.terminate()
        server.join()

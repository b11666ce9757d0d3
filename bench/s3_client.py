"""What boto3 itself costs: ranged reads and staged puts against a server that does next to nothing, in another process.

Over plain HTTP boto3 signs each body's SHA-256; over HTTPS it sends a CRC instead, and TLS takes that place.
"""

from __future__ import annotations

import multiprocessing
import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config

from bench.timing import take_turns
from functions.submit.records.stream import RANGE_BYTES
from shared.aws.object_store import ObjectStore

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

STAGED = 520_000
"""Bytes of a staged object: a batch of 500 records of 1 KB."""


class _Stub(BaseHTTPRequestHandler):
    """Any object has any bytes; whatever is put is dropped."""

    protocol_version = "HTTP/1.1"
    content = bytes(RANGE_BYTES)

    def do_GET(self) -> None:
        """A range of zeros."""
        begin, end = map(int, re.findall(r"\d+", self.headers["Range"]))
        self._head(HTTPStatus.PARTIAL_CONTENT, end - begin + 1)
        self.wfile.write(self.content[: end - begin + 1])

    def do_PUT(self) -> None:
        """Read to the end."""
        left = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, RANGE_BYTES)))
        self._head(HTTPStatus.OK, 0)

    def _head(self, status: HTTPStatus, length: int) -> None:
        self.send_response_only(status)
        self.send_header("ETag", '"etag"')
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the name it has there
        """Say nothing."""


def _serve(port: Connection) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stub)
    port.send(server.server_port)
    server.serve_forever()


def times(size: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of the client alone, for so many bytes read and so many written."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    try:
        endpoint = f"http://127.0.0.1:{ours.recv()}"
        client = boto3.client("s3", endpoint_url=endpoint, config=Config(s3={"addressing_style": "path"}))
        store = ObjectStore(client, "bucket")
        body = bytes(STAGED)

        def read() -> None:
            for start in range(0, size, RANGE_BYTES):
                assert len(store.read_version("inbox/file", "version", "etag", start, RANGE_BYTES)) == RANGE_BYTES

        def write() -> None:
            for start in range(0, size, STAGED):
                store.put_if_absent(f"staging/{start}", body, {"requests": "500"})

        return take_turns({"read": read, "write": write}, rounds)
    finally:
        server.terminate()
        server.join()

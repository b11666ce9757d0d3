"""The cost of boto3 itself: ranged reads and staged puts against a server in another process that does almost nothing.

Over plain HTTP boto3 signs each body's SHA-256; over HTTPS it sends a CRC instead, and adds TLS.
"""

from __future__ import annotations

from http import HTTPStatus

import boto3
from botocore.config import Config

from bench.local_server import Handler, serving
from bench.timing import take_turns
from dropbatch.records.reading import RANGE_BYTES
from shared.aws.object_store import ObjectStore

STAGED = 520_000
"""Bytes of a staged object: a batch of 500 records of 1 KB."""


class AnyObject(Handler):
    """Serves zeros for any object, and discards what is put."""

    content = bytes(RANGE_BYTES)

    def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
        """Send a range of zeros."""
        begin, end = self.range()
        self.head(HTTPStatus.PARTIAL_CONTENT, end - begin + 1)
        self.wfile.write(self.content[: end - begin + 1])

    def do_PUT(self) -> None:  # noqa: N802 - the name that http.server calls
        """Read the body."""
        left = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, RANGE_BYTES)))
        self.head(HTTPStatus.OK, 0)


def times(size: int, rounds: int) -> dict[str, list[float]]:
    """CPU seconds of the client alone to read and to write `size` bytes, under `read` and `write`."""
    with serving(AnyObject) as endpoint:
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

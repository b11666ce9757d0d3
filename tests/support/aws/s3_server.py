"""A small S3 and CloudFormation on a port, for commands in processes of their own.

It can stop answering.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

STACK = (
    "<DescribeStacksResponse "
    'xmlns="http://cloudformation.amazonaws.com/doc/2010-05-15/"><DescribeStacksResult><Stacks>'
    "<member><StackName>dropbatch</StackName><CreationTime>2026-01-01T00:00:00Z</CreationTime>"
    "<StackStatus>CREATE_COMPLETE</StackStatus><Outputs><member><OutputKey>BucketName</OutputKey>"
    "<OutputValue>bucket</OutputValue></member></Outputs></member></Stacks></DescribeStacksResult>"
    "</DescribeStacksResponse>"
)
BEGUN = "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>"
MISSING = "<Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>"


@dataclass
class S3Server:
    """A server that is running.

    Attributes:
        url: of the endpoint.
        objects: their bytes by key.
        stalls: keys of which a write is never answered.
        stalled: set when such a write has begun.
    """

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    stalls: set[str] = field(default_factory=set)
    stalled: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)

    def start(self, folder: Path) -> ThreadingHTTPServer:
        """Listen, and describe the stack in a folder's `stack.json`, for DROPBATCH_LOCAL."""
        listening = _Listening(self)
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{listening.server_port}"
        (folder / "stack.json").write_text(
            json.dumps({"endpoint_url": self.url, "region": "eu-west-1"})
        )
        return listening


class _Listening(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, served: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.served = served


class _Handler(BaseHTTPRequestHandler):
    server: _Listening
    protocol_version = "HTTP/1.1"

    def key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/bucket/")

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer(200, BEGUN if "uploads" in self.path else STACK)

    def do_PUT(self) -> None:
        if self.key() in self.server.served.stalls:
            self.server.served.stalled.set()
            self.server.served.over.wait()
            self.close_connection = True
            return
        if self.headers.get("Expect"):
            self.wfile.flush()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            size, _, rest = body.partition(b"\r\n")
            body = rest[: int(size.split(b";")[0], 16)]
        self.server.served.objects[self.key()] = body
        self.answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def do_DELETE(self) -> None:
        self.server.served.over.wait()

    def do_GET(self) -> None:
        self.answer(404, MISSING)

    def do_HEAD(self) -> None:
        body = self.server.served.objects.get(self.key())
        if body is None:
            return self.answer(404)
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        return self.answer(
            200,
            ETag=etag,
            Content_Length=str(len(body)),
            Last_Modified="Sat, 21 Nov 2026 09:30:00 GMT",
        )

    def log_message(self, *_: object) -> None:
        """Print nothing."""

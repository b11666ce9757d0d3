"""A proxy between the functions and the local AWS that breaks or slows calls, as AWS does.

Calls are forwarded byte for byte, so that signatures stay valid. `PUT /_faults` sets the rules,
`GET /_faults` returns how many calls there were, and how many were broken. It knows HTTP and the
form of AWS's errors, and nothing of Dropbatch.
"""

import argparse
import asyncio
import json
import random
import re
import socket
import struct
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

KINDS = ("error", "latency", "reset", "lost", "cut")
"""The proxy itself answers `error`; it forwards the call after `latency`; `reset` resets the
connection before the call is forwarded, `lost` after that, `cut` in the middle of the answer."""
SHAPES = {"dynamodb": "com.amazonaws.dynamodb.v20120810#", "sqs": "com.amazonaws.sqs#"}
"""The prefix of the code in the JSON errors of some services."""

_SCOPE = re.compile(rb"Credential=[^/]+/\d{8}/[^/]+/([^/]+)/aws4_request")
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: closing sends a reset.
_MAX_HEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class Rule:
    """Breaks a share of the calls of one service, or of all.

    Attributes:
        kind: one of `KINDS`.
        rate: the share, from 0 to 1.
        service: as in a signature's scope; `*`: all.
        status, code: of an `error` of this service.
        seconds: the longest `latency`, evenly distributed from 0.
    """

    kind: str
    rate: float
    service: str = "*"
    status: int = 0
    code: str = ""
    seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"there is no fault {self.kind!r}")


@dataclass(frozen=True)
class Message:
    head: bytes
    body: bytes

    @property
    def first_line(self) -> list[str]:
        return self.head.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)


class Proxy:
    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.rules: list[Rule] = []
        self.calls = self.broken = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle one client's connection, call after call."""
        upstream = None
        try:
            upstream = await asyncio.open_connection(
                "127.0.0.1", self.upstream_port, limit=_MAX_HEAD_BYTES
            )
            while (request := await _read_request(reader, writer)) is not None:
                if request.first_line[1] == "/_faults":
                    writer.write(self._control(request))
                elif not await self._carry_out(request, upstream, writer):
                    return
                await writer.drain()
        except (OSError, EOFError):
            pass  # One side has closed the connection; the other is closed below.
        finally:
            for each in (writer, upstream[1] if upstream else None):
                if each is not None:
                    each.close()

    def _control(self, request: Message) -> bytes:
        status, problem = 200, None
        if request.first_line[0] == "PUT":
            try:
                self.rules = [Rule(**each) for each in json.loads(request.body)]
            except (TypeError, ValueError) as error:
                status, problem = 400, {"error": str(error)}
        body = json.dumps(problem or {"calls": self.calls, "broken": self.broken}).encode()
        return _response(status, "application/json", body)

    def _choose(self, service: str) -> Rule | None:
        """The rule that strikes a call, by chance; None for none."""
        candidates = (rule for rule in self.rules if rule.service in (service, "*"))
        return next((rule for rule in candidates if random.random() < rule.rate), None)

    async def _carry_out(
        self,
        request: Message,
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Forward one call, or break it; return whether the connection stays open."""
        self.calls += 1
        scope = _SCOPE.search(request.head)
        service = scope[1].decode() if scope else ""
        rule = self._choose(service)
        kind = rule.kind if rule else ""
        self.broken += bool(rule)
        if rule and kind == "error":
            writer.write(_error(rule, request.first_line))
            return True
        if rule and kind == "latency":
            await asyncio.sleep(random.uniform(0, rule.seconds))
        if kind != "reset":
            upstream[1].write(request.head + request.body)
            answer = await _read_response(upstream[0], without_body=request.first_line[0] == "HEAD")
            if kind not in ("lost", "cut"):
                writer.write(answer.head + answer.body)
                return b"\r\nconnection: close\r\n" not in answer.head.lower()
            if kind == "cut" and answer.body:
                writer.write(answer.head + answer.body[: len(answer.body) // 2])
                await writer.drain()
                await asyncio.sleep(0.05)  # The client must receive it before the reset.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
        return False


def _header(head: bytes, name: str) -> str:
    found = re.search(
        rb"\r\n" + re.escape(name.encode()) + rb":[ \t]*([^\r]*)", head, re.IGNORECASE
    )
    return found[1].decode("latin-1").strip() if found else ""


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Message | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    if _header(head, "expect"):
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = re.sub(rb"\r\nexpect:[^\r]*", b"", head, flags=re.IGNORECASE)  # It is not signed.
    return Message(head, await _read_body(reader, head))


async def _read_response(reader: asyncio.StreamReader, *, without_body: bool) -> Message:
    head = await reader.readuntil(b"\r\n\r\n")
    if without_body or head.split(b" ", 2)[1] in {b"204", b"304"}:
        return Message(head, b"")
    return Message(head, await _read_body(reader, head))


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """Read a whole body with its framing. The functions send and receive bounded bodies."""
    if _header(head, "transfer-encoding").lower() != "chunked":
        return await reader.readexactly(int(_header(head, "content-length") or 0))
    body = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        body += line + await reader.readexactly(size + 2 if size else 0)
        if not size:
            while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
                body += line
            return bytes(body + line)


def _error(rule: Rule, first_line: list[str]) -> bytes:
    service, status, code = rule.service, rule.status, rule.code
    asked = str(uuid.uuid4())
    if service != "s3":
        about = {"__type": f"{SHAPES.get(service, '')}{code}", "message": "Rate exceeded"}
        version = "1.1" if service == "secretsmanager" else "1.0"
        query = {"x-amzn-query-error": f"{code};Sender"} if service == "sqs" else {}
        kind, named = f"application/x-amz-json-{version}", {"x-amzn-RequestId": asked, **query}
        return _response(status, kind, json.dumps(about).encode(), named)
    text = f"<Code>{code}</Code><Message>Please reduce your request rate.</Message>"
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{text}</Error>'
    body = b"" if first_line[0] == "HEAD" else text.encode()
    return _response(status, "application/xml", body, {"x-amz-request-id": asked})


def _response(status: int, kind: str, body: bytes, headers: dict[str, Any] | None = None) -> bytes:
    lines = {"Content-Type": kind, "Content-Length": len(body), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Fault\r\n{head}\r\n".encode() + body


async def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m local.fault_proxy", description="Breaks AWS calls on demand."
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream-port", type=int, required=True)
    chosen = parser.parse_args()
    proxy = Proxy(chosen.upstream_port)
    server = await asyncio.start_server(
        proxy.serve, "127.0.0.1", chosen.port, limit=_MAX_HEAD_BYTES
    )
    await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())

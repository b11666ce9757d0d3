"""AWS's Security Token Service for programs in processes of their own.

A role for a code (MFA), which it takes once.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Iterator

ROLE = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>test</AccessKeyId><SecretAccessKey>test</SecretAccessKey><SessionToken>token</SessionToken>
<Expiration>{ends:%Y-%m-%dT%H:%M:%SZ}</Expiration></Credentials><AssumedRoleUser>
<Arn>arn:aws:sts::000000000000:assumed-role/deployer/ada</Arn><AssumedRoleId>AROA:ada</AssumedRoleId></AssumedRoleUser>
</AssumeRoleResult></AssumeRoleResponse>"""
CALLER = """<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult>
<Arn>arn:aws:sts::000000000000:assumed-role/deployer/ada</Arn><UserId>AROA:ada</UserId><Account>000000000000</Account>
</GetCallerIdentityResult></GetCallerIdentityResponse>"""
REFUSED = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type>
<Code>AccessDenied</Code><Message>MultiFactorAuthentication failed with invalid MFA one time pass code.</Message>
</Error></ErrorResponse>"""  # noqa: E501


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        """Answer one call of the query protocol."""
        form = dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        status, text = 200, CALLER
        if form["Action"] == "AssumeRole":
            status, text = self.server.take(form.get("TokenCode", ""))
        self.send_response(status)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.codes: list[str] = []

    def take(self, code: str) -> tuple[int, str]:
        """A role for a code that was not taken before."""
        if not code or code in self.codes:
            return 403, REFUSED
        self.codes.append(code)
        return 200, ROLE.format(ends=datetime.now(UTC) + timedelta(hours=1))


@contextmanager
def security_tokens() -> Iterator[tuple[str, list[str]]]:
    """A service; its address, and the codes that it has taken."""
    with _Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", server.codes
        server.shutdown()

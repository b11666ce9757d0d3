"""A web server whose answer a test sets, with or without an authority of its own."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


class WebServer:
    """A server that is running, and the requests that it got: path and signature of each."""

    def __init__(self, url: str) -> None:
        self.url, self.requests = url, list[tuple[str, str]]()
        self.status, self.headers, self.body = 200, dict[str, str](), b"{}"


@contextmanager
def web_server(tls: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    """Listen on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.requests.append((self.path, self.headers.get("Authorization", "")))
            self.send_response(made.status)
            for name, value in {"Content-Length": str(len(made.body)), **made.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(made.body)

        do_POST = do_GET  # noqa: N815 - http.server's name

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    kind = HTTPServer if tls else ThreadingHTTPServer
    with kind(("127.0.0.1", 0), Handler) as listening:
        if tls:
            listening.socket = tls.wrap_socket(listening.socket, server_side=True)
        scheme = "https" if tls else "http"
        made = WebServer(f"{scheme}://localhost:{listening.server_port}")
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        listening.shutdown()


def certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate | None = None,
    authority_key: ec.EllipticCurvePrivateKey | None = None,
) -> x509.Certificate:
    """A certificate; without an authority its own."""
    now, named = datetime.now(UTC), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = x509.CertificateBuilder(
        issuer_name=authority.subject if authority else named,
        subject_name=named,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - timedelta(days=1),
        not_valid_after=now + timedelta(days=1),
    ).add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
    if authority:
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return made.sign(authority_key or key, hashes.SHA256())


def tls_of_localhost(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """TLS for a server at `localhost`, and the file of a company's own authority that vouches."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    authority = certificate("Company", keys[0])
    (folder / "authority.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    shown = certificate("localhost", keys[1], authority, keys[0]).public_bytes(Encoding.PEM)
    secret = keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.pem").write_bytes(secret + shown)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context, folder / "authority.pem"

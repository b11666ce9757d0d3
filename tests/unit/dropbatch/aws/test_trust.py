"""The check of the token trusts whom boto3 trusts."""

import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dropbatch.cli.cloudflare import Api, check_token
from dropbatch.errors import Error

VARIABLES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")


def certificate(name, key, authority=None, authority_key=None):
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


@pytest.fixture(scope="module")
def company(tmp_path_factory):
    """A company's own authority, and an API behind its proxy."""
    folder = tmp_path_factory.mktemp("company")
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    authority = certificate("Company", keys[0])
    (folder / "authority.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    shown = certificate("localhost", keys[1], authority, keys[0]).public_bytes(Encoding.PEM)
    secret = keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.pem").write_bytes(secret + shown)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"success": true, "result": []}')

        def log_message(self, *_):
            """Print nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://localhost:{server.server_port}", folder / "authority.pem"
        server.shutdown()


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path / "config"


def check(url):
    return check_token(Api(f"{url}/", "a" * 32, "token"))


def test_unknown_authority_is_refused(company):
    with pytest.raises(Error, match="CERTIFICATE_VERIFY_FAILED"):
        check(company[0])


@pytest.mark.parametrize("name", VARIABLES)
def test_authority_of_variable_is_trusted(company, monkeypatch, name):
    url, file = company
    monkeypatch.setenv(name, str(file))

    assert check(url) == ""


def test_boto3s_authorities_are_trusted_last(company, monkeypatch):
    """As on a Mac, where Python from python.org comes without any."""
    url, file = company
    monkeypatch.setattr("botocore.httpsession.where", lambda: str(file))
    monkeypatch.setattr(
        ssl, "create_default_context", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )

    assert check(url) == ""


def test_unreadable_file_of_authorities_is_named(company, monkeypatch):
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere/ca.pem")

    with pytest.raises(Error, match=r"AWS_CA_BUNDLE.*/nowhere/ca\.pem"):
        check(company[0])

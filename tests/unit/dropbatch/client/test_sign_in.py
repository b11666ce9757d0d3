"""Credentials as the AWS CLI finds them, and authorities as boto3 trusts them."""

import json
import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from moto import mock_aws

from dropbatch.cli.cloudflare import Api, check_token
from dropbatch.client import aws
from dropbatch.errors import Error, NotPermitted

# ── credentials as the AWS CLI finds them ─────────────────────────────────────────────────────────
CONFIG = """[profile base]
aws_access_key_id = x
aws_secret_access_key = x
[default]
region = eu-west-1
role_arn = arn:aws:iam::111122223333:role/deployer
source_profile = base
mfa_serial = arn:aws:iam::111122223333:mfa/ada
"""


@pytest.fixture
def home(monkeypatch, tmp_path):
    """A user whose role needs a code."""
    with mock_aws(config={"core": {"mock_credentials": False}}):
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_PROFILE",
        ):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "config").write_text(CONFIG)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("HOME", str(tmp_path))
        yield tmp_path


@pytest.fixture
def asked():
    return []


def signed_in(asked):
    """A process that is new; returns its key."""
    session = aws.sign_in()
    provider = session._session.get_component("credential_provider").get_provider("assume-role")
    provider._prompter = lambda question: asked.append(question) or "123456"
    return session.get_credentials().get_frozen_credentials().access_key


def test_code_is_asked_once(home, asked):
    assert signed_in(asked) == signed_in(asked)
    assert len(asked) == 1


def test_role_is_shared_with_aws_cli(home, asked):
    key = signed_in(asked)

    (file,) = (home / ".aws/cli/cache").iterdir()
    assert json.loads(file.read_text())["Credentials"]["AccessKeyId"] == key
    assert file.stat().st_mode & 0o077 == 0


def test_code_is_asked_again_when_role_has_ended(home, asked):
    signed_in(asked)
    (file,) = (home / ".aws/cli/cache").iterdir()
    ended = (datetime.now(UTC) + timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    file.write_text(
        json.dumps(
            {"Credentials": {**json.loads(file.read_text())["Credentials"], "Expiration": ended}}
        )
    )

    signed_in(asked)

    assert len(asked) == 2


def test_without_terminal_missing_code_is_explained():
    with pytest.raises(NotPermitted, match=r"get-caller-identity"), aws.explained():
        raise EOFError


# ── the check of the token trusts whom boto3 trusts ───────────────────────────────────────────────
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

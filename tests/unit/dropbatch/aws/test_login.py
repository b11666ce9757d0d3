"""What `aws login` leaves on disk signs in the library and the command line too."""

import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest
from botocore.awsrequest import AWSResponse
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dropbatch.client import aws
from dropbatch.errors import NotPermitted

pytest.importorskip("awscrt", reason="make lock and make .venv/.stamp install it")
SESSION = "arn:aws:iam::111122223333:user/ada"
RENEWED = {"accessKeyId": "AKIANEW", "secretAccessKey": "y", "sessionToken": "t"}


class Body:
    def __init__(self, content):
        self.content = content

    def stream(self):
        yield self.content


@pytest.fixture
def login(monkeypatch, tmp_path):
    """Signs in as the AWS CLI does, for so many minutes."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "config").write_text(f"[default]\nregion = eu-west-1\nlogin_session = {SESSION}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".aws/login/cache"
    folder.mkdir(parents=True)
    key = ec.generate_private_key(ec.SECP256R1())
    key = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()

    def begin(minutes):
        ends = f"{datetime.now(UTC) + timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"
        token = {
            "accessKeyId": "AKIAOLD",
            "secretAccessKey": "x",
            "sessionToken": "t",
            "accountId": "111122223333",
        }
        left = {
            "accessToken": {**token, "expiresAt": ends},
            "refreshToken": "r",
            "clientId": "c",
            "dpopKey": key,
            "tokenType": "aws_sigv4",
        }
        (folder / f"{hashlib.sha256(SESSION.encode()).hexdigest()}.json").write_text(
            json.dumps(left)
        )

    return begin


def key_of(session):
    return session.get_credentials().get_frozen_credentials().access_key


def test_login_that_ends_soon_is_renewed_for_all(login, monkeypatch):
    """The AWS CLI and the next command find what this one has renewed."""
    login(minutes=2)
    sent = []

    def send(self, request):
        sent.append(request)
        answer = {
            "accessToken": RENEWED,
            "tokenType": "aws_sigv4",
            "expiresIn": 900,
            "refreshToken": "r2",
        }
        return AWSResponse(request.url, 200, {}, Body(json.dumps(answer).encode()))

    monkeypatch.setattr("botocore.httpsession.URLLib3Session.send", send)

    assert [key_of(aws.sign_in()) for _ in range(2)] == ["AKIANEW", "AKIANEW"]
    assert [b"refresh_token" in one.body for one in sent] == [True]
    assert "DPoP" in sent[0].headers


def test_without_login_it_says_how():
    with pytest.raises(NotPermitted, match="`aws login`"), aws.explained():
        aws.sign_in().get_credentials()


@pytest.fixture(autouse=True)
def no_login(login):
    """Only the configuration names a login."""

"""Who may call the server, what else it answers, and what it says when AWS denies a call."""

import socket
from urllib.parse import urlsplit

import botocore.client
import httpx
import openai
import pytest
from botocore.exceptions import ClientError

from dropbatch.core.formats.model_catalog import catalog
from dropbatch.openai_api.server import MAX_HEADER_BYTES
from tests.support.journeys.openai_server import serving
from tests.support.terminal import run_alone

KEY = "a-key-of-ours"


@pytest.fixture
def guarded(stack):
    with serving(stack, KEY) as url:
        yield url


@pytest.mark.parametrize("path", ["files", "batches", "models", "files/x/content", "nothing"])
def test_wrong_key_is_401_whatever_is_asked_for(guarded, path):
    for given in ("", "Bearer", "Bearer another", f"Basic {KEY}", f"Bearer {KEY}x", KEY, "Bearer \xff", f"bearer{KEY}"):
        answer = httpx.get(f"{guarded}/{path}", headers={"Authorization": given.encode("latin-1")})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key"), given
        assert KEY not in answer.text


def test_right_key_is_taken_by_openais_client(guarded):
    with openai.OpenAI(base_url=guarded, api_key=KEY) as ai:
        assert ai.files.list().data == []
    with openai.OpenAI(base_url=guarded, api_key="wrong") as ai, pytest.raises(openai.AuthenticationError):
        ai.files.list()


@pytest.mark.parametrize("headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Host": "["}])
def test_page_in_browser_cannot_call_without_key(url, headers):
    answer = httpx.post(f"{url}/batches", headers=headers, content=b"{}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/chat/completions"),
        ("POST", "/models"),
        ("PUT", "/files"),
        ("GET", ""),
        ("GET", "/files/"),
        ("PATCH", "/x%00"),
    ],
)
def test_anything_else_is_404_in_openais_shape(url, method, path):
    answer = httpx.request(method, f"{url}{path}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith(f"Invalid URL ({method} /v1")


def test_models_are_those_that_take_batches(ai):
    assert [model.id for model in ai.models.list()] == [model.id for model in catalog().models if model.batch]


def test_call_that_aws_denies_is_explained(url, monkeypatch):
    def deny(client, operation, arguments):
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no policy allows it"}}, operation)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", deny)
    answer = httpx.get(f"{url}/files")
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert "UserPolicyArn" in answer.json()["error"]["message"]


def test_large_headers_are_refused(url):
    host, port = urlsplit(url).netloc.split(":")
    with socket.create_connection((host, int(port))) as line:
        line.sendall(b"GET /v1/files HTTP/1.1\r\nX: " + b"y" * (MAX_HEADER_BYTES + 1))
        assert line.recv(1_000).startswith(b"HTTP/1.1 400 ")


def test_other_machines_need_a_key():
    done = run_alone("serve", "--host", "0.0.0.0", "--port", "0", DROPBATCH_API_KEY="")

    assert (done.returncode, done.stdout) == (2, "")
    assert "DROPBATCH_API_KEY" in done.stderr

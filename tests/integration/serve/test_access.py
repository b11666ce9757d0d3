"""Who may call the server, what else it answers, and what it says when AWS denies a call."""

import time
from itertools import product

import botocore.client
import httpx
import openai
import pytest
from botocore.exceptions import ClientError

from tests.integration.serve.conftest import KEY
from tests.support.terminal import run_alone

WRONG = ("", "Bearer", "Bearer other", f"Basic {KEY}", f"Bearer {KEY}x", KEY, "Bearer \xff")
CALLS = ("files", "batches", "models", "files/x/content", "nothing")


def test_wrong_key_is_401_whatever_is_asked_for(guarded, subtests):
    for path, given in product(CALLS, WRONG):
        with subtests.test(path=path, given=given):
            sent = {"Authorization": given.encode("latin-1")}
            answer = httpx.get(f"{guarded}/{path}", headers=sent)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
            assert KEY not in answer.text


def test_right_key_is_taken_by_openais_client(guarded):
    with openai.OpenAI(base_url=guarded, api_key=KEY) as ai:
        assert ai.files.list().data == []
    with (
        openai.OpenAI(base_url=guarded, api_key="wrong") as ai,
        pytest.raises(openai.AuthenticationError),
    ):
        ai.files.list()


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://evil.example"}, {"Host": "evil.example"}, {"Host": "["}]
)
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


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/embeddings", "/openai/chat/completions"])
def test_single_call_is_told_what_to_do(url, path):
    answer = httpx.post(url.removesuffix("/v1") + path, json={"model": "x", "input": "hi"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "batches_only")
    assert "POST /v1/batches" in error["message"]


def test_model_is_found_by_its_id(url):
    with openai.OpenAI(base_url=url, api_key="none") as ai:
        listed = ai.models.list().data
        assert ai.models.retrieve("@cf/baai/bge-m3") in listed
        for unknown in ("gpt-4o", "@cf/baai/no-such", "@cf/openai/whisper"):
            with pytest.raises(openai.NotFoundError, match="No such Model object"):
                ai.models.retrieve(unknown)


def test_call_that_aws_denies_is_explained(url, monkeypatch):
    def deny(client, operation, arguments):
        raise ClientError(
            {"Error": {"Code": "AccessDenied", "Message": "no policy allows it"}}, operation
        )

    with monkeypatch.context() as patch:
        patch.setattr(botocore.client.BaseClient, "_make_api_call", deny)
        answer = httpx.get(f"{url}/files")
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    assert "UserPolicyArn" in answer.json()["error"]["message"]


def test_azures_client_has_paths_and_header_of_its_own(guarded):
    root = guarded.removesuffix("/v1")
    with openai.AzureOpenAI(
        azure_endpoint=root, api_key=KEY, api_version="2025-03-01-preview"
    ) as ai:
        assert ai.files.list().data == ai.batches.list().data == []
    with openai.OpenAI(base_url=f"{root}/openai/v1", api_key=KEY) as ai:
        assert ai.files.list().data == []
    answer = httpx.get(f"{root}/openai/files", headers={"api-key": "wrong"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_each_request_has_a_log_line(url, caplog):
    caplog.set_level("INFO", "dropbatch.serve")
    httpx.get(f"{url}/models")
    httpx.get(f"{url}/files/x%1b%0ay?after=file-secret")
    httpx.get(f"{url}/batches/batch_{'0' * 27}")
    httpx.get(f"{url}/models", headers={"Origin": "https://evil.example"})

    def lines():
        return [
            one.getMessage() for one in caplog.records if one.name.startswith("dropbatch.serve")
        ]

    until = time.monotonic() + 10  # A line is written after its answer.
    while len(lines()) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    assert [line.rpartition(" ")[0].rpartition(" ")[0] for line in lines()] == [
        "GET /v1/models 200",
        "GET /v1/files/… 404",
        f"GET /v1/batches/batch_{'0' * 27} 404",
        "GET /v1/models 403",
    ]


def test_other_machines_need_a_key():
    done = run_alone("serve", "--host", "0.0.0.0", "--port", "0", DROPBATCH_API_KEY="")

    assert (done.returncode, done.stdout) == (2, "")
    assert "DROPBATCH_API_KEY" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "variable", "named"),
    [((), "gpt-4o-mini", "gpt-4o-mini"), (("--model", ""), "@cf/baai/bge-m3", "")],
)
def test_default_model_is_a_model_id(arguments, variable, named):
    done = run_alone("serve", "--port", "0", *arguments, DROPBATCH_MODEL=variable)

    assert (done.returncode, done.stdout) == (2, "")
    assert f"--model: {named!r} is not a model id, such as @cf/baai/bge-m3." in done.stderr

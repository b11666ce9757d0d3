"""`dropbatch serve` on a whole Dropbatch, used through OpenAI's own client."""

import json
import os
import re
import subprocess
from collections import defaultdict

import openai
import pytest

from dropbatch.client.stack import Stack
from tests.support.aws import iam
from tests.support.aws.resources import AWS_ACCOUNT, BUCKET, client
from tests.support.journeys.command_line import LOGS
from tests.support.journeys.openai_server import requests, serving
from tests.support.shipped import ROOT

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
CHAT = "/v1/chat/completions"
HELLO = {"model": LLAMA, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture
def stack(world):
    return Stack("dropbatch", BUCKET, {"BucketName": BUCKET}, client)


@pytest.fixture
def url(stack):
    with serving(stack) as url:
        yield url


@pytest.fixture
def ai(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def as_user(world):
    """Calls in this context are judged by the users' policy."""
    permissions = world.permissions
    names = defaultdict(
        str, {"Bucket.Arn": f"arn:aws:s3:::{BUCKET}", "AWS::AccountId": AWS_ACCOUNT}
    )
    policy = iam.grants("UserPolicy", names, {"UsesOwnKey": False, "UsesSource": False})
    permissions.granted = {**permissions.granted, "UserPolicy": policy}

    class AsUser:
        def __enter__(self):
            permissions.role = "UserPolicy"

        def __exit__(self, *_):
            permissions.role = ""

    yield AsUser()
    # S3 may say 403 for a missing key, to users; then its key is listed.
    assert set(permissions.refused) <= {f"UserPolicy: s3:ListBucket on arn:aws:s3:::{BUCKET}"}
    permissions.refused.clear()


def file_of(ai, lines, name="july.jsonl"):
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return ai.files.create(file=(name, content), purpose="batch")


def batch_of(ai, lines, endpoint=CHAT, **more):
    return ai.batches.create(
        input_file_id=file_of(ai, lines).id, endpoint=endpoint, completion_window="24h", **more
    )


def lines_of(ai, file_id):
    return [json.loads(line) for line in ai.files.content(file_id).text.splitlines()]


def test_script_for_openai_runs_unchanged(ai, world):
    batch = batch_of(ai, requests(CHAT, HELLO, HELLO), metadata={"team": "search"})
    assert (batch.status, batch.request_counts.total) == ("validating", 0)

    world.settle()

    batch = ai.batches.retrieve(batch.id)
    assert (batch.status, batch.error_file_id, batch.errors) == ("completed", None, None)
    assert batch.request_counts.to_dict() == {"total": 2, "completed": 2, "failed": 0}
    assert (batch.model, batch.metadata, world.manifest()["tags"]) == (
        LLAMA,
        {"team": "search"},
        {"team": "search"},
    )
    assert batch.created_at <= batch.in_progress_at <= batch.completed_at < batch.expires_at
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0
    lines = lines_of(ai, batch.output_file_id)
    assert [line["custom_id"] for line in lines] == ["r0", "r1"]
    for line in lines:
        openai.types.chat.ChatCompletion.model_validate(line["response"]["body"], strict=True)


GPT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "Hello"}]}
PAGE = (ROOT / "docs/python.md").read_text("utf-8")


def test_lines_of_curl_in_page_run_on_default_stack(stack, world, tmp_path):
    (served,) = re.findall(r"^\$ dropbatch serve(.*)$", PAGE, re.MULTILINE)[:1]
    commands = re.findall(r"^\$ (curl (?:.*\\\n)?.*)$", PAGE, re.MULTILINE)
    lines = "".join(json.dumps(line) + "\n" for line in requests(CHAT, GPT, GPT))
    (tmp_path / "requests.jsonl").write_text(lines, "utf-8")
    ids = {}

    with serving(stack, model=served.removeprefix(" --model ")) as url:
        for number, command in enumerate(commands):
            for name, its_id in ids.items():
                command = command.replace(name, its_id)  # noqa: PLW2901
            done = subprocess.run(
                ["sh", "-c", command.replace("curl ", "curl -sS --fail-with-body ")],
                cwd=tmp_path,
                env={**os.environ, "OPENAI_BASE_URL": url},
                capture_output=True,
                check=True,
                timeout=30,
            )
            if number == 1:
                world.settle()
            if number < 3:
                shown = json.loads(done.stdout)
                name = "file-…" if number == 0 else "file-output-…"
                ids[name] = shown["id"] if number == 0 else shown["output_file_id"] or ""
                ids["batch_…"] = shown["id"]

    assert (len(commands), shown["status"]) == (4, "completed")
    answers = [
        json.loads(line) for line in (tmp_path / "answers.jsonl").read_text("utf-8").splitlines()
    ]
    assert [one["response"]["status_code"] for one in answers] == [200, 200]


def test_failures_are_in_a_file_of_their_own(ai, world, api):
    other = {
        "custom_id": "other",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": LLAMA, "input": "a"},
    }
    broken = {"custom_id": "broken", "method": "POST", "url": CHAT, "body": {"model": LLAMA}}
    good = requests(CHAT, *[HELLO] * 3)
    batch = batch_of(ai, [good[0], other, good[1], broken, good[2]])
    world.settle()

    batch = ai.batches.retrieve(batch.id)

    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == (
        "completed",
        3,
        2,
    )
    answered, failed = lines_of(ai, batch.output_file_id), lines_of(ai, batch.error_file_id)
    assert [line["custom_id"] for line in answered] == ["r0", "r1", "r2"]
    assert [line["custom_id"] for line in failed] == ["other", "broken"]
    assert {line["response"]["status_code"] for line in answered} == {200}
    assert failed[0]["response"]["body"]["error"]["param"] == "url"
    assert f"It must be {CHAT}" in failed[0]["response"]["body"]["error"]["message"]


def test_users_policy_allows_what_the_server_does(ai, world, as_user):
    good, bad = requests(CHAT, HELLO), {"custom_id": "x", "url": CHAT, "body": {"model": LLAMA}}
    with as_user:
        batch = batch_of(ai, [*good, bad])
        spare = file_of(ai, good)
        large = ai.files.create(file=b"x" * (9 << 20), purpose="batch")
        ai.files.delete(spare.id)
        ai.files.content(large.id)
        assert len(ai.files.list().data) == 2
        cancelled = batch_of(ai, good)
        ai.batches.cancel(cancelled.id)
    world.settle()
    with as_user:
        batch = ai.batches.retrieve(batch.id)
        assert (
            len(lines_of(ai, batch.output_file_id)) == len(lines_of(ai, batch.error_file_id)) == 1
        )
        ai.files.delete(batch.output_file_id)
        with pytest.raises(openai.NotFoundError):
            ai.files.retrieve(spare.id)
        assert len(ai.batches.list().data) == 2


def test_prompts_and_keys_reach_no_log(stack, world, caplog, capfd):
    caplog.set_level("DEBUG", "uvicorn")
    marked = {"model": LLAMA, "messages": [{"role": "user", "content": "planted-prompt"}]}
    with (
        serving(stack, "planted-key") as url,
        openai.OpenAI(base_url=url, api_key="planted-key") as ai,
    ):
        batch = batch_of(ai, requests(CHAT, marked), metadata={"planted": "metadata"})
        world.settle()
        ai.files.content(ai.batches.retrieve(batch.id).output_file_id)
        with pytest.raises(openai.NotFoundError):
            ai.batches.retrieve("planted-id")
    printed = capfd.readouterr()
    told = caplog.text + printed.out + printed.err
    assert "planted" not in "".join(line for line in told.splitlines() if not line.startswith(LOGS))

"""`dropbatch serve` on a whole Dropbatch, used through OpenAI's own client."""

import json

import openai
import pytest

from dropbatch.stack import Stack
from tests.support.aws.resources import BUCKET, client
from tests.support.journeys.openai_server import requests, serving

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
BGE = "@cf/baai/bge-m3"
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


def file_of(ai, lines, name="july.jsonl"):
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return ai.files.create(file=(name, content), purpose="batch")


def batch_of(ai, lines, endpoint=CHAT, **more):
    return ai.batches.create(input_file_id=file_of(ai, lines).id, endpoint=endpoint, completion_window="24h", **more)


def lines_of(ai, file_id):
    return [json.loads(line) for line in ai.files.content(file_id).text.splitlines()]


def test_script_for_openai_runs_unchanged(ai, world):
    batch = batch_of(ai, requests(CHAT, HELLO, HELLO), metadata={"team": "search"})
    assert (batch.status, batch.request_counts.total) == ("validating", 0)

    world.settle()

    batch = ai.batches.retrieve(batch.id)
    assert (batch.status, batch.error_file_id, batch.errors) == ("completed", None, None)
    assert batch.request_counts.to_dict() == {"total": 2, "completed": 2, "failed": 0}
    assert (batch.model, batch.metadata, world.manifest()["tags"]) == (LLAMA, {"team": "search"}, {"team": "search"})
    assert batch.created_at <= batch.in_progress_at <= batch.completed_at < batch.expires_at
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0
    lines = lines_of(ai, batch.output_file_id)
    assert [line["custom_id"] for line in lines] == ["r0", "r1"]
    for line in lines:
        openai.types.chat.ChatCompletion.model_validate(line["response"]["body"], strict=True)

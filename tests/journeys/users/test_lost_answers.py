"""An answer of S3 is lost, and boto3 sends the call again."""

import json

import openai
import pytest
from botocore.exceptions import ReadTimeoutError
from moto.core.botocore_stubber import BotocoreStubber

import dropbatch
from dropbatch.client.stack import Stack
from local.workers_ai import Fault
from tests.support.aws.resources import BUCKET, client
from tests.support.journeys.openai_server import requests, serving

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
CHAT = "/v1/chat/completions"
CREATES = ["PutObject", "CopyObject", "CompleteMultipartUpload"]


@pytest.fixture(params=CREATES)
def lose(request, monkeypatch):
    """Carry out the next such call below `inbox/`, but lose its answer."""
    real, left = BotocoreStubber.__call__, []

    def call(stubber, event_name, request, **more):
        answer = real(stubber, event_name, request, **more)
        if left and event_name == left[0] and "/inbox/" in request.url:
            left.clear()
            raise ReadTimeoutError(endpoint_url=request.url)
        return answer

    monkeypatch.setattr(BotocoreStubber, "__call__", call)
    return lambda: left.append(f"before-send.s3.{request.param}")


def versions(world, path):
    return len(world.s3.list_object_versions(Bucket=BUCKET, Prefix=f"inbox/{path}")["Versions"])


def test_submit_is_one_job(command, lose, api):
    lose()
    job = dropbatch.Client("dropbatch").submit([{"prompt": "Hello"}], name="a.jsonl", model=LLAMA)

    assert job.wait() == "completed"
    assert (versions(command.world, "a.jsonl"), len(api.accepted)) == (1, 1)


def test_retry_is_one_job(command, lose, api):
    api.inject(Fault(kind="item_fails", contains="fail", marker="fail", code=5001))
    job = dropbatch.Client("dropbatch").submit([{"prompt": "fail"}], name="a.jsonl", model=LLAMA)
    job.wait()
    api.clear_faults()
    before = len(api.accepted)
    lose()

    again = job.retry()

    assert again.wait() == "completed"
    assert (versions(command.world, "a.retry.jsonl"), len(api.accepted) - before) == (1, 1)


def test_batch_is_one_job(world, lose, api):
    with serving(Stack("dropbatch", BUCKET, {"BucketName": BUCKET}, client)) as url:
        ai = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        line = requests(CHAT, {"model": LLAMA, "messages": [{"role": "user", "content": "Hello"}]})
        file = ai.files.create(file=("a.jsonl", json.dumps(*line).encode()), purpose="batch")
        lose()
        batch = ai.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        world.settle()

        assert ai.batches.retrieve(batch.id).request_counts.completed == 1
    assert (versions(world, f"openai/{batch.id}.jsonl"), len(api.accepted)) == (1, 1)

"""The answer to an AWS call is lost; the SDK calls again, and meets what it did the first time."""

import types

import botocore.endpoint
import pytest
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from botocore.retries.quota import RetryQuota
from moto.core.botocore_stubber import BotocoreStubber

import dropbatch
from local.workers_ai import Fault, expected_result
from tests.support.aws import quick_moto
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M, greetings

RECORDS = greetings(6)
WRITES = {"UpdateItem", "PutItem", "PutObject", "SendMessageBatch"}


@pytest.fixture
def lost(monkeypatch):
    """Every write is carried out twice: its first answer is lost.

    So many would spend the SDK's quota of retries.

    Calls to the rate budget are left alone: there the write is tried anew, and a token taken twice
    is only one less.
    """
    carried_out = BotocoreStubber.__call__
    seen = []

    def lose_the_first(stubber, event_name, request, **others):
        answer = carried_out(stubber, event_name, request, **others)
        operation = event_name.rpartition(".")[2]
        first = b"attempt=1;" in request.headers["amz-sdk-request"]
        if first and operation in WRITES and b'"RATE"' not in (request.body or b""):
            seen.append(operation)
            raise ConnectionClosedError(endpoint_url=request.url)
        return answer

    def begin():
        monkeypatch.setattr(quick_moto, "DIRECT", {})
        monkeypatch.setattr(BotocoreStubber, "__call__", lose_the_first)
        monkeypatch.setattr(RetryQuota, "acquire", lambda quota, amount: True)
        monkeypatch.setattr(
            botocore.endpoint, "time", types.SimpleNamespace(sleep=lambda seconds: None)
        )
        return seen

    yield begin
    monkeypatch.undo()


def test_repeated_write_recognizes_itself(start, api, lost):
    world = start(MAX_REQUESTS_PER_BATCH=3)
    world.upload_records("a.jsonl", RECORDS, model=M2M)
    seen = lost()

    world.settle(minutes=30)

    assert set(seen) == WRITES
    assert [line["result"] for line in world.lines()] == [
        expected_result(M2M, record) for record in RECORDS
    ]
    assert [batch["attempts"] for batch in world.manifest()["batches"]] == [1] * 2
    assert [batch["unknowable_submits"] for batch in world.manifest()["batches"]] == [0] * 2
    assert len(api.accepted) == 2


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

"""The answer to an AWS call is lost, the SDK sends the call again.

And meets what it did the first time.

A write that is made on a condition then fails on itself: taken for somebody else's, it would leave
work to nobody.
"""

import types

import botocore.endpoint
import pytest
from botocore.exceptions import ConnectionClosedError
from botocore.retries.quota import RetryQuota
from moto.core.botocore_stubber import BotocoreStubber

from local.workers_ai import expected_result
from tests.support.aws import quick_moto
from tests.support.translations import M2M

RECORDS = [{"text": f"hello {number}", "target_lang": "es"} for number in range(6)]
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

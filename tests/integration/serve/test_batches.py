"""Batches before any function has seen them."""

import json

import httpx
import openai
import pytest

from dropbatch.client import upload as sent_uploads
from dropbatch.errors import Error
from dropbatch.serve import batches as module
from dropbatch.serve import objects
from dropbatch.serve.store import Store
from tests.support.aws.resources import BUCKET

CHAT = "/v1/chat/completions"
LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
LINE = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"messages":[]}}\n'


@pytest.fixture
def file(ai):
    return ai.files.create(file=("july.jsonl", LINE), purpose="batch")


def create(ai, file, **changed):
    return ai.batches.create(
        **{"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | changed
    )


def create_again(url, file, count="1"):
    """Send the request as a client does that got no answer."""
    body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    return httpx.post(f"{url}/batches", json=body, headers={"x-stainless-retry-count": count})


def uploads(s3):
    return [
        entry["Key"]
        for entry in s3.list_objects_v2(Bucket=BUCKET, Prefix="inbox/").get("Contents", [])
    ]


def test_batch_becomes_upload_with_its_options(ai, s3, file):
    metadata = {"model": f"workers-ai/{LLAMA}", "team": "Größe", "note": "x" * 512}
    expires = {"anchor": "created_at", "seconds": 3_600}  # Results stay all the same.
    more = {"completion_window": "720h", "output_expires_after": expires}
    batch = create(ai, file, metadata=metadata, **more)

    assert batch == ai.batches.retrieve(batch.id)
    assert (batch.status, batch.model, batch.metadata) == ("validating", LLAMA, metadata)
    assert batch.expires_at == batch.created_at + 720 * 3_600
    found = s3.get_object(Bucket=BUCKET, Key=f"inbox/openai/{batch.id}.jsonl")
    assert found["Body"].read() == LINE
    tags = found["Metadata"].pop("tags")
    assert tags.startswith("=?utf-8?b?")
    assert found["Metadata"] == {
        "format": "openai",
        "endpoint": CHAT,
        "deadline-hours": "720",
        "model": LLAMA,
    }


def test_as_much_metadata_as_openai_takes_is_written_beside_the_upload(ai, s3, file):
    metadata = {f"note {n}": "é" * 512 for n in range(16)}
    batch = create(ai, file, metadata=metadata)
    assert batch.metadata == metadata
    found = s3.head_object(Bucket=BUCKET, Key=f"inbox/openai/{batch.id}.jsonl")["Metadata"]
    written = s3.get_object(Bucket=BUCKET, Key=f"inbox/_options/{found.pop('options-at')}.json")
    assert (found, json.loads(written["Body"].read())["tags"]) == ({}, metadata)


def test_lines_decide_their_endpoint_where_the_batchs_is_azures(ai, s3, file):
    """As in Azure's guide: a deployment takes both chat and the Responses API."""
    for endpoint, said in (("/chat/completions", None), (CHAT, CHAT)):
        batch = create(ai, file, endpoint=endpoint)
        found = s3.head_object(Bucket=BUCKET, Key=f"inbox/openai/{batch.id}.jsonl")
        assert (batch.endpoint, found["Metadata"].get("endpoint")) == (endpoint, said)


def test_large_file_is_copied_in_parts(ai, s3, monkeypatch):
    monkeypatch.setattr(sent_uploads, "COPY_BYTES", 5 << 20)
    content = LINE * ((11 << 20) // len(LINE))
    batch = create(ai, ai.files.create(file=content, purpose="batch"))

    found = s3.get_object(Bucket=BUCKET, Key=f"inbox/openai/{batch.id}.jsonl")
    assert found["ETag"].endswith('-3"')
    assert found["Body"].read() == content


WRONG = (
    ({"endpoint": "/v1/moderations"}, 400, "endpoint"),
    ({"endpoint": ""}, 400, "endpoint"),
    ({"endpoint": "/v1/v1/embeddings"}, 400, "endpoint"),
    ({"completion_window": "0h"}, 400, "completion_window"),
    ({"completion_window": "721h"}, 400, "completion_window"),
    ({"completion_window": "1d"}, 400, "completion_window"),
    ({"input_file_id": "file-unknown"}, 404, "input_file_id"),
    ({"input_file_id": "../inbox/x"}, 404, "input_file_id"),
    ({"input_file_id": f"file-output-{'0' * 27}"}, 400, "input_file_id"),
    ({"input_file_id": 5}, 400, None),
    ({"metadata": {str(n): "" for n in range(17)}}, 400, "metadata"),
    ({"metadata": {"a": "x" * 513}}, 400, "metadata"),
    ({"metadata": {"x" * 65: "a"}}, 400, "metadata"),
    ({"metadata": {"a": 5}}, 400, None),
)


def test_wrong_batch_is_refused_and_nothing_begins(ai, url, s3, file):
    for changed, status, param in WRONG:
        body = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"} | changed
        answer = httpx.post(f"{url}/batches", json=body)

        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), changed
        assert (uploads(s3), ai.batches.list().data) == ([], []), changed


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[" * 60_000, 400),
        (b" " * 70_000, 413),
    ],
)
def test_body_that_is_no_request_is_refused(url, body, status):
    answer = httpx.post(f"{url}/batches", content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")


def test_batch_of_deleted_file_is_refused_and_others_go_on(ai, s3, file):
    before = create(ai, file)
    ai.files.delete(file.id)

    with pytest.raises(openai.NotFoundError, match="No such File"):
        create(ai, file)
    assert uploads(s3) == [f"inbox/openai/{before.id}.jsonl"]
    assert ai.batches.retrieve(before.id).status == "validating"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=101", "limit=x", "limit=-1", "limit=%B2", "limit=1" + "0" * 5_000]
)
def test_limit_out_of_range_is_refused(url, query):
    answer = httpx.get(f"{url}/batches?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")


@pytest.mark.parametrize(
    "its_id", ["batch_1000000000007fde001982697f9e", "batch_x", "..%2F..%2Finbox", "file-x"]
)
def test_unknown_batch_is_404(url, its_id):
    for answer in (
        httpx.get(f"{url}/batches/{its_id}"),
        httpx.post(f"{url}/batches/{its_id}/cancel"),
    ):
        assert answer.status_code == 404
    assert httpx.get(f"{url}/batches?after=x").status_code == 404


def test_server_that_dies_before_upload_leaves_failed_batch(ai, s3, file, monkeypatch):
    monkeypatch.setattr(Store, "copy", lambda *_: 1 / 0)
    with pytest.raises(openai.InternalServerError):
        create(ai, file)
    (batch,) = ai.batches.list().data
    assert (batch.status, uploads(s3)) == ("validating", [])

    monkeypatch.setattr(module, "NOT_STARTED_SECONDS", -1)

    (batch,) = ai.batches.list().data
    assert (batch.status, batch.errors.data[0].code) == ("failed", "no_job")
    assert batch.failed_at == batch.created_at


class LosesAnswers(httpx.HTTPTransport):
    """A network that loses the first answer to each request for a batch."""

    def handle_request(self, request):
        answer = super().handle_request(request)
        if request.method == "POST" and request.headers["x-stainless-retry-count"] == "0":
            raise httpx.ReadTimeout("lost", request=request)
        return answer


def test_batch_whose_answer_is_lost_is_created_once(ai, url, s3, file):
    earlier = create(ai, file, metadata={"other": "batch"})
    with openai.OpenAI(
        base_url=url, api_key="none", http_client=httpx.Client(transport=LosesAnswers())
    ) as unlucky:
        batch = create(unlucky, file)

    assert ai.batches.list().data == [batch, earlier]
    assert uploads(s3) == [f"inbox/openai/{one.id}.jsonl" for one in (batch, earlier)]
    assert create(ai, file).id != batch.id


@pytest.mark.parametrize(
    ("count", "age", "same"), [("1", 1_750, True), ("2", 1_850, False), ("0", 0, False)]
)
def test_resent_request_is_older_batch_only_if_client_can_have_waited_so_long(
    ai, url, file, monkeypatch, count, age, same
):
    batch = create(ai, file)
    monkeypatch.setattr(module, "time", type("Later", (), {"time": lambda: batch.created_at + age}))

    answer = create_again(url, file, count)

    assert (answer.status_code, answer.json()["id"] == batch.id) == (200, same)


def test_batch_that_failed_to_begin_begins_when_sent_again(ai, s3, file, monkeypatch):
    copy, failures = Store.copy, [Error("AWS failed")]

    def fails_once(*arguments):
        if failures:
            raise failures.pop()
        copy(*arguments)

    monkeypatch.setattr(Store, "copy", fails_once)
    batch = create(ai.with_options(max_retries=1), file)

    listed, failed = ai.batches.list().data
    assert (listed, failed.status) == (batch, "failed")
    assert uploads(s3) == [f"inbox/openai/{batch.id}.jsonl"]


def test_request_sent_again_waits_while_the_first_goes_on(ai, url, s3, file):
    batch = create(ai, file)
    s3.delete_object(Bucket=BUCKET, Key=f"inbox/openai/{batch.id}.jsonl")

    answer = create_again(url, file)

    assert (answer.status_code, uploads(s3)) == (409, [])


def test_batch_is_cancelled_before_its_job_exists(ai, s3, file):
    batch = create(ai, file)

    cancelled = ai.batches.cancel(batch.id)

    assert (cancelled.status, cancelled.cancelling_at >= batch.created_at) == ("cancelling", True)
    (control,) = s3.list_objects_v2(Bucket=BUCKET, Prefix="control/")["Contents"]
    head = s3.head_object(Bucket=BUCKET, Key=f"inbox/openai/{batch.id}.jsonl")
    assert control["Key"].startswith(f"control/jobs/{head['LastModified']:%Y%m%dT%H%M%SZ}-")
    assert ai.batches.cancel(batch.id) == cancelled


@pytest.mark.parametrize("state", ["in_progress", "completed"])
def test_batch_whose_results_are_deleted_while_it_is_known_is_over(
    ai, s3, file, monkeypatch, state
):
    batch = create(ai, file, completion_window="1h")
    folder = f"results/openai/{batch.id}.jsonl/20261121T093000Z-5a6b7c8d"
    status = {"state": state, "job_id": "20261121T093000Z-5a6b7c8d", "counts": {}}
    s3.put_object(Bucket=BUCKET, Key=f"{folder}/status.json", Body=json.dumps(status).encode())
    ai.batches.retrieve(batch.id)
    if state == "in_progress":
        s3.delete_object(Bucket=BUCKET, Key=f"{folder}/status.json")
        monkeypatch.setattr(
            module, "time", type("Later", (), {"time": lambda: batch.expires_at + 86_401})
        )

    shown = ai.batches.retrieve(batch.id)

    assert (shown.status, shown.errors and shown.errors.data[0].code) == ("failed", "no_job")


def test_batch_that_the_stack_gave_up_is_over(ai, s3, file):
    batch = create(ai, file)
    error = {"code": "upload_denied", "message": "Upload it again."}
    notice = {
        "state": "failed",
        "error": error,
        "waiting_for": None,
        "job_id": None,
        "version": "v",
    }
    key = f"results/openai/{batch.id}.jsonl/status.json"
    s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(notice).encode())

    shown = ai.batches.retrieve(batch.id)

    assert (shown.status, shown.errors.data[0].code) == ("failed", "upload_denied")


def test_usage_is_the_manifests_sum():
    record = objects.Record("batch_" + "0" * 27, CHAT, "file-x", "24h", 1 << 40)
    used = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    more = {"cached_tokens": None, "reasoning_tokens": 7}
    manifest = {
        "job_id": "20261121T093000Z-5a6b7c8d",
        "state": "completed",
        "completed_at": "2026-11-21T09:40:00Z",
        "counts": {"total": 1, "succeeded": 1, "failed": 0},
        "usage": used | more,
    }
    usage = openai.types.BatchUsage.model_validate(
        objects.batch_object(record, None, manifest)["usage"], strict=True
    )
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (3, 9, 12)
    assert usage.input_tokens_details.cached_tokens == 0
    assert usage.output_tokens_details.reasoning_tokens == 7

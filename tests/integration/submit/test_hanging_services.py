"""AWS services that are busy or never answer, after the API has accepted a batch."""

import dataclasses
import socket
import threading
import time
import types
from dataclasses import replace

import botocore.endpoint
import msgspec
import pytest
from botocore.awsrequest import AWSResponse

from dropbatch.core.names import JobState
from functions.submit import submit as send
from local.template import default_variables
from shared import bootstrap as composition
from shared.bootstrap import BUSY_WAITS, Waits
from shared.errors import StorageError
from shared.models import Submission
from shared.pacing.breaker import Permit
from shared.services import Invocation
from tests.support.doubles import ledger_items
from tests.support.doubles.ledger_items import SUBMITTING

TRIES = 3
BATCH = replace(SUBMITTING, job_id="j", due_at=1.0)
JOB = replace(ledger_items.JOB, job_id="j", state=JobState.IN_PROGRESS)


class BlackHole:
    """Accepts connections, reads, and never answers."""

    def __init__(self):
        self.held = []
        self.listening = socket.create_server(("127.0.0.1", 0), backlog=50)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        try:
            while True:
                self.held.append(self.listening.accept()[0])
        except OSError:
            return

    @property
    def address(self):
        return f"http://127.0.0.1:{self.listening.getsockname()[1]}"


@pytest.fixture
def black_hole():
    hole = BlackHole()
    yield hole
    hole.listening.close()
    for connection in hole.held:
        connection.close()


class Kept:
    """A store that works."""

    def __init__(self):
        self.objects = {}

    def put_if_absent(self, key, body):
        self.objects.setdefault(key, body)
        return True


@pytest.fixture
def begin(black_hole, monkeypatch):
    """The functions' own services, with short waits, and each AWS service a black hole."""
    for name, value in {
        **default_variables(),
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ENDPOINT_URL": black_hole.address,
        "BUCKET_NAME": "bucket",
        "TABLE_NAME": "table",
        "UPLOAD_QUEUE_URL": f"{black_hole.address}/1/upload",
        "SPLIT_QUEUE_URL": f"{black_hole.address}/1/split",
        "SUBMIT_QUEUE_URL": f"{black_hole.address}/1/submit",
        "POLL_QUEUE_URL": f"{black_hole.address}/1/poll",
        "VISIT_QUEUE_URL": f"{black_hole.address}/1/visit",
        "CLOUDFLARE_ACCOUNT_ID": "0" * 32,
        "CLOUDFLARE_API_TOKEN_SECRET_ARN": "arn:aws:secretsmanager:eu-west-1:123456789012:secret:token",  # noqa: E501
        "WORKERS_AI_BASE_URL": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(composition, "QUICK_CALLS", Waits(0.5, 0.2, TRIES))
    monkeypatch.setattr(composition, "OBJECT_CALLS", Waits(0.5, 0.2, TRIES))
    monkeypatch.setattr(
        botocore.endpoint, "time", types.SimpleNamespace(sleep=lambda seconds: None)
    )
    composition.services.cache_clear()
    yield composition.services
    composition.services.cache_clear()


@pytest.fixture
def ends():
    """When the invocation ends: it has time for each step that hangs once, and not twice."""
    return time.time() + 15.0


def test_receipt_is_written_while_table_hangs(begin, black_hole, ends):
    services = dataclasses.replace(begin(), store=Kept())
    tried = []
    write = services.store.put_if_absent
    services.store.put_if_absent = lambda key, body: (
        tried.append(len(black_hole.held)),
        write(key, body),
    )[1]

    send._Submit(Invocation(services, ends), JOB, BATCH, Permit(), 5.0).record("id-1")

    ((key, receipt),) = services.store.objects.items()
    assert key == "staging/j/00000000/receipt-1"
    assert msgspec.json.decode(receipt, type=Submission).request_id == "id-1"
    assert tried == [TRIES]


def test_recovered_table_gets_request_id(begin, ends, monkeypatch):
    services = dataclasses.replace(begin(), store=Kept(), sleep=lambda seconds: None)
    outcomes = [StorageError("no answer"), StorageError("no answer"), BATCH]
    asked = []

    def accept(*_):
        outcome = outcomes.pop(0)
        if isinstance(outcome, StorageError):
            raise outcome
        return outcome

    services.ledger.accept = accept
    monkeypatch.setattr(send, "expect_events", lambda *_: asked.append("soon"))

    send._Submit(Invocation(services, ends), JOB, BATCH, Permit(), 5.0).record("id-1")

    assert (outcomes, asked, len(services.store.objects)) == ([], ["soon"], 1)


def test_request_id_is_logged_if_s3_hangs_too(begin, ends, caplog):
    services = begin()

    send._Submit(Invocation(services, ends), JOB, BATCH, Permit(), 5.0).record("id-1")

    assert ends > time.time()
    assert {(record.message, record.request_id) for record in caplog.records} == {
        ("request_id not recorded", "id-1"),
        ("receipt not written", "id-1"),
    }


def test_secret_that_hangs_is_given_up(begin, black_hole):
    services = begin()

    with pytest.raises(StorageError, match="Secrets Manager"):
        services.api.credentials(True)  # noqa: FBT003

    assert len(black_hole.held) == TRIES


BUSY = {
    "S3": (
        503,
        b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
    ),
    "S3 within": (
        500,
        b"<Error><Code>InternalError</Code><Message>We encountered an error.</Message></Error>",
    ),
    "DynamoDB": (
        400,
        b'{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}',
    ),
}


def answer_from(client, answers):
    """Answer each call of a client by the next of these; return the calls."""
    made = []

    def answer(request, **_):
        status, body = answers[len(made)]
        made.append(request)
        raw = types.SimpleNamespace(stream=lambda: iter([body]), read=lambda *_: body)
        return AWSResponse(request.url, status, {}, raw)

    client.meta.events.register("before-send", answer)
    return made


@pytest.mark.parametrize("service", BUSY)
def test_busy_service_is_tried_more_than_hanging(begin, service):
    services = begin()
    client = services.ledger.client if service == "DynamoDB" else services.store.client
    good = (200, b'{"Item": {}}' if service == "DynamoDB" else b"")
    made = answer_from(client, [BUSY[service]] * (TRIES + len(BUSY_WAITS) - 1) + [good])

    if service == "DynamoDB":
        client.get_item(TableName="table", Key={"pk": {"S": "a"}})
    else:
        services.store.put("a", b"content")

    assert len(made) == TRIES + len(BUSY_WAITS)


def test_service_that_stays_busy_is_given_up(begin):
    services = begin()
    made = answer_from(services.store.client, [BUSY["S3"]] * 20)

    with pytest.raises(StorageError, match="SlowDown"):
        services.store.put("a", b"content")

    assert len(made) == TRIES + len(BUSY_WAITS)


def test_call_that_is_wrong_is_made_once(begin):
    services = begin()
    made = answer_from(
        services.store.client, [(403, b"<Error><Code>AccessDenied</Code></Error>")] * 20
    )

    with pytest.raises(StorageError, match="AccessDenied"):
        services.store.put("a", b"content")

    assert len(made) == 1

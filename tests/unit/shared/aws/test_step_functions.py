"""Reports to Step Functions: what each answer means, and that no error has the token."""

from types import SimpleNamespace

import msgspec
import pytest
from botocore.exceptions import ClientError, ParamValidationError, ReadTimeoutError

from bench.child import EXAMPLE_SETTINGS
from functions.poll.results.manifest import event_detail, task_cause
from shared import bootstrap
from shared.aws.step_functions import GONE, MAX_CAUSE, MAX_OUTPUT, REFUSED, Gone, StepFunctions
from shared.errors import RefusedError, StorageError

TOKEN = "planted/token+=="


def answering(error=None):
    def report(**_):
        if error:
            raise error

    return StepFunctions(lambda: SimpleNamespace(send_task_heartbeat=report))


def refusal(code, retries=0):
    told = {"Code": code, "Message": f"Value '{TOKEN}' at 'taskToken'"}
    return ClientError(
        {"Error": told, "ResponseMetadata": {"RetryAttempts": retries}}, "SendTaskHeartbeat"
    )


def test_report_that_is_taken_says_nothing():
    assert answering().beat(TOKEN) is None


@pytest.mark.parametrize("code", sorted(GONE))
@pytest.mark.parametrize("retries", [0, 1])
def test_task_that_is_gone_is_told(code, retries):
    assert answering(refusal(code, retries)).beat(TOKEN) == Gone(code, sent_again=bool(retries))


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_lasting_refusal_is_one(code):
    with pytest.raises(RefusedError, match=code) as caught:
        answering(refusal(code)).beat(TOKEN)

    assert caught.value.said == "Value '…' at 'taskToken'"


@pytest.mark.parametrize(
    "error",
    [
        refusal("ThrottlingException"),
        refusal("KmsThrottlingException"),
        ReadTimeoutError(endpoint_url=f"https://states.test/{TOKEN}"),
        ParamValidationError(report=TOKEN),
    ],
)
def test_failure_is_repeated_and_tells_no_token(error):
    with pytest.raises(StorageError) as caught:
        answering(error).beat(TOKEN)

    assert not isinstance(caught.value, RefusedError)
    assert TOKEN not in str(caught.value)
    assert caught.value.__suppress_context__, "a traceback would have it"


@pytest.fixture
def made(monkeypatch):
    """The services' clients that were made, with their regions."""
    found = []

    def client(name, config=None, **more):
        del config
        found.append((name, more))
        events = SimpleNamespace(register=lambda *_: None)
        return SimpleNamespace(
            meta=SimpleNamespace(events=events), send_task_heartbeat=lambda **_: None
        )

    for name, value in EXAMPLE_SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("boto3.session.Session", lambda: SimpleNamespace(client=client))
    return found


def test_client_is_made_when_it_is_needed_in_the_machines_region(made, monkeypatch):
    monkeypatch.setenv(
        "STATE_MACHINE_ARN", "arn:aws:states:eu-north-1:123456789012:stateMachine:pipeline"
    )
    services = bootstrap.services.__wrapped__()
    assert "stepfunctions" not in dict(made)

    services.executions.beat(TOKEN)
    services.executions.beat(TOKEN)

    assert made[-1] == ("stepfunctions", {"region_name": "eu-north-1"})
    assert [name for name, _ in made].count("stepfunctions") == 1


def test_largest_report_is_taken(largest_job):
    """Tags, keys and messages are as long as they may be.

    And each of their characters is escaped.
    """
    job, manifest = largest_job
    detail = event_detail("bucket", job, manifest)

    assert len(task_cause(detail)) <= MAX_CAUSE
    assert len(msgspec.json.encode({**detail, "error": None})) < MAX_OUTPUT


@pytest.fixture
def largest_job():
    long = "\x01" * 900
    upload = SimpleNamespace(key=f"inbox/{long}")
    names = ("output.jsonl", "errors.jsonl", "retry.jsonl", "batches.jsonl")
    manifest = {
        **dict.fromkeys(("model", "format", "usage", "cost"), "x" * 200),
        "job_id": "20261121T071737Z-567961d8",
        "state": "failed",
        "error": {"code": "bad_options", "message": "\x01" * 100_000},
        "tags": {f"{number:02}" + "\x01" * 126: "\x01" * 512 for number in range(16)},
        "source": {
            "bucket": "x" * 63,
            "key": long,
            "version": "v" * 36,
            "etag": "e" * 40,
            "bytes": 10**12,
        },
        "counts": {"total": 10**9, "succeeded": 10**9, "failed": 10**9},
        "files": [{"kind": name.partition(".")[0], "name": name} for name in names],
    }
    return SimpleNamespace(upload=upload, job_id="20261121T071737Z-567961d8"), manifest

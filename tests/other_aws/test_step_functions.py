"""The example's state machine on LocalStack, which executes it.

The functions are called in this process.
"""

import json
import time

import botocore.client
import pytest
from botocore.exceptions import ReadTimeoutError

from functions.poll.schedule import visit_job
from functions.submit import create_job
from local.workers_ai import Fault
from shared import bootstrap, executions
from tests.support.aws.resources import client
from tests.support.shipped import ROOT
from tests.support.translations import M2M, greetings

pytestmark = [pytest.mark.second, pytest.mark.timeout(600)]
EXAMPLE = (ROOT / "examples/step-functions.asl.json").read_text("utf-8")
ROLE = "arn:aws:iam::000000000000:role/pipeline"
SUCCESS = "SendTaskSuccess"


class DiedError(BaseException):
    """The function was killed: no code in it may catch this."""


class Executions:
    """Executions of the example on a stack."""

    def __init__(self, stack, arn):
        self.stack, self.arn, self.client = stack, arn, client("stepfunctions")

    def start(self, name):
        """Start one with a file of three records; return its ARN."""
        source = f"exports/{name}.jsonl"
        body = "".join(f"{json.dumps(one)}\n" for one in greetings(3)).encode()
        client("s3").put_object(Bucket=self.stack.bucket, Key=source, Body=body)
        bucket, path = self.stack.bucket, f"pipeline/{name}.jsonl"
        given = {"bucket": bucket, "source": f"{bucket}/{source}", "path": path, "model": M2M}
        started = self.client.start_execution(stateMachineArn=self.arn, input=json.dumps(given))[
            "executionArn"
        ]
        ends = time.monotonic() + 30
        while (
            not client("s3").list_objects_v2(Bucket=bucket, Prefix=f"inbox/{path}").get("Contents")
        ):
            assert time.monotonic() < ends, self.describe(started)
            time.sleep(0.2)
        return started

    def describe(self, arn):
        return self.client.describe_execution(executionArn=arn)

    def end(self, arn):
        """Let the functions work until an execution has ended; return how."""

        def ended():
            found = self.describe(arn)
            return found if found["status"] != "RUNNING" else None

        return self.stack.work_until(ended)

    def status(self, name):
        """The newest `status.json` of a path."""
        return json.loads(self._read(name, "status.json"))

    def manifest(self, name):
        """The manifest of a path's only job."""
        return json.loads(self._read(name, "manifest.json"))

    def _read(self, name, file):
        found = client("s3").list_objects_v2(
            Bucket=self.stack.bucket, Prefix=f"results/pipeline/{name}.jsonl/"
        )["Contents"]
        (key,) = [one["Key"] for one in found if one["Key"].endswith(f"/{file}")]
        return client("s3").get_object(Bucket=self.stack.bucket, Key=key)["Body"].read()


@pytest.fixture
def pipeline(stack, monkeypatch):
    name = f"pipeline-{time.time_ns()}"
    arn = client("stepfunctions").create_state_machine(name=name, definition=EXAMPLE, roleArn=ROLE)[
        "stateMachineArn"
    ]
    monkeypatch.setenv("STATE_MACHINE_ARN", arn)
    monkeypatch.setattr(executions, "BEAT_SECONDS", 1.0)
    monkeypatch.setattr(visit_job, "MIN_VISIT_SECONDS", 1.0)
    monkeypatch.setattr(visit_job, "MAX_VISIT_SECONDS", 1.0)
    monkeypatch.setattr(visit_job, "VISIT_LEASE_SECONDS", 2.0)
    monkeypatch.setattr(create_job, "TURN_LEASE_SECONDS", 3.0)
    bootstrap.services.cache_clear()
    return Executions(stack, arn)


@pytest.fixture
def calls(monkeypatch):
    """Called after each call of AWS with its operation; may raise."""
    after, real = [], botocore.client.BaseClient._make_api_call

    def call(this, operation, arguments):
        answer = real(this, operation, arguments)
        for one in after:
            one(operation)
        return answer

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)
    return after


def test_example_waits_and_tries_failed_records_again(pipeline):
    pipeline.stack.api.inject(Fault(kind="item_fails", items=(1,), code=5001, message="no"))

    ended = pipeline.end(pipeline.start("again"))

    assert ended["status"] == "SUCCEEDED", ended
    output = json.loads(ended["output"])
    assert output["job"]["counts"] == {"total": 3, "succeeded": 2, "failed": 1}
    assert output["retry"]["counts"] == {"total": 1, "succeeded": 1, "failed": 0}
    assert output["job"]["job_id"] == pipeline.manifest("again")["job_id"]


def test_failed_job_fails_its_execution(pipeline):
    pipeline.stack.api.inject(Fault(kind="5007", on="submit", times=0))

    ended = pipeline.end(pipeline.start("failed"))

    assert (ended["status"], ended["error"]) == ("FAILED", "unknown_model")
    assert json.loads(ended["cause"])["message"] == pipeline.manifest("failed")["error"]["message"]


def test_aborted_execution_cancels_its_job(pipeline):
    pipeline.stack.api.inject(Fault(kind="3040", on="submit", times=0))
    execution = pipeline.start("aborted")
    pipeline.stack.deliver("UploadQueue")

    pipeline.client.stop_execution(executionArn=execution)

    pipeline.stack.settle("results/pipeline/aborted.jsonl/")
    assert pipeline.manifest("aborted")["state"] == "cancelled"
    assert [one["code"] for one in pipeline.status("aborted")["notes"]] == ["execution_gone"]


def test_report_whose_answer_is_lost_is_one_report(pipeline, calls):
    told = []

    def lose(operation):
        told.append(operation)
        if operation == SUCCESS:
            raise ReadTimeoutError(endpoint_url="https://states")

    calls.append(lose)

    ended = pipeline.end(pipeline.start("lost"))
    calls.clear()
    pipeline.stack.work_until(lambda: is_over(pipeline))

    assert ended["status"] == "SUCCEEDED"
    assert told.count(SUCCESS) == 1, "the next one is refused, as its task is gone"
    assert pipeline.status("lost")["notes"] == []


@pytest.mark.parametrize("operation", ["SendTaskHeartbeat", SUCCESS, "PutEvents"])
def test_function_that_is_killed_loses_no_report(pipeline, calls, operation):
    """After each call in turn: it has told the execution, or nobody yet, or everybody."""
    name, killed = f"killed-{operation}", []

    def kill(done):
        if done == operation and not killed:
            killed.append(done)
            raise DiedError

    execution = pipeline.start(name)
    calls.append(kill)
    with pytest.raises(DiedError):
        pipeline.end(execution)

    ended = pipeline.end(execution)
    pipeline.stack.work_until(lambda: is_over(pipeline))

    assert ended["status"] == "SUCCEEDED"
    assert json.loads(ended["output"])["job"]["counts"] == pipeline.manifest(name)["counts"]
    assert pipeline.status(name)["notes"] == []


def is_over(pipeline):
    """Whether no job waits for its end."""
    table = pipeline.stack.resources["Table"]
    jobs = [
        one for one in client("dynamodb").scan(TableName=table)["Items"] if one["sk"]["S"] == "META"
    ]
    return all(one["state"]["S"] in {"completed", "failed", "cancelled"} for one in jobs)

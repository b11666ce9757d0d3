"""The life of a stack: a deployment under load, a new token, its deletion.

One stack for the file, in a folder and on ports of its own. The tests run in this order.
"""

import json
import time
from dataclasses import dataclass
from typing import Any

import boto3
import pytest

from dropbatch.core.names import CONTROL_PK
from local import aws
from tests.support.aws.stack import (
    MODEL,
    Stack,
    as_lines,
    assert_every_line_answers_its_request,
    requests,
    running_stack,
)

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(900)]

HOME = aws.Home(aws.ROOT / ".local/test-life")


@dataclass
class Operator:
    """An operator's actions on a running stack."""

    stack: Stack
    told: dict[str, str]
    events: str = ""

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.told["endpoint_url"],
            region_name=self.told["region"],
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def deploy(self, parameters: str) -> None:
        """Deploy over the running stack."""
        port = self.told["endpoint_url"].rpartition(":")[2]
        self.told = aws.up({"LOCAL_PORT": port, "LOCAL_PARAMETERS": parameters}, HOME)

    def resources(self) -> dict[str, str]:
        """Names by logical ids."""
        found = self.client("cloudformation").describe_stack_resources(StackName=aws.STACK_NAME)[
            "StackResources"
        ]
        return {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in found}

    def listen(self) -> None:
        """Send every notice to a queue from now on."""
        self.events = self.stack.sqs.create_queue(QueueName="events")["QueueUrl"]
        asked = self.stack.sqs.get_queue_attributes(
            QueueUrl=self.events, AttributeNames=["QueueArn"]
        )
        bus = self.client("events")
        bus.put_rule(Name="listen", EventPattern=json.dumps({"source": ["dropbatch"]}))
        bus.put_targets(
            Rule="listen", Targets=[{"Id": "queue", "Arn": asked["Attributes"]["QueueArn"]}]
        )

    def announced(self) -> dict[str, str]:
        """Job ids by the path of their upload, of all notices so far."""
        found = {}
        while messages := self.stack.sqs.receive_message(
            QueueUrl=self.events, MaxNumberOfMessages=10
        ).get("Messages"):
            for message in messages:
                detail = json.loads(message["Body"])["detail"]
                found[detail["source"]["key"].removeprefix("inbox/")] = detail["job_id"]
                self.stack.sqs.delete_message(
                    QueueUrl=self.events, ReceiptHandle=message["ReceiptHandle"]
                )
        return found


@pytest.fixture(scope="module")
def operator():
    with running_stack(HOME, "MaxRequestsPerBatch=100") as stack:
        made = Operator(stack, json.loads(HOME.stack_file.read_text()))
        made.listen()
        yield made


@pytest.fixture
def stack(operator):
    return operator.stack


def test_deploy_over_jobs_in_flight_loses_nothing(operator, stack):
    """The local AWS kills running functions, where AWS lets them end."""
    records = requests(2_000, "flight")
    stack.local("behaviour", "PUT", {"latency": 15.0})
    stack.drop(f"{MODEL}/flight.jsonl", as_lines(records))
    table = "id,text\n" + "".join(f"{number},flying {number}\n" for number in range(300))
    # Its items carry another schema than those of native records.
    stack.drop(f"{MODEL}/flight.csv", table.encode())
    while len(stack.bill()) < 3:
        time.sleep(0.2)
    before = operator.resources()

    operator.deploy("MaxRequestsPerBatch=50 LogLevel=DEBUG")

    assert operator.resources() == before, "a deploy of new settings replaces nothing"
    environment = stack.functions.get_function_configuration(FunctionName=before["SubmitFunction"])[
        "Environment"
    ]
    assert environment["Variables"]["MAX_REQUESTS_PER_BATCH"] == "50"
    # A function may be killed between its claim and its POST: its lease ends after some minutes.
    folder, manifest = stack.wait(f"{MODEL}/flight.jsonl", seconds=800)
    assert manifest["counts"] == {"total": 2_000, "succeeded": 2_000, "failed": 0}
    assert_every_line_answers_its_request(stack.lines(folder), records)
    assert [batch["requests"] for batch in manifest["batches"]] == [100] * 20, (
        "a job keeps the limits it began with"
    )
    table_folder, table_manifest = stack.wait(f"{MODEL}/flight.csv", seconds=600)
    assert table_manifest["counts"] == {"total": 300, "succeeded": 300, "failed": 0}
    rows = (
        stack.s3.get_object(Bucket=stack.bucket, Key=f"{table_folder}/output.csv")["Body"]
        .read()
        .splitlines()
    )
    assert [row.split(b",")[0] for row in rows[1:]] == [b"%d" % number for number in range(300)]
    both = [*manifest["batches"], *table_manifest["batches"]]
    assert len(stack.bill()) - len(both) <= sum(batch["unknowable_submits"] for batch in both)
    stack.local("behaviour", "PUT", {"latency": 2.0})


def test_changed_token_needs_no_deploy(operator, stack):
    stack.drop(f"{MODEL}/old-token.jsonl", as_lines(requests(10, "old")))
    stack.wait(f"{MODEL}/old-token.jsonl")  # Both functions have read the old one by now.
    secret = operator.resources()["ApiToken"]
    operator.client("secretsmanager").put_secret_value(SecretId=secret, SecretString="changed")
    stack.local("behaviour", "PUT", {"tokens": ["changed"]})

    stack.drop(f"{MODEL}/new-token.jsonl", as_lines(requests(10, "new")))

    assert stack.wait(f"{MODEL}/new-token.jsonl")[1]["counts"]["succeeded"] == 10
    key = {"pk": {"S": CONTROL_PK}, "sk": {"S": "PAUSE"}}
    pause = (
        operator.client("dynamodb")
        .get_item(TableName=operator.told["table"], Key=key)
        .get("Item", {})
    )
    assert pause.get("reason") != {"S": "token_refused"}


def test_each_finished_job_was_announced(operator, stack):
    """The local AWS enforces the poll function's role, which may put no other event."""
    uploads = ("flight.jsonl", "flight.csv", "old-token.jsonl", "new-token.jsonl")
    paths = [f"{MODEL}/{name}" for name in uploads]

    assert operator.announced() == {path: stack.wait(path)[1]["job_id"] for path in paths}


def test_deleted_stack_leaves_bucket_and_table(operator, stack):
    formation = operator.client("cloudformation")
    formation.delete_stack(StackName=aws.STACK_NAME)
    formation.get_waiter("stack_delete_complete").wait(
        StackName=aws.STACK_NAME, WaiterConfig={"Delay": 1}
    )

    folder, _ = stack.wait(f"{MODEL}/new-token.jsonl")
    assert len(stack.lines(folder)) == 10
    assert operator.client("dynamodb").scan(TableName=operator.told["table"])["Count"] > 0
    assert stack.functions.list_functions()["Functions"] == []
    assert stack.sqs.list_queues()["QueueUrls"] == [operator.events]

"""The template without its functions on LocalStack and DynamoDB Local.

Whose functions run in this process.
"""

import json
import re
import time
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace

import boto3
import pytest

import functions.poll.handler
import functions.submit.handler
from local.processes import ROOT, Service, bare_environment, free_port
from local.workers_ai import Behaviour, WorkersAI, transport
from shared import bootstrap
from shared.workers_ai.client import http_client
from tests.other_aws import dynamodb_local
from tests.support.aws.resources import (
    ACCOUNT,
    QUEUES,
    REGION,
    TOKEN,
    client,
    forget_clients,
    make_environment,
)
from tests.support.aws.translated_template import translated

PYTHON = ROOT / ".local/localstack/bin/python"
SERVICES = (
    "cloudformation,cloudwatch,dynamodb,events,iam,kms,lambda,logs,s3,scheduler,secretsmanager,sns,sqs,ssm,"
    "stepfunctions,sts"
)
PARAMETERS = {"CloudflareAccountId": ACCOUNT, "CloudflareApiToken": TOKEN}
POLL_QUEUES = {"PollQueue", "VisitQueue"}


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory):
    """The address of LocalStack, which the AWS clients of all tests use."""
    with ExitStack() as running:
        process, url = dynamodb_local.start(dynamodb_local.install())
        running.callback(process.wait)
        running.callback(process.terminate)
        folder, port = tmp_path_factory.mktemp("localstack"), free_port()
        environment = bare_environment() | {
            "DISABLE_EVENTS": "1",
            "DNS_ADDRESS": "0",
            "DYNAMODB_LOCAL_PORT": url.rpartition(":")[2],
            "FILESYSTEM_ROOT": str(folder),
            "GATEWAY_LISTEN": f"127.0.0.1:{port}",
            "OVERRIDE_IN_DOCKER": "0",
            "SERVICES": SERVICES,
        }
        service = Service("localstack", folder)
        service.log.parent.mkdir(parents=True, exist_ok=True)
        service.start(
            [str(PYTHON), str(ROOT / "tests/other_aws/localstack_server.py")], environment, port
        )
        running.callback(service.stop)
        patch = running.enter_context(pytest.MonkeyPatch.context())
        keys = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
        }
        for name, value in {**keys, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}.items():
            patch.setenv(name, value)
        yield f"http://127.0.0.1:{port}"


def without_functions(template):
    """The template without its functions, which LocalStack runs in Docker only.

    And without what refers to them.
    """
    resources = template["Resources"]
    gone = {name for name, one in resources.items() if one["Type"].startswith("AWS::Lambda::")}

    def refers(part):
        return bool(gone & set(re.findall(r"\w+", json.dumps(part))))

    while more := {name for name, one in resources.items() if name not in gone and refers(one)}:
        gone |= more
    kept = {name: one for name, one in resources.items() if name not in gone}
    outputs = {name: one for name, one in template["Outputs"].items() if not refers(one)}
    return {**template, "Resources": kept, "Outputs": outputs}


@dataclass
class OnLocalStack:
    """A deployed stack; its functions are called here, as Lambda calls them."""

    resources: dict[str, str]
    outputs: dict[str, str]
    api: WorkersAI
    failing: bool = False

    @property
    def bucket(self):
        return self.resources["Bucket"]

    def url(self, queue):
        return self.resources[queue]

    def deliver(self, queue):
        """Hand the queue's messages that are visible now to their function.

        Return how many it took.
        """
        handler = functions.poll.handler if queue in POLL_QUEUES else functions.submit.handler
        sqs, taken = client("sqs"), 0
        found = sqs.receive_message(
            QueueUrl=self.url(queue), MaxNumberOfMessages=10, AttributeNames=["All"]
        )
        for message in found.get("Messages", []):
            record = {
                "messageId": message["MessageId"],
                "receiptHandle": message["ReceiptHandle"],
                "body": message["Body"],
                "attributes": message["Attributes"],
                "messageAttributes": {},
                "eventSource": "aws:sqs",
                "eventSourceARN": f"arn:aws:sqs:{REGION}:123456789012:{queue}",
            }
            if (
                not self.failing
                and not self.invoke(handler, {"Records": [record]})["batchItemFailures"]
            ):
                sqs.delete_message(QueueUrl=self.url(queue), ReceiptHandle=message["ReceiptHandle"])
                taken += 1
        return taken

    @staticmethod
    def invoke(handler, event):
        ends = time.time() + 300
        context = SimpleNamespace(
            function_name="dropbatch",
            memory_limit_in_mb=1769,
            invoked_function_arn=f"arn:aws:lambda:{REGION}:123456789012:function:dropbatch",
            aws_request_id="11111111-2222-3333-4444-555555555555",
            get_remaining_time_in_millis=lambda: int((ends - time.time()) * 1000),
        )
        return handler.lambda_handler(event, context)

    def client(self, name):
        """What `dropbatch` uses of its own class of stacks, with `outputs`."""
        return client(name)

    def settle(self, prefix, seconds=120):
        """Deliver, and tick if nothing is there to deliver.

        Until there is a manifest below a prefix; its key.
        """

        def manifests():
            found = (
                client("s3").list_objects_v2(Bucket=self.bucket, Prefix=prefix).get("Contents", [])
            )
            return [one["Key"] for one in found if one["Key"].endswith("/manifest.json")]

        return self.work_until(manifests, seconds)[0]

    def work_until(self, found, seconds=120):
        """Deliver, and tick if nothing is there to deliver, until something is found; return it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not sum(self.deliver(queue) for queue in QUEUES):
                self.invoke(functions.poll.handler, {})
                time.sleep(0.5)
            if what := found():
                return what
        raise AssertionError(f"nothing found after {seconds} s")


@pytest.fixture(scope="session")
def deployed(endpoint):
    """The resources and outputs of the deployed template by name, and its functions' variables."""
    forget_clients()
    formation, s3 = boto3.client("cloudformation"), boto3.client("s3")
    s3.create_bucket(Bucket="templates", CreateBucketConfiguration={"LocationConstraint": REGION})
    body = json.dumps(without_functions(translated()))
    s3.put_object(Bucket="templates", Key="template.json", Body=body)
    formation.create_stack(
        StackName="dropbatch",
        TemplateURL=f"{endpoint}/templates/template.json",
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[
            {"ParameterKey": name, "ParameterValue": value} for name, value in PARAMETERS.items()
        ],
    )
    formation.get_waiter("stack_create_complete").wait(
        StackName="dropbatch", WaiterConfig={"Delay": 1}
    )
    (stack,) = formation.describe_stacks(StackName="dropbatch")["Stacks"]
    outputs = {one["OutputKey"]: one["OutputValue"] for one in stack["Outputs"]}
    pages = formation.get_paginator("list_stack_resources").paginate(StackName="dropbatch")
    found = [one for page in pages for one in page["StackResourceSummaries"]]
    resources = {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in found}
    settings = {"BUCKET_NAME": resources["Bucket"], "TABLE_NAME": resources["Table"]}
    return resources, outputs, make_environment(resources, settings)


@pytest.fixture
def stack(deployed, monkeypatch):
    """A stack whose functions call a local Workers AI in this process."""
    resources, outputs, environment = deployed
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    api = WorkersAI(Behaviour(embedder="hash", latency=1.0))
    monkeypatch.setattr(bootstrap, "http_client", lambda: http_client(transport(api)))
    bootstrap.services.cache_clear()
    yield OnLocalStack(resources, outputs, api)
    bootstrap.services.cache_clear()

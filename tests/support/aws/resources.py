"""The resources of `template.yaml` on moto, and the roles that use them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient
from botocore.exceptions import ClientError
from botocore.stub import Stubber

from local.template import default_variables, properties
from simulation import Table
from tests.support.aws.iam import Permissions, grants

REGION = "eu-west-1"
ACCOUNT = "0123456789abcdef0123456789abcdef"
AWS_ACCOUNT = "123456789012"
TOKEN = "local-token"
GATEWAY_TOKEN = "local-gateway-token"
TABLE = "ledger"
BUCKET = "dropbatch-test"
QUEUES = ("UploadQueue", "SplitQueue", "SubmitQueue", "PollQueue", "VisitQueue")
WORKER_URL = "https://dropbatch.example.workers.dev"
WAYS: dict[str, dict[str, str]] = {
    "rest": {},
    "gateway": {"AI_GATEWAY_ID": "local-gateway"},
    "worker": {"TRANSPORT": "worker", "WORKER_URL": WORKER_URL},
}
"""Settings of each transport: `start(**WAYS["worker"])`."""


def sign_in(patch: pytest.MonkeyPatch) -> None:
    """Let boto3 find keys and a region, as in a function."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "test")
    patch.setenv("AWS_DEFAULT_REGION", REGION)


def client(name: str, config: object = None) -> Any:
    """A client of one service, created once for all worlds."""
    return _client(name)


@cache
def _client(name: str) -> Any:
    return boto3.client(name)  # type: ignore[call-overload] # The service is known at run time.


class Session:
    """A boto3 session whose clients all worlds share."""

    def client(self, name: str, config: object = None, region_name: str = REGION) -> Any:
        assert region_name == REGION
        return client(name, config)


@contextmanager
def stubbed(service: str) -> Iterator[Stubber]:
    """A client that returns what a test sets; each answer must have been used in the end."""
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    with Stubber(boto3.client(service, region_name=REGION, **keys)) as stub:  # type: ignore[call-overload] # known at run time
        yield stub
        stub.assert_no_pending_responses()


def limit_s3(patch: pytest.MonkeyPatch) -> None:
    """Let S3 reject what is beyond limits that moto does not know."""
    real = BaseClient._make_api_call  # type: ignore[attr-defined] # Private.

    def call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        code = _refusal(arguments) if client.meta.service_model.service_name == "s3" else None
        if code:
            raise ClientError({"Error": {"Code": code, "Message": "beyond S3's limits"}}, operation)
        return real(client, operation, arguments)

    patch.setattr(BaseClient, "_make_api_call", call)


def _refusal(arguments: dict[str, Any]) -> str | None:
    metadata = arguments.get("Metadata") or {}
    parts = (arguments.get("MultipartUpload") or {}).get("Parts", [])
    if len(str(arguments.get("Key", "")).encode()) > 1_024:
        return "KeyTooLongError"
    if sum(len(f"{name}{value}".encode()) for name, value in metadata.items()) > 2_048:
        return "MetadataTooLarge"
    if max([arguments.get("PartNumber", 0), *(one["PartNumber"] for one in parts)]) > 10_000:
        return "InvalidArgument"
    return None


@cache
def ledger_table(name: str = TABLE) -> Table:
    """The ledger's table as the template describes it, for the simulated DynamoDB."""
    return Table.described(name, properties("Table"))


def make_resources() -> dict[str, str]:
    """Create everything but secrets."""
    urls: dict[str, str] = {}
    for name in QUEUES:
        urls |= _make_queue(name)
    make_table()
    _make_bucket(urls)
    urls["events"] = _make_event_queue()
    return urls


def _arn(url: str) -> str:
    return f"arn:aws:sqs:{REGION}:{AWS_ACCOUNT}:{url.rpartition('/')[2]}"


def _make_queue(name: str) -> dict[str, str]:
    wanted = properties(name)
    dead = client("sqs").create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    redrive = {
        "deadLetterTargetArn": _arn(dead),
        "maxReceiveCount": wanted["RedrivePolicy"]["maxReceiveCount"],
    }
    attributes = {
        "VisibilityTimeout": str(wanted["VisibilityTimeout"]),
        "RedrivePolicy": json.dumps(redrive),
    }
    return {
        name: client("sqs").create_queue(QueueName=name, Attributes=attributes)["QueueUrl"],
        f"{name}-dead": dead,
    }


def make_table(name: str = TABLE) -> None:
    """Create a table like the ledger's."""
    wanted = properties("Table")
    names = ("BillingMode", "AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes")
    client("dynamodb").create_table(TableName=name, **{each: wanted[each] for each in names})


def _make_bucket(urls: Mapping[str, str]) -> None:
    """Create the bucket with versioning, and its notifications to the queues in the template."""
    s3, wanted = client("s3"), properties("Bucket")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    s3.put_bucket_versioning(
        Bucket=BUCKET, VersioningConfiguration=wanted["VersioningConfiguration"]
    )
    notifications = [
        {
            "QueueArn": _arn(urls[one["Queue"]["Fn::GetAtt"].removesuffix(".Arn")]),
            "Events": [one["Event"]],
            "Filter": {"Key": {"FilterRules": one["Filter"]["S3Key"]["Rules"]}},
        }
        for one in wanted["NotificationConfiguration"]["QueueConfigurations"]
    ]
    s3.put_bucket_notification_configuration(
        Bucket=BUCKET, NotificationConfiguration={"QueueConfigurations": notifications}
    )


def _make_event_queue() -> str:
    """Create a queue that receives what Dropbatch puts on the event bus; return its URL."""
    url = str(client("sqs").create_queue(QueueName="events")["QueueUrl"])
    bus = client("events")
    bus.put_rule(Name="dropbatch", EventPattern=json.dumps({"source": ["dropbatch"]}))
    bus.put_targets(Rule="dropbatch", Targets=[{"Id": "queue", "Arn": _arn(url)}])
    return url


def make_environment(urls: Mapping[str, str], settings: Mapping[str, object]) -> dict[str, str]:
    """Create the secrets; return the functions' variables."""
    secrets = client("secretsmanager")
    secret = secrets.create_secret(Name="token", SecretString=TOKEN)["ARN"]
    gateway_secret = secrets.create_secret(Name="gateway-token", SecretString=GATEWAY_TOKEN)["ARN"]
    given = gateway_secret if "AI_GATEWAY_ID" in settings else ""
    secret_arns = _secrets(str(settings.get("TRANSPORT", "rest")), secret, given)
    return {
        **variables(urls),
        **secret_arns,
        **{name: str(value) for name, value in settings.items()},
    }


def variables(urls: Mapping[str, str]) -> dict[str, str]:
    """The functions' variables, but for the secrets."""
    return {
        **default_variables(),
        "BUCKET_NAME": BUCKET,
        "TABLE_NAME": TABLE,
        **{f"{name.removesuffix('Queue').upper()}_QUEUE_URL": urls[name] for name in QUEUES},
        "CLOUDFLARE_ACCOUNT_ID": ACCOUNT,
    }


def _secrets(transport: str, token: str, gateway_token: str) -> dict[str, str]:
    """The variables of a transport's secrets, as the template would set them."""
    return {
        "CLOUDFLARE_API_TOKEN_SECRET_ARN": "" if transport == "worker" else token,
        "AI_GATEWAY_TOKEN_SECRET_ARN": gateway_token,
        "WORKER_SECRET_ARN": token if transport == "worker" else "",
    }


def permissions_of(environment: dict[str, str]) -> Permissions:
    """Both functions' roles, on these resources."""
    names = {
        "AWS::Partition": "aws",
        "AWS::Region": "",  # ARNs here have no region.
        "AWS::AccountId": AWS_ACCOUNT,
        "Bucket.Arn": f"arn:aws:s3:::{BUCKET}",
        "Table.Arn": f"arn:aws:dynamodb:::table/{TABLE}",
        "ApiToken.Id": environment["CLOUDFLARE_API_TOKEN_SECRET_ARN"],
        "AiGatewayTokenSecretArn": environment["AI_GATEWAY_TOKEN_SECRET_ARN"],
        "SharedSecret.Id": environment["WORKER_SECRET_ARN"],
        "SourceBucketName": environment.get("SOURCE_BUCKET_NAME", ""),
        "SourcePrefix": environment.get("SOURCE_PREFIX", ""),
        "SubmitLogs.Arn": "arn:aws:logs:::log-group:submit",
        "PollLogs.Arn": "arn:aws:logs:::log-group:poll",
        **{f"{name}.Arn": f"arn:aws:sqs:::{name}" for name in QUEUES},
    }
    transport = environment.get("TRANSPORT", "rest")
    conditions = {
        "UsesOwnKey": False,
        "NamesSecret": False,
        "NamesWorkerSecret": False,
        "SendsToken": transport != "worker",
        "SendsGatewayToken": transport != "worker" and bool(environment.get("AI_GATEWAY_ID")),
        "UsesWorker": transport == "worker",
        "UsesSource": bool(environment.get("SOURCE_BUCKET_NAME")),
    }
    return Permissions(
        {role: grants(role, names, conditions) for role in ("SubmitRole", "PollRole")}, AWS_ACCOUNT
    )

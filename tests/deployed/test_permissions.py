"""Each grant of the deployed roles on the local AWS: with it a call is allowed, without it refused.

The local AWS has an implementation of its own; tests/support/aws/iam.py judges every call of every
test on moto and finds that each grant is used. Here a user gets a function's policy, then the
policy without one grant, and makes the call.
"""

import copy
import json

import boto3
import pytest
from botocore.exceptions import ClientError

from dropbatch.core.names import CONTROL_PK
from local import aws
from tests.support.aws.stack import running_stack
from tests.support.shipped import ROOT

POLICIES = {"SubmitRole": "submit", "PollRole": "poll"}
REFUSED = {"AccessDenied", "AccessDeniedException", "AccessDeniedFault"}
NOT_JUDGED = ("xray:", "logs:")
"""The local AWS has no X-Ray, and takes a log group's ARN, with its `:*`, for another's."""

pytestmark = [pytest.mark.stack, pytest.mark.slow]


class Deployed:
    """A running stack, for an administrator and for a user with a given policy."""

    def __init__(self, told):
        self.told = told
        self.iam = self.client("iam")
        self.iam.create_user(UserName="user")
        self.keys = self.iam.create_access_key(UserName="user")["AccessKey"]
        resources = self.client("cloudformation").describe_stack_resources(
            StackName=aws.STACK_NAME
        )["StackResources"]
        self.names = {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in resources}

    def client(self, service, key="test", secret="test"):
        return boto3.client(
            service,
            endpoint_url=self.told["endpoint_url"],
            region_name=self.told["region"],
            aws_access_key_id=key,
            aws_secret_access_key=secret,
        )

    def policy(self, role):
        found = self.iam.get_role_policy(RoleName=self.names[role], PolicyName=POLICIES[role])
        return found["PolicyDocument"]

    def is_refused(self, document, action, resource):
        """Whether a user with this policy is refused the action."""
        self.iam.put_user_policy(
            UserName="user", PolicyName="all", PolicyDocument=json.dumps(document)
        )
        service, _, name = action.partition(":")
        client = self.client(service, self.keys["AccessKeyId"], self.keys["SecretAccessKey"])
        try:
            CALLS[name](client, resource, self)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            assert code in REFUSED or not code.startswith(
                ("Access", "403", "Invalid", "Signature")
            ), code
            return code in REFUSED
        return False


def _object(resource):
    bucket, _, key = resource.rpartition(":::")[2].partition("/")
    return {"Bucket": bucket, "Key": key.replace("*", "x").replace("?", "0")}


def _table(resource):
    name, _, index = resource.partition("table/")[2].partition("/index/")
    return {"TableName": name, **({"IndexName": index} if index else {})}


def _queue(resource, deployed):
    name = resource.rpartition(":")[2]
    return deployed.client("sqs").get_queue_url(QueueName=name)["QueueUrl"]


def _query(client, resource):
    names = {"#key": "work" if "/index/" in resource else "pk"}
    client.query(
        **_table(resource),
        KeyConditionExpression="#key = :key",
        ExpressionAttributeNames=names,
        ExpressionAttributeValues={":key": {"S": "x"}},
    )


def _put_events(client, resource):
    entry = {"Source": "dropbatch", "DetailType": "Batch Job State Change", "Detail": "{}"}
    client.put_events(Entries=[entry])


KEY = {"pk": {"S": CONTROL_PK}, "sk": {"S": "x"}}
CALLS = {
    "GetObject": lambda client, resource, _: client.get_object(**_object(resource)),
    "GetObjectVersion": lambda client, resource, _: client.get_object(
        **_object(resource), VersionId="x"
    ),
    "PutObject": lambda client, resource, _: client.put_object(**_object(resource), Body=b""),
    "AbortMultipartUpload": lambda client, resource, _: client.abort_multipart_upload(
        **_object(resource), UploadId="x"
    ),
    "ListMultipartUploadParts": lambda client, resource, _: client.list_parts(
        **_object(resource), UploadId="x"
    ),
    "ListBucket": lambda client, resource, _: client.list_objects_v2(
        Bucket=resource.rpartition(":::")[2], Prefix="staging/"
    ),
    "ListBucketVersions": lambda client, resource, _: client.list_object_versions(
        Bucket=resource.rpartition(":::")[2], Prefix="staging/"
    ),
    "DeleteObject": lambda client, resource, _: client.delete_object(**_object(resource)),
    "DeleteObjectVersion": lambda client, resource, _: client.delete_object(
        **_object(resource), VersionId="x"
    ),
    "GetItem": lambda client, resource, _: client.get_item(**_table(resource), Key=KEY),
    "BatchGetItem": lambda client, resource, _: client.batch_get_item(
        RequestItems={_table(resource)["TableName"]: {"Keys": [KEY]}}
    ),
    "PutItem": lambda client, resource, _: client.put_item(**_table(resource), Item=KEY),
    "UpdateItem": lambda client, resource, _: client.update_item(
        **_table(resource), Key=KEY, UpdateExpression="REMOVE nothing"
    ),
    "DeleteItem": lambda client, resource, _: client.delete_item(**_table(resource), Key=KEY),
    "Query": lambda client, resource, _: _query(client, resource),
    "SendMessage": lambda client, resource, deployed: client.send_message(
        QueueUrl=_queue(resource, deployed), MessageBody="{}", DelaySeconds=900
    ),
    "ReceiveMessage": lambda client, resource, deployed: client.receive_message(
        QueueUrl=_queue(resource, deployed)
    ),
    "DeleteMessage": lambda client, resource, deployed: client.delete_message(
        QueueUrl=_queue(resource, deployed), ReceiptHandle="x"
    ),
    "ChangeMessageVisibility": lambda client, resource, deployed: client.change_message_visibility(
        QueueUrl=_queue(resource, deployed), ReceiptHandle="x", VisibilityTimeout=0
    ),
    "GetQueueAttributes": lambda client, resource, deployed: client.get_queue_attributes(
        QueueUrl=_queue(resource, deployed)
    ),
    "GetSecretValue": lambda client, resource, _: client.get_secret_value(SecretId=resource),
    "PutEvents": lambda client, resource, _: _put_events(client, resource),
}


def as_list(value):
    return value if isinstance(value, list) else [value]


def without(document, sid, action, resource):
    """The policy without one action on one resource."""
    fewer = copy.deepcopy(document)
    (statement,) = [one for one in fewer["Statement"] if one["Sid"] == sid]
    others = [
        dict(statement, Sid=f"{sid}Others", Action=[one])
        for one in as_list(statement["Action"])
        if one != action
    ]
    statement["Action"] = action
    statement["Resource"] = [one for one in as_list(statement["Resource"]) if one != resource]
    fewer["Statement"] = [one for one in [*fewer["Statement"], *others] if one["Resource"]]
    return fewer


@pytest.fixture(scope="module")
def deployed():
    home = aws.Home(ROOT / ".local/permissions")
    with running_stack(home, ""):
        yield Deployed(json.loads(home.stack_file.read_text()))


@pytest.mark.parametrize("role", sorted(POLICIES))
def test_action_needs_its_grant(deployed, role):
    document = deployed.policy(role)
    wrong, seen = [], 0
    for statement in document["Statement"]:
        for action in as_list(statement["Action"]):
            for resource in as_list(statement["Resource"]):
                if action.startswith(NOT_JUDGED):
                    continue
                seen += 1
                less = without(document, statement["Sid"], action, resource)
                told = (
                    deployed.is_refused(document, action, resource),
                    deployed.is_refused(less, action, resource),
                )
                if told != (False, True):
                    wrong.append((statement["Sid"], action, resource, told))
    assert wrong == []
    assert seen > 20

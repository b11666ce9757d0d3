"""Calls that go straight to moto's objects are answered as over HTTP."""

import itertools
import json
import re
from datetime import UTC, datetime

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from tests.support.aws import quick_moto, quick_s3
from tests.support.aws.resources import BUCKET, REGION, make_resources

PUTS = (
    {"Key": "a", "Body": b"0123456789"},
    {"Key": "a", "Body": b"", "Metadata": {"Model": "@cf/m", "retry-of": "x y"}},
    {"Key": "é /+%", "Body": b"x" * 70_000, "ContentType": "application/json", "IfNoneMatch": "*"},
    {"Key": "e", "Body": b"secret", "ServerSideEncryption": "AES256"},
    {"Key": "a", "Body": b"again", "IfNoneMatch": "*"},
    {"Key": "b", "Body": b"b", "Metadata": {"model": " padded "}},
    {"Key": "c", "Body": "text"},
    {"Key": "d", "Body": b"d", "Tagging": "x=y"},
    {"Key": "e", "Body": b"e", "Tagging": "x=y"},
    {"Key": "e", "Body": b"without tags"},
)
READS = (
    {},
    {"IfMatch": '"781e5e245d69b566979b86e28d23f2c7"'},
    {"IfMatch": '"other"'},
    *(
        {"Range": f"bytes={section}"}
        for section in ("0-3", "2-", "9-99", "10-12", "70000-", "-3", "0-0")
    ),
)
LISTS = ({}, {"Prefix": "a"}, {"Prefix": "é /+"}, {"Prefix": "none"}, {"Prefix": "", "MaxKeys": 2})
VOLATILE = {
    "ResponseMetadata",
    "NextVersionIdMarker",
    "LastModified",
    "VersionId",
    "ChecksumCRC32",
    "ChecksumType",
}


@pytest.fixture(autouse=True)
def _quick_moto(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    quick_moto.install()


@pytest.fixture
def s3():
    """A client, and what it is answered over HTTP or directly."""
    with mock_aws():
        client = boto3.client("s3")
        for name, is_versioned in (("versions", True), ("plain-bucket", False)):
            client.create_bucket(
                Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION}
            )
            if is_versioned:
                client.put_bucket_versioning(
                    Bucket=name, VersioningConfiguration={"Status": "Enabled"}
                )
        yield client


def answered(call, **arguments):
    """What a caller sees of an answer; of an error, its code and status."""
    try:
        found = call(**arguments)
    except ClientError as error:
        return (
            type(error).__name__,
            str(error),
            error.response["ResponseMetadata"]["HTTPStatusCode"],
        )
    assert ("VersionId" in found) == (arguments["Bucket"] == "versions" and "Key" in arguments)
    for one in (*found.get("Versions", ()), *found.get("DeleteMarkers", ())):
        assert (one.pop("VersionId") == "null") == (arguments["Bucket"] == "plain-bucket")
    for one in (
        *found.get("Contents", ()),
        *found.get("Versions", ()),
        *found.get("DeleteMarkers", ()),
    ):
        assert not one.pop("LastModified").microsecond
        one.pop("ChecksumAlgorithm", None)
    body = {"Body": found["Body"].read()} if "Body" in found else {}
    status = {"status": found["ResponseMetadata"]["HTTPStatusCode"]}
    return {name: value for name, value in found.items() if name not in VOLATILE} | body | status


def every_answer(s3):
    found = []
    for bucket in ("versions", "plain-bucket", "missing"):
        found += [answered(s3.put_object, Bucket=bucket, **one) for one in PUTS]
        for key, asked in itertools.product(("a", "b", "é /+%", "none"), READS):
            found.append(answered(s3.get_object, Bucket=bucket, Key=key, **asked))
        found += [
            answered(s3.head_object, Bucket=bucket, Key=key)
            for key in ("a", "b", "d", "e", "é /+%", "none")
        ]
    s3.delete_object(Bucket="versions", Key="b")
    for bucket in ("versions", "plain-bucket", "missing"):
        found.append(answered(s3.get_bucket_versioning, Bucket=bucket))
        for listing in (s3.list_objects_v2, s3.list_object_versions):
            found += [answered(listing, Bucket=bucket, **asked) for asked in LISTS]
    listed = s3.list_object_versions(Bucket="versions")
    for one in sorted(listed["Versions"], key=lambda one: (one["Key"], one["ETag"])):
        place = {"Bucket": "versions", "Key": one["Key"], "VersionId": one["VersionId"]}
        found += [
            answered(s3.get_object, **place),
            answered(s3.get_object, **place, Range="bytes=0-0"),
        ]
        found.append(answered(s3.head_object, **place))
    for place in ({"Key": "b"}, {"Key": "a", "VersionId": "none"}):
        found += [
            answered(read, Bucket="versions", **place) for read in (s3.get_object, s3.head_object)
        ]
    return found


def test_s3_is_answered_as_over_http(s3, monkeypatch):
    quick, answers = quick_s3.answer, []
    monkeypatch.setitem(
        quick_moto.ANSWERS, "s3", lambda *given: answers.append(quick(*given)) or answers[-1]
    )
    direct = every_answer(s3)
    assert len([one for one in answers if one]) > 30
    monkeypatch.setattr(quick_moto, "DIRECT", {})
    for bucket in ("versions", "plain-bucket"):
        left = s3.list_object_versions(Bucket=bucket)
        for one in (*left["Versions"], *left.get("DeleteMarkers", ())):
            s3.delete_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])

    assert every_answer(s3) == direct


def sqs_answers(sqs, name):
    """What a caller sees of calls on a new queue, without what is random, and when."""
    hidden = re.compile(
        r"'(?:ResponseMetadata|\w+Timestamp)': "
        r"(?:\{.*\}|'[\d.]+')|[0-9a-f-]{36}|\b[a-z]{180,}\b"
    )
    queue = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "9"})
    place, told = {"QueueUrl": queue["QueueUrl"]}, [queue]
    entries = [
        {"Id": str(n), "MessageBody": f"é{n}", "DelaySeconds": n // 2 * 60} for n in range(4)
    ]
    asked = [
        (sqs.send_message, {"MessageBody": "one"}),
        (sqs.send_message, {"MessageBody": "later", "DelaySeconds": 60}),
        (sqs.send_message_batch, {"Entries": entries}),
        (sqs.send_message_batch, {"Entries": [*entries, entries[0]]}),
        (sqs.send_message_batch, {"Entries": [{"Id": "long", "MessageBody": "x" * 2**20}]}),
        (sqs.send_message, {"MessageBody": "x" * (2**20 + 1)}),
        (sqs.get_queue_attributes, {"AttributeNames": ["All"]}),
        (sqs.get_queue_attributes, {"AttributeNames": ["VisibilityTimeout", "QueueArn"]}),
        (sqs.get_queue_attributes, {}),
        (sqs.get_queue_attributes, {"AttributeNames": ["Other"]}),
        (sqs.receive_message, {"AttributeNames": ["All"]}),
        (sqs.receive_message, {"MaxNumberOfMessages": 10, "VisibilityTimeout": 0}),
        (sqs.receive_message, {"MaxNumberOfMessages": 11}),
        (
            sqs.receive_message,
            {"MaxNumberOfMessages": 10, "WaitTimeSeconds": 0, "AttributeNames": ["SentTimestamp"]},
        ),
        (sqs.receive_message, {"WaitTimeSeconds": 0}),
        (sqs.delete_message, {"ReceiptHandle": "none"}),
        (sqs.change_message_visibility, {"ReceiptHandle": "none", "VisibilityTimeout": 1}),
    ]
    for call, arguments in asked:
        try:
            told.append(call(**place, **arguments))
        except ClientError as error:
            told.append(
                (
                    type(error).__name__,
                    str(error),
                    error.response["ResponseMetadata"]["HTTPStatusCode"],
                )
            )
            continue
        for one in told[-1].get("Messages", ())[:2]:
            handle = {"ReceiptHandle": one["ReceiptHandle"]}
            told.append(sqs.change_message_visibility(**place, **handle, VisibilityTimeout=5))
            told += [sqs.delete_message(**place, **handle)]
    for operation in (sqs.receive_message, sqs.get_queue_attributes):
        with pytest.raises(ClientError) as refused:
            operation(QueueUrl=f"{queue['QueueUrl']}-none")
        told.append((type(refused.value).__name__, str(refused.value)))
    return [hidden.sub("", str(one)).replace(name, "queue") for one in told]


def test_sqs_is_answered_as_over_http(s3, monkeypatch):
    sqs = boto3.client("sqs")
    direct = sqs_answers(sqs, "direct")
    monkeypatch.setattr(quick_moto, "DIRECT", {})

    assert sqs_answers(sqs, "over-http") == direct
    assert len(direct) > 20
    assert "é1" in str(direct)


def stored(call, **arguments):
    """What a service answers, without what is random, and when."""
    answer = call(**arguments)
    told = {**answer, "ResponseMetadata": answer["ResponseMetadata"]["HTTPStatusCode"]}
    hidden = r'[\w-]{32,}|\d{4}-\d\d-\d\d[T ][\d:.+]+|-\w{6}(?=")|"Id": "\S+"'
    return re.sub(hidden, "", json.dumps(told, default=str, sort_keys=True))


def made_resources():
    """What services store of a world's resources, a notice and a secret."""
    s3, events, secrets, sqs = (
        boto3.client(name) for name in ("s3", "events", "secretsmanager", "sqs")
    )
    with mock_aws():
        urls = make_resources()
        notice = {
            "Source": "dropbatch",
            "DetailType": "é",
            "Detail": "{}",
            "Time": datetime.now(UTC),
        }
        return [
            stored(s3.get_bucket_versioning, Bucket=BUCKET),
            stored(s3.get_bucket_notification_configuration, Bucket=BUCKET),
            stored(
                s3.create_bucket,
                Bucket="one",
                CreateBucketConfiguration={"LocationConstraint": REGION},
            ),
            stored(events.list_rules),
            stored(events.list_targets_by_rule, Rule="dropbatch"),
            stored(events.put_events, Entries=[notice, {"Source": "dropbatch"}]),
            *(
                stored(sqs.receive_message, QueueUrl=urls[name])
                for name in ("events", "UploadQueue")
            ),
            stored(secrets.create_secret, Name="token", SecretString="é"),
            stored(secrets.describe_secret, SecretId="token"),
        ]


def test_resources_are_made_as_over_http(monkeypatch):
    direct = made_resources()
    monkeypatch.setattr(quick_moto, "DIRECT", {"dynamodb": quick_moto.DIRECT["dynamodb"]})

    assert made_resources() == direct

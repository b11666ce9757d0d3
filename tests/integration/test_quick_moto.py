"""Calls that go straight to moto's objects are answered as over HTTP."""

import itertools

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from tests.support.aws import quick_moto, quick_s3
from tests.support.aws.resources import REGION

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
LISTS = (
    *({"Prefix": prefix} for prefix in ("", "a", "é /", "none")),
    *({"Prefix": prefix, "Delimiter": "/"} for prefix in ("", "é", "é /")),
    {"Prefix": "", "MaxKeys": 2},
)
AFTER = ({"StartAfter": "b"}, {"StartAfter": "e", "Delimiter": "/"})
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
        one.pop("Owner", None)
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
        found += [answered(s3.list_objects_v2, Bucket=bucket, **asked) for asked in AFTER]
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

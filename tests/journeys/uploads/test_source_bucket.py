"""Uploads from a bucket that the stack does not own."""

import json

import boto3
import pytest

import dropbatch
import functions.submit.handler
from functions.submit.upload import create_job
from local.template import properties
from local.workers_ai import expected_result
from shared.aws.object_events import ObjectCreated
from tests.support.aws.iam import resolve
from tests.support.aws.resources import AWS_ACCOUNT, BUCKET, REGION
from tests.support.journeys.command_line import CommandLine
from tests.support.translations import M2M

SOURCE = "team-exports"
PREFIX = "exports/ai/"


def upload(world, key, count=2, **metadata):
    records = [{"text": f"hello {number}", "target_lang": "es"} for number in range(count)]
    body = "".join(json.dumps(record) + "\n" for record in records).encode()
    world.s3.put_object(Bucket=SOURCE, Key=key, Body=body, Metadata=metadata or {"model": M2M})
    return [expected_result(M2M, record) for record in records]


@pytest.fixture
def sourced(start):
    """Starts a Dropbatch with a source bucket whose events EventBridge brings."""

    def begin(*, versions=True, prefix=PREFIX):
        world = start(SOURCE_BUCKET_NAME=SOURCE, SOURCE_PREFIX=prefix)
        world.s3.create_bucket(
            Bucket=SOURCE, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        if versions:
            world.s3.put_bucket_versioning(
                Bucket=SOURCE, VersioningConfiguration={"Status": "Enabled"}
            )
        configuration = {"EventBridgeConfiguration": {}}
        world.s3.put_bucket_notification_configuration(
            Bucket=SOURCE, NotificationConfiguration=configuration
        )
        names = {"SourceBucketName": SOURCE, "SourcePrefix": prefix}
        pattern = resolve(
            properties("SourceRule")["EventPattern"], names, {"HasSourcePrefix": bool(prefix)}
        )
        events = boto3.client("events")
        events.put_rule(Name="source", EventPattern=json.dumps(pattern))
        arn = f"arn:aws:sqs:{REGION}:{AWS_ACCOUNT}:UploadQueue"
        events.put_targets(Rule="source", Targets=[{"Id": "uploads", "Arn": arn}])
        return world

    return begin


@pytest.mark.parametrize("versions", [True, False])
def test_source_object_is_answered_under_its_key(sourced, versions):
    world = sourced(versions=versions)
    wanted = upload(world, f"{PREFIX}2026/Résumés 100%+.jsonl")

    world.settle()

    folder = world.only_folder()
    assert folder.rpartition("/")[0] == "results/2026/Résumés 100%+.jsonl"
    assert [line["result"] for line in world.lines()] == wanted
    source = world.manifest()["source"]
    assert (source["bucket"], source["key"]) == (SOURCE, f"{PREFIX}2026/Résumés 100%+.jsonl")
    assert (source["version"] == "null") is not versions
    (notice,) = world.notices()
    assert notice["detail"]["results"]["bucket"] == BUCKET
    assert notice["detail"]["results"]["manifest"] == f"{folder}/manifest.json"
    used = {(grant.sid, grant.action) for grant in world.permissions.used["SubmitRole"]}
    assert "ReadSource" in {sid for sid, _ in used}
    assert ("ReadUploads", "s3:GetObjectVersion") not in used


@pytest.mark.parametrize(
    ("bucket", "key"), [(SOURCE, "exports/else.jsonl"), ("other-exports", f"{PREFIX}a.jsonl")]
)
def test_event_of_other_object_makes_no_job(sourced, bucket, key):
    """Whatever brings the event: a rule of the user's own may be wider."""
    world = sourced()
    if bucket != SOURCE:
        world.s3.create_bucket(
            Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
    world.s3.put_object(Bucket=bucket, Key=key, Body=b"{}\n", Metadata={"model": M2M})

    assert (
        create_job(functions.submit.handler.services(), ObjectCreated(bucket, key, "", None))
        is None
    )
    assert world.items() == []


def test_object_replaced_while_read_fails_job(sourced, monkeypatch):
    world = sourced(versions=False)
    upload(world, f"{PREFIX}a.jsonl")

    def replace(operation, arguments):
        if operation == "GetObject" and arguments["Bucket"] == SOURCE:
            world.permissions.before = None
            upload(world, f"{PREFIX}a.jsonl", count=3)

    world.permissions.before = replace
    world.settle()

    errors = [one["error"] and one["error"]["code"] for one in world.manifests().values()]
    assert sorted(map(str, errors)) == ["None", "source_gone"]


@pytest.mark.parametrize("prefix", [PREFIX, "_exports/"])
def test_retry_of_source_job_is_upload_below_inbox(sourced, monkeypatch, capsys, prefix):
    """Its path is the job's, not the object's key, which may not even be allowed below inbox/."""
    world = sourced(prefix=prefix)
    world.s3.put_object(
        Bucket=SOURCE,
        Key=f"{prefix}a/b.jsonl",
        Body=b'{"text":"(refused)","target_lang":"es"}\n',
        Metadata={"model": M2M},
    )
    world.settle()
    CommandLine(world, monkeypatch, capsys)

    dropbatch.Client("dropbatch").job("a/b.jsonl").retry(tags={"of": "retry"})
    world.settle()

    manifests = {one["source"]["key"]: one for one in world.manifests().values()}
    assert set(manifests) == {f"{prefix}a/b.jsonl", "inbox/a/b.retry.jsonl"}
    again = manifests["inbox/a/b.retry.jsonl"]
    assert (again["format"], again["model"], again["tags"]) == ("native", M2M, {"of": "retry"})
    assert again["counts"]["total"] == 1
    assert [key for key in world.objects() if "/a/b.jsonl/" in key and "/retries/" in key]

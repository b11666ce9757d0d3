"""Uploads from a bucket that the stack does not own, on the local AWS.

Rule, queue policy and role are sufficient.
"""

import json

import pytest

import dropbatch
from local import aws
from local.processes import ROOT
from tests.support.aws.stack import (
    MODEL,
    as_lines,
    assert_every_line_answers_its_request,
    requests,
    running_stack,
)

pytestmark = [pytest.mark.stack, pytest.mark.slow]
SOURCE = "team-exports"
HOME = aws.Home(ROOT / ".local/test-source")


def test_source_object_is_answered_in_stacks_bucket(monkeypatch):
    parameters = f"SourceBucketName={SOURCE} SourcePrefix=exports/ MaxRequestsPerBatch=20"
    with running_stack(HOME, parameters) as stack:
        stack.s3.create_bucket(Bucket=SOURCE)
        older = requests(10, "older")
        stack.s3.put_object(
            Bucket=SOURCE,
            Key="exports/older.jsonl",
            Body=as_lines(older),
            Metadata={"model": MODEL},
        )
        stack.s3.put_bucket_notification_configuration(
            Bucket=SOURCE, NotificationConfiguration={"EventBridgeConfiguration": {}}
        )
        records = requests(30, "source")
        key = "exports/reviews/50% off + café.jsonl"
        stack.s3.put_object(
            Bucket=SOURCE, Key=key, Body=as_lines(records), Metadata={"model": MODEL}
        )
        stack.s3.put_object(
            Bucket=SOURCE, Key="else.jsonl", Body=as_lines(records), Metadata={"model": MODEL}
        )

        folder, manifest = stack.wait("reviews/50% off + café.jsonl")

        assert manifest["counts"] == {"total": 30, "succeeded": 30, "failed": 0}, json.dumps(
            manifest
        )
        assert (manifest["source"]["bucket"], manifest["source"]["key"]) == (SOURCE, key)
        assert_every_line_answers_its_request(stack.lines(folder), records)
        assert not stack.folders("else.jsonl")

        # What caused no event is started where it lies.
        monkeypatch.setenv("DROPBATCH_LOCAL", str(HOME.stack_file))
        client = dropbatch.Client(local=True)
        jobs = [client.submit(f"s3://{SOURCE}/exports/older.jsonl") for _ in range(2)]
        assert jobs[0].wait(check=True, timeout=240) == "completed"
        assert jobs[0] == jobs[1]
        assert jobs[0].manifest()["source"]["bucket"] == SOURCE
        assert "Contents" not in stack.s3.list_objects_v2(Bucket=stack.bucket, Prefix="inbox/")

"""The template, the main job and a redrive on LocalStack."""

import json
import time

import pytest

from dropbatch.cli.operate import redrive
from local.template import properties
from local.workers_ai import expected_result
from tests.support.aws.resources import QUEUES, client
from tests.support.translations import M2M, greetings

pytestmark = [pytest.mark.second, pytest.mark.timeout(600)]


def put(stack, path, records):
    body = "".join(json.dumps(record) + "\n" for record in records)
    client("s3").put_object(
        Bucket=stack.bucket, Key=f"inbox/{path}", Body=body.encode(), Metadata={"model": M2M}
    )


def lines(stack, manifest):
    key = manifest.replace("manifest.json", "output.jsonl")
    body = client("s3").get_object(Bucket=stack.bucket, Key=key)["Body"].read()
    return [json.loads(line).get("result") for line in body.splitlines()]


def test_template_makes_what_it_says(stack):
    bucket, s3, sqs = stack.bucket, client("s3"), client("sqs")
    assert s3.get_bucket_versioning(Bucket=bucket)["Status"] == "Enabled"
    told = s3.get_bucket_notification_configuration(Bucket=bucket)["QueueConfigurations"]
    assert len(told) == len(
        properties("Bucket")["NotificationConfiguration"]["QueueConfigurations"]
    )
    for queue in QUEUES:
        attributes = sqs.get_queue_attributes(QueueUrl=stack.url(queue), AttributeNames=["All"])[
            "Attributes"
        ]
        assert attributes["VisibilityTimeout"] == str(properties(queue)["VisibilityTimeout"])
        if "RedrivePolicy" in properties(queue):
            redriven = json.loads(attributes["RedrivePolicy"])
            assert (
                int(redriven["maxReceiveCount"])
                == properties(queue)["RedrivePolicy"]["maxReceiveCount"]
            )
    table = client("dynamodb").describe_table(TableName=stack.resources["Table"])["Table"]
    assert [index["IndexName"] for index in table["GlobalSecondaryIndexes"]] == ["due"]


def test_job_is_answered_line_by_line(stack):
    put(stack, "main.jsonl", greetings(7))
    manifest = stack.settle("results/main.jsonl/")
    assert lines(stack, manifest) == [expected_result(M2M, one) for one in greetings(7)]


def test_message_that_failed_too_often_is_redriven(stack):
    sqs, queue = client("sqs"), stack.url("UploadQueue")
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": "0"})
    put(stack, "again.jsonl", greetings(2))
    stack.failing = True
    until = time.monotonic() + 120
    dead = stack.url("UploadDeadLetterQueue")
    while time.monotonic() < until:
        stack.deliver("UploadQueue")
        waiting = sqs.get_queue_attributes(
            QueueUrl=dead, AttributeNames=["ApproximateNumberOfMessages"]
        )
        if waiting["Attributes"]["ApproximateNumberOfMessages"] != "0":
            break
    stack.failing = False
    timeout = str(properties("UploadQueue")["VisibilityTimeout"])
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"VisibilityTimeout": timeout})

    assert redrive(stack)["Upload"] == 1

    manifest = stack.settle("results/again.jsonl/")
    assert lines(stack, manifest) == [expected_result(M2M, one) for one in greetings(2)]

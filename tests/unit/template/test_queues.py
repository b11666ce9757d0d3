"""The queues: who sends to them, how long they keep messages."""

from tests.support.aws.translated_template import NOT_TLS, as_list, resolved, target


def test_queues_outlast_function_and_keep_failures(of_type):
    queues, functions = of_type("AWS::SQS::Queue"), of_type("AWS::Lambda::Function")
    for mapping in of_type("AWS::Lambda::EventSourceMapping").values():
        queue = queues[target(mapping["EventSourceArn"])]
        dead_letters = queues[target(queue["RedrivePolicy"]["deadLetterTargetArn"])]

        assert (
            queue["VisibilityTimeout"] >= 6 * functions[target(mapping["FunctionName"])]["Timeout"]
        )
        # Nothing but a notification starts a job, so that no throttle may use up its tries; other
        # work is due again.
        is_notification = target(mapping["EventSourceArn"]) == "UploadQueue"
        assert queue["RedrivePolicy"]["maxReceiveCount"] == (100 if is_notification else 5)
        assert 100 * queue["VisibilityTimeout"] < queue["MessageRetentionPeriod"]
        assert dead_letters["MessageRetentionPeriod"] == 14 * 86400
        assert queue["MessageRetentionPeriod"] < dead_letters["MessageRetentionPeriod"]


def test_queues_are_encrypted_and_reachable_by_s3(of_type):
    for queue in of_type("AWS::SQS::Queue").values():
        assert resolved(queue["SqsManagedSseEnabled"]) is True
        assert resolved({"key": queue["KmsMasterKeyId"]}) == {}
        assert resolved({"managed": queue["SqsManagedSseEnabled"]}, UsesOwnKey=True) == {}


def test_commands_reach_poll_function(of_type):
    (bucket,) = of_type("AWS::S3::Bucket").values()
    notified = {
        one["Filter"]["S3Key"]["Rules"][0]["Value"]: target(one["Queue"])
        for one in bucket["NotificationConfiguration"]["QueueConfigurations"]
    }

    assert notified == {
        "inbox/": "UploadQueue",
        "control/": "VisitQueue",
    }


def test_queues_require_tls(of_type):
    covered = []
    for policy in of_type("AWS::SQS::QueuePolicy").values():
        covered += [target(queue) for queue in policy["Queues"]]
        (denied,) = [
            one
            for one in resolved(policy["PolicyDocument"]["Statement"], NamesBucket=True)
            if one["Effect"] == "Deny"
        ]
        assert (denied["Principal"], denied["Action"], denied["Condition"]) == (
            "*",
            "sqs:*",
            NOT_TLS,
        )

    # Of two policies of one queue the last would count.
    assert sorted(covered) == sorted(of_type("AWS::SQS::Queue"))


def test_only_our_bucket_announces_uploads(template, of_type):
    (bucket,) = of_type("AWS::S3::Bucket").values()
    uploads = [
        one
        for one in bucket["NotificationConfiguration"]["QueueConfigurations"]
        if target(one["Queue"]) == "UploadQueue"
    ]
    policy = of_type("AWS::SQS::QueuePolicy")["NotifiedQueuesPolicy"]
    notified = ["UploadQueue", "UploadDeadLetterQueue", "VisitQueue"]
    assert [target(queue) for queue in policy["Queues"]] == notified
    (statement,) = [
        one
        for one in policy["PolicyDocument"]["Statement"]
        if one.get("Sid") == "OurBucketNotifies"
    ]
    assert statement["Principal"] == {"Service": "s3.amazonaws.com"}
    assert {one["Event"] for one in uploads} == {"s3:ObjectCreated:*"}
    assert [one["Filter"]["S3Key"]["Rules"] for one in uploads] == [
        [{"Name": "prefix", "Value": prefix}] for prefix in ("inbox/",)
    ]
    assert "EventBridgeConfiguration" not in resolved(bucket["NotificationConfiguration"])
    assert statement["Condition"]["StringEquals"] == {
        "aws:SourceAccount": {"Ref": "AWS::AccountId"}
    }
    assert (
        statement["Condition"]["ArnEquals"]["aws:SourceArn"]["Fn::Sub"][1]["Name"]
        == bucket["BucketName"]
    )
    assert "NotifiedQueuesPolicy" in as_list(template["Resources"]["Bucket"]["DependsOn"])


def test_only_source_rule_sends_to_upload_queue(of_type):
    (rule,) = [
        one
        for one in of_type("AWS::Events::Rule").values()
        if "aws.s3" in one["EventPattern"]["source"]
    ]
    pattern = resolved(rule["EventPattern"], HasSourcePrefix=True)
    assert pattern == {
        "source": ["aws.s3"],
        "detail-type": ["Object Created"],
        "detail": {
            "bucket": {"name": ["<SourceBucketName>"]},
            "object": {"key": [{"prefix": "<SourcePrefix>"}]},
        },
    }
    assert "object" not in resolved(rule["EventPattern"], HasSourcePrefix=False)["detail"]
    (target,) = resolved(rule["Targets"])
    assert target["Arn"] == "<UploadQueue.Arn>"
    assert target["DeadLetterConfig"] == {"Arn": "<UploadDeadLetterQueue.Arn>"}

    policy = of_type("AWS::SQS::QueuePolicy")["NotifiedQueuesPolicy"]
    statements = policy["PolicyDocument"]["Statement"]
    given = resolved(statements, UsesSource=True, NamesBucket=True)
    (sends,) = [one for one in given if one["Sid"] == "SourceRuleSends"]
    assert sends["Condition"] == {"ArnEquals": {"aws:SourceArn": "<SourceRule.Arn>"}}
    without = resolved(statements, NamesBucket=True)
    assert "SourceRuleSends" not in [one["Sid"] for one in without]

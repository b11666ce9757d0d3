"""The bucket, the table, the secrets and the queues."""

from tests.support.aws.translated_template import NOT_TLS, as_list, resolved, target


def test_data_can_be_encrypted_with_own_key(of_type):
    (bucket,), (table,) = (
        of_type("AWS::S3::Bucket").values(),
        of_type("AWS::DynamoDB::Table").values(),
    )
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    keys = {
        "bucket": rule["ServerSideEncryptionByDefault"],
        "table": table["SSESpecification"],
        **{name: queue["KmsMasterKeyId"] for name, queue in of_type("AWS::SQS::Queue").items()},
        **{name: topic["KmsMasterKeyId"] for name, topic in of_type("AWS::SNS::Topic").items()},
        **{name: logs["KmsKeyId"] for name, logs in of_type("AWS::Logs::LogGroup").items()},
        **{
            name: secret["KmsKeyId"]
            for name, secret in of_type("AWS::SecretsManager::Secret").items()
        },
    }

    for name, key in keys.items():
        assert "<KmsKeyArn>" in str(resolved({"key": key}, UsesOwnKey=True)), name
        assert "<KmsKeyArn>" not in str(resolved({"key": key})), name
    assert len(keys) == 15


def test_secret_exists_only_for_its_transport(template):
    """Each costs $0.40 a month."""
    asked = {
        name: one["Condition"]
        for name, one in template["Resources"].items()
        if "::Secret" in one["Type"]
    }
    assert asked == {"ApiToken": "MakesSecret", "SharedSecret": "MakesWorkerSecret"}
    for transport, named, made in (
        ("rest", "", {"MakesSecret"}),
        ("worker", "", {"MakesWorkerSecret"}),
        *((transport, "arn", set()) for transport in ("rest", "worker")),
    ):
        given = {
            "Transport": transport,
            "CloudflareApiTokenSecretArn": named,
            "WorkerSecretArn": named,
        }
        assert {name for name in asked.values() if decided(template, name, given)} == made, (
            transport,
            named,
        )


def decided(template, name, parameters):
    """What a condition comes to with these parameters."""

    def value(one):
        ((function, operands),) = one.items()
        match function:
            case "Condition":
                return decided(template, operands, parameters)
            case "Fn::Not":
                return not value(operands[0])
            case "Fn::And":
                return all(map(value, operands))
            case "Fn::Equals":
                return parameters[operands[0]["Ref"]] == operands[1]
        raise AssertionError(function)

    return value(template["Conditions"][name])


def test_bucket_is_private_versioned_and_retained(template):
    bucket = template["Resources"]["Bucket"]
    properties = bucket["Properties"]

    # A failed first deployment must not keep the name of a bucket that nothing was ever dropped in.
    assert bucket["DeletionPolicy"] == "RetainExceptOnCreate"
    assert bucket["UpdateReplacePolicy"] == "Retain"
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(properties["PublicAccessBlockConfiguration"]) == 4
    assert properties["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    assert properties["BucketEncryption"]


def test_bucket_requires_tls(of_type):
    (policy,) = of_type("AWS::S3::BucketPolicy").values()
    (statement,) = resolved(policy["PolicyDocument"]["Statement"], ProtectsData=False)

    assert (statement["Effect"], statement["Principal"], statement["Action"]) == (
        "Deny",
        "*",
        "s3:*",
    )
    assert statement["Resource"] == ["<Bucket.Arn>", "<Bucket.Arn>/*"]
    assert statement["Condition"] == NOT_TLS


def test_data_is_protected_unless_owner_declines(of_type, source):
    (policy,), (table,) = (
        of_type("AWS::S3::BucketPolicy").values(),
        of_type("AWS::DynamoDB::Table").values(),
    )
    kept = [
        one for one in resolved(policy["PolicyDocument"]["Statement"]) if one["Sid"] == "KeepBucket"
    ]

    assert source["Parameters"]["DeletionProtection"]["Default"] == "yes"
    assert [(one["Effect"], one["Principal"], one["Action"]) for one in kept] == [
        ("Deny", "*", "s3:DeleteBucket")
    ]
    assert resolved(table["DeletionProtectionEnabled"]) is True
    assert resolved(table["DeletionProtectionEnabled"], ProtectsData=False) is False


def test_lifecycle_expires_staging(of_type):
    (bucket,) = of_type("AWS::S3::Bucket").values()
    rules = bucket["LifecycleConfiguration"]["Rules"]
    plain = {rule["Id"]: rule for rule in rules if "Id" in rule}

    assert plain["remains-of-uploads"]["AbortIncompleteMultipartUpload"] == {
        "DaysAfterInitiation": 7
    }
    assert "Prefix" not in plain["remains-of-uploads"]
    assert (plain["staging"]["Prefix"], plain["staging"]["ExpirationInDays"]) == ("staging/", 60)
    assert plain["staging"]["NoncurrentVersionExpiration"]
    assert plain["results"]["ExpirationInDays"]["Fn::If"][2] == {"Ref": "ResultRetentionDays"}
    chosen = [rule["Fn::If"] for rule in rules if "Fn::If" in rule]
    assert {condition for condition, _, _ in chosen} == {"ExpiresInbox"}
    assert {rule["Prefix"]: rule["ExpirationInDays"] for _, rule, _ in chosen} == {
        "inbox/": {"Ref": "InboxRetentionDays"},
    }


def test_table_is_retained_with_pitr(template):
    table = template["Resources"]["Table"]
    properties = table["Properties"]

    assert table["DeletionPolicy"] == table["UpdateReplacePolicy"] == "Retain"
    assert properties["BillingMode"] == "PAY_PER_REQUEST"
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert resolved(properties["SSESpecification"]) == {"SSEEnabled": True, "SSEType": "KMS"}
    assert properties["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}


def test_table_has_one_sparse_index_of_what_is_due(of_type):
    (table,) = of_type("AWS::DynamoDB::Table").values()
    types = {
        attribute["AttributeName"]: attribute["AttributeType"]
        for attribute in table["AttributeDefinitions"]
    }
    (index,) = table["GlobalSecondaryIndexes"]

    assert types == {"pk": "S", "sk": "S", "work": "S", "due_at": "N"}
    assert [(key["AttributeName"], key["KeyType"]) for key in table["KeySchema"]] == [
        ("pk", "HASH"),
        ("sk", "RANGE"),
    ]
    assert index["IndexName"] == "due"
    assert [(key["AttributeName"], key["KeyType"]) for key in index["KeySchema"]] == [
        ("work", "HASH"),
        ("due_at", "RANGE"),
    ]
    assert index["Projection"] == {"ProjectionType": "KEYS_ONLY"}


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

"""The bucket and the table: encrypted, private, kept, and cleaned up."""

from tests.support.aws.translated_template import NOT_TLS, resolved


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

"""What roles, users and operators may do, and that they may do nothing else."""

import pytest

from dropbatch.core.names import CONTROL_PK
from shared.aws.event_bus import DETAIL_TYPE, SOURCE
from tests.support.aws import iam
from tests.support.aws.translated_template import (
    JOB,
    ROLES,
    WORKER,
    allows,
    as_list,
    granted_on,
    grants,
    statements,
)


def test_owners_key_is_used_through_services_alone(of_type):
    for role in ROLES:
        assert granted_on(role, "kms:Decrypt") == set()
        assert granted_on(role, "kms:Decrypt", UsesOwnKey=True) == granted_on(
            role, "kms:GenerateDataKey", UsesOwnKey=True
        )
        assert granted_on(role, "kms:Decrypt", UsesOwnKey=True) == {"<KmsKeyArn>"}
        (condition,) = {
            grant.condition
            for grant in grants(role, UsesOwnKey=True)
            if grant.action.startswith("kms:")
        }
        ((operator, key, services),) = condition
        assert (operator, key) == ("StringLike", "kms:ViaService")
        assert [service.partition(".")[0] for service in services] == [
            "s3",
            "sqs",
            "dynamodb",
            "secretsmanager",
        ]
        assert {service.partition(".")[2] for service in services} == {
            "<AWS::Region>.amazonaws.*"
        }, "China has two"
    (use,) = [
        one for one in statements(of_type, "UserPolicy", UsesOwnKey=True) if one["Sid"] == "UseKey"
    ]
    assert use["Condition"]["StringLike"]["kms:ViaService"] == ["s3.<AWS::Region>.amazonaws.*"]
    (use,) = [
        s
        for s in statements(of_type, "UserPolicy", UsesOwnKey=True, UsesSource=True)
        if s["Sid"] == "UseKey"
    ]
    assert use["Condition"]["StringLike"]["kms:ViaService"][1:] == ["sqs.<AWS::Region>.amazonaws.*"]


@pytest.mark.parametrize("own_key", [False, True])
def test_roles_name_single_actions_and_resources(of_type, own_key):
    for role in ROLES:
        for grant in grants(role, UsesOwnKey=own_key):
            assert "*" not in grant.action, f"{role}: {grant}"
            # X-Ray has no resources: AWS accepts only the star for these two actions.
            if grant.action not in {"xray:PutTraceSegments", "xray:PutTelemetryRecords"}:
                assert grant.resource.startswith(("<", "arn:<AWS::Partition>:")), f"{role}: {grant}"
                assert not grant.resource.endswith((":*", "<Bucket.Arn>/*")), f"{role}: {grant}"
    for policy in of_type("AWS::IAM::ManagedPolicy"):
        for statement in statements(of_type, policy, UsesOwnKey=own_key):
            assert not any("*" in action for action in as_list(statement["Action"]))
            # CloudWatch has no resources for what an operator may see.
            if statement["Sid"] == "SeeMetricsAndAlarms":
                continue
            if statement["Sid"] == "FindTheStack":
                # DescribeStacks with a stack's name is judged by this resource, not by the stack's
                # id.
                assert statement["Resource"].endswith(":stack/<AWS::StackName>/*")
            else:
                assert all(resource.startswith("<") for resource in as_list(statement["Resource"]))


@pytest.mark.parametrize(
    ("policy", "action", "key", "may"),
    [
        ("UserPolicy", "s3:PutObject", "inbox/a.jsonl", True),
        ("UserPolicy", "s3:PutObject", f"control/jobs/{JOB}", True),
        ("UserPolicy", "s3:PutObject", "control/stack", False),
        ("UserPolicy", "s3:PutObject", f"results/a.jsonl/{JOB}/manifest.json", False),
        ("UserPolicy", "s3:GetObject", f"results/a.jsonl/{JOB}/manifest.json", True),
        ("UserPolicy", "s3:GetObject", f"staging/{JOB}/00000000/request", False),
        ("UserPolicy", "s3:GetObject", f"staging/{JOB}/00000000/raw-1-0", False),
        ("UserPolicy", "s3:GetObject", f"staging/{JOB}/00000000/said-1", False),
        ("UserPolicy", "s3:GetObject", f"staging/{JOB}/00000003.f/part-2", False),
        ("UserPolicy", "dynamodb:Query", "", False),
        ("UserPolicy", "dynamodb:GetItem", "", False),
        ("UserPolicy", "dynamodb:UpdateItem", "", False),
        ("UserPolicy", "s3:PutObject", "files/file-0", True),
        ("UserPolicy", "s3:PutObject", "files/batches/batch_0.json", True),
        ("UserPolicy", "s3:DeleteObject", "files/file-0", True),
        ("UserPolicy", "s3:DeleteObject", "files/batches/batch_0.json", False),
        ("UserPolicy", "s3:DeleteObject", "inbox/a.jsonl", False),
        ("UserPolicy", "s3:DeleteObject", f"control/jobs/{JOB}", False),
        ("UserPolicy", "sqs:ReceiveMessage", "", False),
        ("UserPolicy", "cloudformation:DescribeStacks", "", True),
        ("OperatorPolicy", "s3:PutObject", "control/stack", True),
        ("OperatorPolicy", "s3:PutObject", "inbox/a.jsonl", False),
        ("OperatorPolicy", "s3:GetObject", "control/stack", True),
        ("OperatorPolicy", "s3:GetObject", f"staging/{JOB}/00000000/request", False),
        ("OperatorPolicy", "sqs:StartMessageMoveTask", "", True),
        ("OperatorPolicy", "cloudwatch:DescribeAlarms", "", True),
        ("OperatorPolicy", "logs:FilterLogEvents", "", True),
        ("OperatorPolicy", "dynamodb:Query", "", False),
        ("OperatorPolicy", "secretsmanager:GetSecretValue", "", False),
        ("OperatorPolicy", "lambda:InvokeFunction", "", False),
        ("OperatorPolicy", "sqs:PurgeQueue", "", False),
    ],
)
def test_people_may_do_what_their_policy_is_for(of_type, policy, action, key, may):
    assert allows(of_type, policy, action, key) is may


def _operators(of_type):
    return statements(of_type, "OperatorPolicy", UsesSource=True, Notifies=True)


def test_operators_read_no_jobs_in_the_table(of_type):
    (see,) = [one for one in _operators(of_type) if one["Sid"] == "SeeEvents"]

    assert see["Condition"] == {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [CONTROL_PK]}}


def test_operators_can_redrive_to_every_queue(of_type):
    (take,) = [one for one in _operators(of_type) if one["Sid"] == "TakeDeadLetters"]
    (send,) = [one for one in _operators(of_type) if one["Sid"] == "SendThemAgain"]
    queues = {f"<{name}.Arn>" for name in of_type("AWS::SQS::Queue")}

    assert set(take["Resource"]) == {name for name in queues if "DeadLetter" in name}
    assert set(send["Resource"]) == {name for name in queues if "DeadLetter" not in name}


def test_bucket_of_another_account_is_never_spoken_to():
    for role in ("SubmitRole", "PollRole"):
        for grant in grants(role):
            if grant.action.startswith("s3:"):
                assert (
                    "StringEquals",
                    "aws:ResourceAccount",
                    ("<AWS::AccountId>",),
                ) in grant.condition, str(grant)


def test_nobody_may_delete_or_read_whole_table():
    forbidden = ("dynamodb:Scan", "sqs:PurgeQueue")
    for role in ROLES:
        assert [action for action in forbidden if granted_on(role, action)] == []
        for action in ("s3:DeleteObject", "s3:DeleteObjectVersion"):
            assert granted_on(role, action) == (
                {"<Bucket.Arn>/staging/*"} if role == "PollRole" else set()
            )
        for grant in grants(role):
            if grant.action == "dynamodb:DeleteItem":
                assert grant.condition == (
                    ("ForAllValues:StringEquals", "dynamodb:LeadingKeys", (CONTROL_PK,)),
                )


def _matches(patterns, *, key):
    return any(iam.like(f"<Bucket.Arn>/{key}", pattern) for pattern in patterns)


@pytest.mark.parametrize(
    ("role", "action", "key", "may"),
    [
        ("SubmitRole", "s3:GetObjectVersion", "inbox/a.jsonl", True),
        ("SubmitRole", "s3:GetObject", "inbox/a.jsonl", True),
        ("SubmitRole", "s3:GetObject", "inbox/a/_options.json", True),
        ("SubmitRole", "s3:GetObject", f"results/a.jsonl/{JOB}/options.json", True),
        ("SubmitRole", "s3:PutObject", f"results/a.jsonl/{JOB}/options.json", True),
        ("SubmitRole", "s3:PutObject", f"results/_jobs/{JOB}.json", True),
        ("SubmitRole", "s3:PutObject", f"results/a.jsonl/{JOB}/report.json", False),
        ("SubmitRole", "s3:PutObject", f"staging/{JOB}/header", True),
        ("PollRole", "s3:GetObjectVersion", "inbox/a.jsonl", False),
        ("PollRole", "s3:GetObject", "inbox/a.jsonl", False),
        ("SubmitRole", "s3:PutObject", f"results/a.jsonl/{JOB}/status.json", True),
        ("SubmitRole", "s3:PutObject", f"results/a.jsonl/{JOB}/output.jsonl", False),
        ("SubmitRole", "s3:PutObject", f"results/a.jsonl/{JOB}/manifest.json", False),
        ("SubmitRole", "s3:GetObject", f"results/a.jsonl/{JOB}/output.jsonl", False),
        ("SubmitRole", "s3:PutObject", f"staging/{JOB}/00000000/part-1", False),
        ("SubmitRole", "s3:PutObject", f"staging/{JOB}/segments/output-00000", False),
        ("PollRole", "s3:PutObject", f"staging/{JOB}/00000000.a/request", True),
        ("PollRole", "s3:PutObject", f"staging/{JOB}/00000000/request", False),
        ("PollRole", "s3:PutObject", f"staging/{JOB}/00000000/receipt-1", False),
        ("PollRole", "s3:GetObject", f"control/jobs/{JOB}", True),
        ("PollRole", "s3:PutObject", f"control/jobs/{JOB}", False),
        ("SubmitRole", "s3:GetObject", f"control/jobs/{JOB}", True),
        ("SubmitRole", "s3:PutObject", f"control/jobs/{JOB}", False),
        ("SubmitRole", "s3:GetObject", "control/stack", False),
        # Nothing a function writes can be taken for an upload: the stack cannot call itself in a
        # circle.
        ("SubmitRole", "s3:PutObject", "inbox/a.jsonl", False),
        ("PollRole", "s3:PutObject", "inbox/a.jsonl", False),
    ],
)
def test_functions_have_their_own_prefixes(role, action, key, may):
    assert _matches(granted_on(role, action), key=key) is may


def test_only_functions_read_secrets():
    for choices, secrets in (
        ({}, {"<ApiToken.Id>"}),
        ({"NamesSecret": True}, {"<CloudflareApiTokenSecretArn>"}),
        (WORKER, {"<SharedSecret.Id>"}),
        (WORKER | {"NamesWorkerSecret": True}, {"<WorkerSecretArn>"}),
        ({"SendsGatewayToken": True}, {"<ApiToken.Id>", "<AiGatewayTokenSecretArn>"}),
    ):
        readers = {
            role: granted_on(role, "secretsmanager:GetSecretValue", **choices) for role in ROLES
        }
        assert readers == {"SubmitRole": secrets, "PollRole": secrets, "PollTickRole": set()}


def test_only_events_of_finished_jobs_may_be_put():
    (told,) = [one for one in grants("PollRole") if one.action == "events:PutEvents"]

    assert told.resource.endswith(":event-bus/default")
    assert set(told.condition) == {
        ("StringEquals", "events:source", (SOURCE,)),
        ("StringEquals", "events:detail-type", (DETAIL_TYPE,)),
    }
    assert not any(granted_on(role, "events:PutEvents") for role in ("SubmitRole", "PollTickRole"))

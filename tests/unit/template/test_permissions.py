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


def via(*services):
    return [f"{service}.<AWS::Region>.amazonaws.*" for service in services]  # China has two.


def test_owners_key_is_used_through_services_alone(of_type):
    for role in ROLES:
        assert granted_on(role, "kms:Decrypt") == set()
        for action in ("kms:Decrypt", "kms:GenerateDataKey"):
            assert granted_on(role, action, UsesOwnKey=True) == {"<KmsKeyArn>"}
        (condition,) = {
            grant.condition
            for grant in grants(role, UsesOwnKey=True)
            if grant.action.startswith("kms:")
        }
        ((operator, key, services),) = condition
        assert (operator, key) == ("StringLike", "kms:ViaService")
        assert list(services) == via("s3", "sqs", "dynamodb", "secretsmanager")
    for choices, services in (({}, via("s3")), ({"UsesSource": True}, via("s3", "sqs"))):
        rules = statements(of_type, "UserPolicy", UsesOwnKey=True, **choices)
        (use,) = [one for one in rules if one["Sid"] == "UseKey"]
        assert use["Condition"]["StringLike"]["kms:ViaService"] == services


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


RESULT, STAGED, COMMAND = f"results/a.jsonl/{JOB}", f"staging/{JOB}", f"control/jobs/{JOB}"
PEOPLE = {
    ("UserPolicy", "s3:PutObject"): {
        **dict.fromkeys(("inbox/a.jsonl", COMMAND, "files/file-0", "files/batches/b.json"), True),
        **dict.fromkeys(("control/stack", f"{RESULT}/manifest.json"), False),
    },
    ("UserPolicy", "s3:GetObject"): {
        f"{RESULT}/manifest.json": True,
        f"{STAGED}/00000000/request": False,
        f"{STAGED}/00000000/raw-1-0": False,
        f"{STAGED}/00000000/said-1": False,
        f"{STAGED}/00000003.f/part-2": False,
    },
    ("UserPolicy", "s3:DeleteObject"): {
        "files/file-0": True,
        **dict.fromkeys(("files/batches/b.json", "inbox/a.jsonl", COMMAND), False),
    },
    ("UserPolicy", "dynamodb:Query"): {"": False},
    ("UserPolicy", "dynamodb:GetItem"): {"": False},
    ("UserPolicy", "dynamodb:UpdateItem"): {"": False},
    ("UserPolicy", "sqs:ReceiveMessage"): {"": False},
    ("UserPolicy", "cloudformation:DescribeStacks"): {"": True},
    ("OperatorPolicy", "s3:PutObject"): {"control/stack": True, "inbox/a.jsonl": False},
    ("OperatorPolicy", "s3:GetObject"): {
        "control/stack": True,
        f"{STAGED}/00000000/request": False,
    },
    ("OperatorPolicy", "sqs:StartMessageMoveTask"): {"": True},
    ("OperatorPolicy", "cloudwatch:DescribeAlarms"): {"": True},
    ("OperatorPolicy", "logs:FilterLogEvents"): {"": True},
    ("OperatorPolicy", "dynamodb:Query"): {"": False},
    ("OperatorPolicy", "secretsmanager:GetSecretValue"): {"": False},
    ("OperatorPolicy", "lambda:InvokeFunction"): {"": False},
    ("OperatorPolicy", "sqs:PurgeQueue"): {"": False},
}


@pytest.mark.parametrize(("policy", "action"), PEOPLE)
def test_people_may_do_what_their_policy_is_for(of_type, policy, action):
    wanted = PEOPLE[policy, action]
    assert {key: allows(of_type, policy, action, key) for key in wanted} == wanted


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
    own = ("StringEquals", "aws:ResourceAccount", ("<AWS::AccountId>",))
    for role in ("SubmitRole", "PollRole"):
        for grant in grants(role):
            assert own in grant.condition or not grant.action.startswith("s3:"), str(grant)


def test_nobody_may_delete_or_read_whole_table():
    forbidden = ("dynamodb:Scan", "sqs:PurgeQueue")
    for role in ROLES:
        assert [action for action in forbidden if granted_on(role, action)] == []
        for action in ("s3:DeleteObject", "s3:DeleteObjectVersion"):
            staged = {"<Bucket.Arn>/staging/*"} if role == "PollRole" else set()
            assert granted_on(role, action) == staged
        for grant in grants(role):
            control = ("ForAllValues:StringEquals", "dynamodb:LeadingKeys", (CONTROL_PK,))
            assert grant.action != "dynamodb:DeleteItem" or grant.condition == (control,)


def _matches(patterns, *, key):
    return any(iam.like(f"<Bucket.Arn>/{key}", pattern) for pattern in patterns)


# Nothing a function writes can be taken for an upload: the stack cannot call itself in a circle.
FUNCTIONS = {
    ("SubmitRole", "s3:GetObjectVersion"): {"inbox/a.jsonl": True},
    ("SubmitRole", "s3:GetObject"): {
        **dict.fromkeys(("inbox/a.jsonl", "inbox/a/_options.json", COMMAND), True),
        f"{RESULT}/options.json": True,
        f"{RESULT}/output.jsonl": False,
        "control/stack": False,
    },
    ("SubmitRole", "s3:PutObject"): {
        f"results/_jobs/{JOB}.json": True,
        f"{STAGED}/header": True,
        **dict.fromkeys((f"{RESULT}/options.json", f"{RESULT}/status.json"), True),
        **{f"{RESULT}/{name}": False for name in ("report.json", "output.jsonl", "manifest.json")},
        **{f"{STAGED}/{name}": False for name in ("00000000/part-1", "segments/output-00000")},
        **dict.fromkeys((COMMAND, "inbox/a.jsonl"), False),
    },
    ("PollRole", "s3:GetObjectVersion"): {"inbox/a.jsonl": False},
    ("PollRole", "s3:GetObject"): {COMMAND: True, "inbox/a.jsonl": False},
    ("PollRole", "s3:PutObject"): {
        f"{STAGED}/00000000.a/request": True,
        **{f"{STAGED}/00000000/{name}": False for name in ("request", "receipt-1")},
        **dict.fromkeys((COMMAND, "inbox/a.jsonl"), False),
    },
}


@pytest.mark.parametrize(("role", "action"), FUNCTIONS)
def test_functions_have_their_own_prefixes(role, action):
    granted, wanted = granted_on(role, action), FUNCTIONS[role, action]
    assert {key: _matches(granted, key=key) for key in wanted} == wanted


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

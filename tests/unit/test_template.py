"""House rules of the template, checked on what SAM makes of it, offline.

What local AWSs ignore (lifecycle, time to live, encryption, alarms) is promised here and nowhere else.
"""

import json
import re
from pathlib import Path

import pytest
from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

from functions.poll.due_items import THREADS
from functions.poll.tick import BATCHES_PER_MESSAGE
from shared.aws.event_bus import DETAIL_TYPE, SOURCE
from shared.observability import METRICS
from shared.settings import ENVIRONMENT
from shared.spool import MAX_REPLY_BYTES
from tests.support import iam

ROOT = Path(__file__).resolve().parents[2]
POWERTOOLS = {
    "POWERTOOLS_SERVICE_NAME",
    "POWERTOOLS_METRICS_NAMESPACE",
    "POWERTOOLS_LOG_LEVEL",
}
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}


class _NoPolicies:
    """The template names no managed policy, so the translator needs to know none."""

    def load(self):
        return {}


@pytest.fixture(scope="module")
def source():
    return yaml_parse((ROOT / "template.yaml").read_text())


@pytest.fixture(scope="module")
def template():
    # SAM wants an address where the built code would be.
    text = (ROOT / "template.yaml").read_text().replace("CodeUri: .", "CodeUri: s3://bucket/code.zip")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        return transform(yaml_parse(text), {}, _NoPolicies())


@pytest.fixture(scope="module")
def of_type(template):
    def find(kind):
        return {
            name: resource.get("Properties", {})
            for name, resource in template["Resources"].items()
            if resource["Type"] == kind
        }

    return find


def _target(reference):
    """The resource that a Ref or GetAtt names."""
    return reference.get("Ref") or reference["Fn::GetAtt"][0]


def _as_list(value):
    return value if isinstance(value, list) else [value]


SECRETS = {"CloudflareApiToken", "AiGatewayToken", "WorkerSecret"}
"""Parameters that nobody may read again."""
ROLES = ("SubmitRole", "PollRole", "PollTickRole")
CHOICES = {
    "MakesSecret": True,
    "UsesOwnKey": False,
    "ProtectsData": True,
    "SendsToken": True,
    "SendsWorkerSecret": False,
    "MakesWorkerSecret": False,
    "SendsGatewayToken": False,
    "MakesGatewaySecret": False,
    "UsesSource": False,
}
"""The conditions that policies depend on, as the defaults make them."""


WORKER = {"SendsToken": False, "SendsWorkerSecret": True}
"""The conditions that differ with `Transport` worker."""


JOB = "20261121T093000Z-5f3a9c1e"


class _Names(dict):
    """Names that the template refers to, each standing for itself."""

    def __missing__(self, name):
        return f"<{name}>"


def _resolved(value, **choices):
    """A piece of the template as the defaults make it, but for the conditions given."""
    return iam.resolve(value, _Names(), CHOICES | choices)


def _may(role, action, **choices):
    """The resources on which a role may do something."""
    return {grant.resource for grant in iam.grants(role, _Names(), CHOICES | choices) if grant.action == action}


def _statements(of_type, policy, **choices):
    """The statements of a managed policy."""
    document = of_type("AWS::IAM::ManagedPolicy")[policy]["PolicyDocument"]
    return _resolved(document["Statement"], **choices)


def _allows(of_type, policy, action, key=""):
    """Whether a managed policy allows an action on the object with this key, or on anything."""
    return any(
        action in _as_list(one["Action"])
        and (not key or any(iam.like(f"<Bucket.Arn>/{key}", pattern) for pattern in _as_list(one["Resource"])))
        for one in _statements(of_type, policy)
    )


def test_there_are_two_functions_and_what_they_need(of_type):
    assert set(of_type("AWS::Lambda::Function")) == {"SubmitFunction", "PollFunction"}
    assert len(of_type("AWS::S3::Bucket")) == 1
    assert len(of_type("AWS::DynamoDB::Table")) == 1
    assert len(of_type("AWS::SQS::Queue")) == 10
    assert len(of_type("AWS::Lambda::EventSourceMapping")) == 4
    assert len(of_type("AWS::Scheduler::Schedule")) == 1


def test_parameters_are_those_of_the_design(source):
    told = source["Parameters"]

    assert set(told) == {
        "CloudflareAccountId",
        "CloudflareApiToken",
        "CloudflareApiTokenSecretArn",
        "WorkersAiBaseUrl",
        "Transport",
        "AiGatewayId",
        "AiGatewayToken",
        "AiGatewayTokenSecretArn",
        "AiGatewayBaseUrl",
        "WorkerUrl",
        "WorkerSecret",
        "WorkerSecretArn",
        "SourceBucketName",
        "SourcePrefix",
        "DefaultModel",
        "BucketName",
        "MaxRequestsPerBatch",
        "MaxBatchBytes",
        "ApiCallsPerMinute",
        "PollSchedule",
        "BatchDeadlineHours",
        "AmbiguousSubmit",
        "ResultRetentionDays",
        "InboxRetentionDays",
        "Architecture",
        "NotificationEmail",
        "LogLevel",
        "KmsKeyArn",
        "DeletionProtection",
        "ReserveConcurrency",
        "PermissionsBoundaryArn",
        "AccessLogBucketName",
    }
    assert {name for name, parameter in told.items() if "Default" not in parameter} == {"CloudflareAccountId"}
    assert all(parameter["Description"] for parameter in told.values())
    defaults = [told[name]["Default"] for name in ("MaxRequestsPerBatch", "MaxBatchBytes", "ApiCallsPerMinute")]
    assert defaults == [5_000, 9_500_000, 200]
    assert all(told[name]["NoEcho"] is True for name in SECRETS)
    for name, parameter in told.items():
        limits = {"AllowedPattern", "AllowedValues"} if parameter["Type"] == "String" else {"MinValue", "MaxValue"}
        assert limits & set(parameter), f"{name} takes anything"


def test_the_console_shows_every_parameter_in_a_group_with_a_label_and_first_those_that_must_be_given(source):
    shown = source["Metadata"]["AWS::CloudFormation::Interface"]
    groups = [group["Parameters"] for group in shown["ParameterGroups"]]
    grouped = [name for group in groups for name in group]
    assert sorted(grouped) == sorted(source["Parameters"])
    assert set(shown["ParameterLabels"]) == set(source["Parameters"])
    assert groups[0] == ["CloudflareAccountId", "CloudflareApiToken"]


def test_outputs_are_those_of_the_design(template):
    assert set(template["Outputs"]) == {
        "BucketName",
        "TableName",
        "SubmitFunctionName",
        "PollFunctionName",
        "UploadQueueUrl",
        "UploadDeadLetterQueueUrl",
        "SourceDeadLetterQueueUrl",
        "SubmitQueueUrl",
        "SubmitDeadLetterQueueUrl",
        "PollQueueUrl",
        "PollDeadLetterQueueUrl",
        "PollTickDeadLetterQueueUrl",
        "ControlQueueUrl",
        "ControlDeadLetterQueueUrl",
        "OperatorPolicyArn",
        "UserPolicyArn",
        "DashboardUrl",
    }


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("https://api.cloudflare.com/client/v4", True),
        ("https://gateway.example.com:8443/v1/", True),
        ("http://127.0.0.1:8787/client/v4", True),
        ("http://localhost:8787", True),
        ("http://[::1]:8787/client/v4", True),
        ("http://169.254.169.254/", False),
        ("http://api.cloudflare.com/client/v4", False),
        ("https://api.cloudflare.com@evil.test/", False),
        ("http://127.0.0.1@evil.test/", False),
        ("http://localhost.evil.test/", False),
        ("https://evil.test/?a=b", False),
        ("ftp://127.0.0.1/", False),
        ("", False),
    ],
)
def test_the_token_goes_over_https_or_stays_here(source, url, taken):
    for name in ("WorkersAiBaseUrl", "AiGatewayBaseUrl", "WorkerUrl"):
        optional = name == "WorkerUrl" and not url
        assert bool(re.search(source["Parameters"][name]["AllowedPattern"], url)) is (taken or optional), name


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("CloudflareAccountId", "0123456789abcdef0123456789abcdef", True),
        ("CloudflareAccountId", "0123456789ABCDEF0123456789ABCDEF", False),
        ("CloudflareApiToken", "a b", False),
        (
            "CloudflareApiTokenSecretArn",
            "arn:aws:secretsmanager:eu-west-1:123456789012:secret:cf/token-AbCdEf",
            True,
        ),
        (
            "CloudflareApiTokenSecretArn",
            "arn:aws:secretsmanager:eu-west-1:123456789012:secret:cf/token",
            False,
        ),
        ("AiGatewayId", "my-gateway_1", True),
        ("AiGatewayId", "a/b", False),
        ("AiGatewayToken", "a b", False),
        ("WorkerSecret", "a b", False),
        ("WorkerSecretArn", "arn:aws:secretsmanager:eu-west-1:123456789012:secret:worker-AbCdEf", True),
        ("WorkerSecretArn", "worker", False),
        ("AiGatewayTokenSecretArn", "gateway", False),
        ("SourceBucketName", "", True),
        ("SourceBucketName", "team.exports", True),
        ("SourceBucketName", "arn:aws:s3:::team-exports", False),
        ("SourcePrefix", "exports/@cf/", True),
        ("SourcePrefix", "exports/*", False),
        ("SourcePrefix", "${aws:username}/", False),
        ("DefaultModel", "", True),
        ("DefaultModel", "@cf/baai/bge-small-en-v1.5", True),
        ("DefaultModel", "@cf/../../x", False),
        ("BucketName", "", True),
        ("BucketName", "My_Bucket", False),
        ("PollSchedule", "rate(1 minute)", True),
        ("NotificationEmail", "ops@example.com", True),
        ("NotificationEmail", "ops", False),
        ("KmsKeyArn", "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab", True),
        ("KmsKeyArn", "arn:aws:kms:eu-west-1:123456789012:alias/mine", False),
        ("PermissionsBoundaryArn", "arn:aws:iam::123456789012:policy/boundary", True),
        ("PermissionsBoundaryArn", "boundary", False),
        ("AccessLogBucketName", "logs.example", True),
    ],
)
def test_parameters_are_checked_before_anything_is_made(source, name, value, taken):
    assert bool(re.search(source["Parameters"][name]["AllowedPattern"], value)) is taken


def test_each_transport_must_be_given_what_it_needs(source):
    rules = source["Rules"]
    asked = {name: sorted(set(re.findall(r'"Ref": "(\w+)"', json.dumps(rules[name])))) for name in rules}
    assert asked == {
        "TokenIsGiven": ["CloudflareApiToken", "CloudflareApiTokenSecretArn", "Transport"],
        "GatewayIsNamed": ["AiGatewayId", "Transport"],
        "WorkerIsGiven": ["Transport", "WorkerSecret", "WorkerSecretArn", "WorkerUrl"],
    }


def test_functions_get_exactly_the_settings_they_read(of_type):
    for name, function in of_type("AWS::Lambda::Function").items():
        assert set(function["Environment"]["Variables"]) == ENVIRONMENT | POWERTOOLS | ALLOCATOR, name


def test_no_token_is_in_the_environment(of_type):
    for function in of_type("AWS::Lambda::Function").values():
        assert not SECRETS & set(re.findall(r'"Ref": "(\w+)"', json.dumps(function["Environment"])))


def test_functions_are_what_the_makefile_packs_for(template, of_type, source):
    makefile = (ROOT / "Makefile").read_text()
    python = re.search(r"^LAMBDA_PYTHON := (.+)$", makefile, re.MULTILINE)[1]
    processor = re.search(r"^DROPBATCH_BUILD \?= (.+)$", makefile, re.MULTILINE)[1]

    assert source["Parameters"]["Architecture"]["Default"] == processor
    for name, function in of_type("AWS::Lambda::Function").items():
        assert function["Runtime"] == f"python{python}"
        assert function["Architectures"] == [{"Ref": "Architecture"}]
        assert template["Resources"][name]["Metadata"]["BuildMethod"] == "makefile"
        room = name.removesuffix("Function").lower()
        assert function["Handler"] == f"functions.{room}.handler.lambda_handler"


def test_functions_keep_their_logs_for_a_while_and_are_traced(of_type):
    groups = of_type("AWS::Logs::LogGroup")
    used = set()
    for function in of_type("AWS::Lambda::Function").values():
        group = _target(function["LoggingConfig"]["LogGroup"])
        used.add(group)
        assert groups[group]["RetentionInDays"] > 0
        assert function["TracingConfig"]["Mode"] == "Active"

    assert used == set(groups)


def test_sources_report_each_failure_and_never_flood_the_account(of_type):
    for mapping in of_type("AWS::Lambda::EventSourceMapping").values():
        assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert mapping["BatchSize"] == 1
        assert 2 <= mapping["ScalingConfig"]["MaximumConcurrency"] <= 10


def test_queues_give_a_function_its_time_and_keep_what_fails(of_type):
    queues, functions = of_type("AWS::SQS::Queue"), of_type("AWS::Lambda::Function")
    for mapping in of_type("AWS::Lambda::EventSourceMapping").values():
        queue = queues[_target(mapping["EventSourceArn"])]
        dead_letters = queues[_target(queue["RedrivePolicy"]["deadLetterTargetArn"])]

        assert queue["VisibilityTimeout"] >= 6 * functions[_target(mapping["FunctionName"])]["Timeout"]
        assert queue["RedrivePolicy"]["maxReceiveCount"] == 5
        assert dead_letters["MessageRetentionPeriod"] == 14 * 86400
        assert queue["MessageRetentionPeriod"] < dead_letters["MessageRetentionPeriod"]


def test_queues_are_encrypted_so_that_s3_can_still_send(of_type):
    for queue in of_type("AWS::SQS::Queue").values():
        assert _resolved(queue["SqsManagedSseEnabled"]) is True
        assert _resolved({"key": queue["KmsMasterKeyId"]}) == {}
        assert _resolved({"managed": queue["SqsManagedSseEnabled"]}, UsesOwnKey=True) == {}


def test_whatever_holds_data_can_be_encrypted_with_the_owners_key(of_type):
    (bucket,), (table,) = of_type("AWS::S3::Bucket").values(), of_type("AWS::DynamoDB::Table").values()
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    keys = {
        "bucket": rule["ServerSideEncryptionByDefault"],
        "table": table["SSESpecification"],
        **{name: queue["KmsMasterKeyId"] for name, queue in of_type("AWS::SQS::Queue").items()},
        **{name: topic["KmsMasterKeyId"] for name, topic in of_type("AWS::SNS::Topic").items()},
        **{name: logs["KmsKeyId"] for name, logs in of_type("AWS::Logs::LogGroup").items()},
        **{name: secret["KmsKeyId"] for name, secret in of_type("AWS::SecretsManager::Secret").items()},
    }

    for name, key in keys.items():
        assert "<KmsKeyArn>" in str(_resolved({"key": key}, UsesOwnKey=True)), name
        assert "<KmsKeyArn>" not in str(_resolved({"key": key})), name
    assert len(keys) == 18


def test_the_owners_key_is_used_through_the_services_alone(of_type):
    for role in ROLES:
        assert _may(role, "kms:Decrypt") == set()
        assert _may(role, "kms:Decrypt", UsesOwnKey=True) == _may(role, "kms:GenerateDataKey", UsesOwnKey=True)
        assert _may(role, "kms:Decrypt", UsesOwnKey=True) == {"<KmsKeyArn>"}
        (condition,) = {
            grant.condition
            for grant in iam.grants(role, _Names(), CHOICES | {"UsesOwnKey": True})
            if grant.action.startswith("kms:")
        }
        ((operator, key, services),) = condition
        assert (operator, key) == ("StringEquals", "kms:ViaService")
        assert [service.partition(".")[0] for service in services] == ["s3", "sqs", "dynamodb", "secretsmanager"]
    (use,) = [one for one in _statements(of_type, "UserPolicy", UsesOwnKey=True) if one["Sid"] == "UseKey"]
    assert use["Condition"]["StringEquals"]["kms:ViaService"].startswith("s3.")


def test_a_missed_tick_is_not_made_up_for(of_type):
    (tick,) = of_type("AWS::Scheduler::Schedule").values()
    (invoke,) = of_type("AWS::Lambda::EventInvokeConfig").values()

    assert tick["ScheduleExpression"] == {"Ref": "PollSchedule"}
    assert tick["Target"]["RetryPolicy"]["MaximumRetryAttempts"] == 0
    assert tick["Target"]["DeadLetterConfig"]
    assert json.loads(tick["Target"]["Input"]) == {}
    assert _target(tick["Target"]["Arn"]) == _target(invoke["FunctionName"]) == "PollFunction"
    assert invoke["MaximumRetryAttempts"] == 0


@pytest.mark.parametrize("own_key", [False, True])
def test_roles_name_single_actions_on_single_resources(of_type, own_key):
    for role in ROLES:
        for grant in iam.grants(role, _Names(), CHOICES | {"UsesOwnKey": own_key}):
            assert "*" not in grant.action, f"{role}: {grant}"
            # X-Ray has no resources: AWS accepts only the star for these two actions.
            if grant.action not in {"xray:PutTraceSegments", "xray:PutTelemetryRecords"}:
                assert grant.resource.startswith(("<", "arn:<AWS::Partition>:")), f"{role}: {grant}"
                assert not grant.resource.endswith((":*", "<Bucket.Arn>/*")), f"{role}: {grant}"
    for policy in of_type("AWS::IAM::ManagedPolicy"):
        for statement in _statements(of_type, policy, UsesOwnKey=own_key):
            assert not any("*" in action for action in _as_list(statement["Action"]))
            # CloudWatch has no resources for what an operator may see.
            if statement["Sid"] == "SeeMetricsAndAlarms":
                continue
            if statement["Sid"] == "FindTheStack":
                # DescribeStacks with a stack's name is judged by this resource, not by the stack's id.
                assert statement["Resource"].endswith(":stack/<AWS::StackName>/*")
            else:
                assert all(resource.startswith("<") for resource in _as_list(statement["Resource"]))


@pytest.mark.parametrize(
    ("policy", "action", "key", "may"),
    [
        ("UserPolicy", "s3:PutObject", "inbox/a.jsonl", True),
        ("UserPolicy", "s3:PutObject", f"control/jobs/{JOB}", True),
        ("UserPolicy", "s3:PutObject", "control/stack", False),
        ("UserPolicy", "s3:PutObject", f"results/a.jsonl/{JOB}/manifest.json", False),
        ("UserPolicy", "s3:GetObject", f"results/a.jsonl/{JOB}/manifest.json", True),
        ("UserPolicy", "s3:GetObject", f"staging/{JOB}/00000000/request", False),
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
        ("OperatorPolicy", "dynamodb:GetItem", "", False),
        ("OperatorPolicy", "secretsmanager:GetSecretValue", "", False),
        ("OperatorPolicy", "lambda:InvokeFunction", "", False),
        ("OperatorPolicy", "sqs:PurgeQueue", "", False),
    ],
)
def test_people_may_do_what_their_policy_is_for(of_type, policy, action, key, may):
    assert _allows(of_type, policy, action, key) is may


def _operators(of_type):
    return _statements(of_type, "OperatorPolicy", UsesSource=True)


def test_dead_letters_are_moved_by_operators_back_to_every_queue(of_type):
    (take,) = [one for one in _operators(of_type) if one["Sid"] == "TakeDeadLetters"]
    (send,) = [one for one in _operators(of_type) if one["Sid"] == "SendThemAgain"]
    queues = {f"<{name}.Arn>" for name in of_type("AWS::SQS::Queue")}

    assert set(take["Resource"]) == {name for name in queues if "DeadLetter" in name}
    assert set(send["Resource"]) == {name for name in queues if "DeadLetter" not in name}


def test_commands_have_a_queue_of_their_own(of_type):
    (bucket,) = of_type("AWS::S3::Bucket").values()
    notified = {
        one["Filter"]["S3Key"]["Rules"][0]["Value"]: _target(one["Queue"])
        for one in bucket["NotificationConfiguration"]["QueueConfigurations"]
    }

    assert notified == {"inbox/": "UploadQueue", "validate/": "UploadQueue", "control/": "ControlQueue"}


def test_a_bucket_of_another_account_is_never_spoken_to():
    for role in ("SubmitRole", "PollRole"):
        for grant in iam.grants(role, _Names(), CHOICES):
            if grant.action.startswith("s3:"):
                assert ("StringEquals", "aws:ResourceAccount", ("<AWS::AccountId>",)) in grant.condition, str(grant)


def test_each_function_has_a_role_of_its_own(of_type):
    roles = [_target(function["Role"]) for function in of_type("AWS::Lambda::Function").values()]

    assert len(set(roles)) == 2
    assert set(roles) | {"PollTickRole"} == set(of_type("AWS::IAM::Role"))


def test_roles_can_be_bounded(of_type):
    for role in of_type("AWS::IAM::Role").values():
        assert role["PermissionsBoundary"]["Fn::If"][:2] == ["BoundsRoles", {"Ref": "PermissionsBoundaryArn"}]


def test_nobody_may_delete_or_read_the_whole_table():
    forbidden = ("s3:DeleteObject", "s3:DeleteObjectVersion", "dynamodb:Scan", "sqs:PurgeQueue")
    for role in ROLES:
        assert [action for action in forbidden if _may(role, action)] == []
        for grant in iam.grants(role, _Names(), CHOICES):
            if grant.action == "dynamodb:DeleteItem":
                assert grant.condition == (("ForAllValues:StringEquals", "dynamodb:LeadingKeys", ("CONTROL",)),)


def _matches(patterns, *, key):
    return any(iam.like(f"<Bucket.Arn>/{key}", pattern) for pattern in patterns)


@pytest.mark.parametrize(
    ("role", "action", "key", "may"),
    [
        ("SubmitRole", "s3:GetObjectVersion", "inbox/a.jsonl", True),
        ("SubmitRole", "s3:GetObject", "inbox/a.jsonl", True),
        ("SubmitRole", "s3:GetObjectVersion", "validate/a.jsonl", True),
        ("SubmitRole", "s3:GetObject", "inbox/a/_options.json", True),
        ("SubmitRole", "s3:GetObject", f"results/a.jsonl/{JOB}/options.json", True),
        ("SubmitRole", "s3:PutObject", f"results/a.jsonl/{JOB}/options.json", True),
        ("SubmitRole", "s3:PutObject", f"results/_jobs/{JOB}.json", True),
        ("SubmitRole", "s3:PutObject", f"results/_validate/a.jsonl/{JOB}/report.json", True),
        ("SubmitRole", "s3:PutObject", f"results/a.jsonl/{JOB}/report.json", False),
        ("SubmitRole", "s3:PutObject", f"staging/{JOB}/header", True),
        ("SubmitRole", "s3:PutObject", "validate/a.jsonl", False),
        ("PollRole", "s3:GetObject", "validate/a.jsonl", False),
        ("PollRole", "s3:GetObjectVersion", "inbox/a.jsonl", False),
        ("PollRole", "s3:GetObject", "inbox/a.jsonl", False),
        ("SubmitRole", "s3:PutObject", f"results/a.jsonl/{JOB}/status.json", True),
        ("SubmitRole", "s3:PutObject", f"results/a.jsonl/{JOB}/output.jsonl", False),
        ("SubmitRole", "s3:PutObject", f"results/a.jsonl/{JOB}/manifest.json", False),
        ("SubmitRole", "s3:GetObject", f"results/a.jsonl/{JOB}/output.jsonl", False),
        ("SubmitRole", "s3:PutObject", f"staging/{JOB}/00000000/part-1", False),
        ("SubmitRole", "s3:PutObject", f"staging/{JOB}/segments/output-00000", False),
        ("PollRole", "s3:PutObject", f"staging/{JOB}/00000000.a/request", True),
        ("PollRole", "s3:PutObject", f"staging/{JOB}/00000000/receipt-1", False),
        ("PollRole", "s3:GetObject", f"control/jobs/{JOB}", True),
        ("PollRole", "s3:PutObject", f"control/jobs/{JOB}", False),
        ("SubmitRole", "s3:GetObject", f"control/jobs/{JOB}", False),
        # Nothing a function writes can be taken for an upload: the stack cannot call itself in a circle.
        ("SubmitRole", "s3:PutObject", "inbox/a.jsonl", False),
        ("PollRole", "s3:PutObject", "inbox/a.jsonl", False),
    ],
)
def test_each_function_reads_and_writes_its_own_prefixes(role, action, key, may):
    assert _matches(_may(role, action), key=key) is may


def test_submit_does_not_send_to_the_queue_of_uploads():
    assert "<UploadQueue.Arn>" not in _may("SubmitRole", "sqs:SendMessage")


def test_the_functions_alone_read_the_secrets_of_the_transport_in_use():
    for choices, secrets in (
        ({"MakesSecret": True}, {"<ApiToken.Id>"}),
        ({"MakesSecret": False}, {"<CloudflareApiTokenSecretArn>"}),
        (WORKER | {"MakesWorkerSecret": True}, {"<SharedSecret.Id>"}),
        (WORKER, {"<WorkerSecretArn>"}),
        ({"SendsGatewayToken": True, "MakesGatewaySecret": True}, {"<ApiToken.Id>", "<GatewayToken.Id>"}),
        ({"SendsGatewayToken": True}, {"<ApiToken.Id>", "<AiGatewayTokenSecretArn>"}),
    ):
        readers = {role: _may(role, "secretsmanager:GetSecretValue", **choices) for role in ROLES}
        assert readers == {"SubmitRole": secrets, "PollRole": secrets, "PollTickRole": set()}


def test_functions_reserve_what_their_queues_may_use_together(of_type):
    used = dict.fromkeys(of_type("AWS::Lambda::Function"), 0)
    for mapping in of_type("AWS::Lambda::EventSourceMapping").values():
        used[_target(mapping["FunctionName"])] += mapping["ScalingConfig"]["MaximumConcurrency"]
    used["PollFunction"] += 2  # A tick, and one by hand.

    for name, function in of_type("AWS::Lambda::Function").items():
        reserved = function["ReservedConcurrentExecutions"]
        assert _resolved(reserved, ReservesConcurrency=True) == used[name]
        assert _resolved({"reserved": reserved}, ReservesConcurrency=False) == {}


def test_a_loop_of_functions_is_left_for_lambda_to_end(of_type):
    assert all("RecursiveLoop" not in function for function in of_type("AWS::Lambda::Function").values())


def test_bucket_is_private_versioned_encrypted_and_stays(template):
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


def test_bucket_is_spoken_to_over_tls_only(of_type):
    (policy,) = of_type("AWS::S3::BucketPolicy").values()
    (statement,) = _resolved(policy["PolicyDocument"]["Statement"], ProtectsData=False)

    assert (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", "*", "s3:*")
    assert statement["Resource"] == ["<Bucket.Arn>", "<Bucket.Arn>/*"]
    assert statement["Condition"] == NOT_TLS


NOT_TLS = {"Bool": {"aws:SecureTransport": "false"}, "NotIpAddress": {"aws:SourceIp": "127.0.0.0/8"}}


def test_queues_are_spoken_to_over_tls_only(of_type):
    covered = []
    for policy in of_type("AWS::SQS::QueuePolicy").values():
        covered += [_target(queue) for queue in policy["Queues"]]
        (denied,) = [
            one for one in _resolved(policy["PolicyDocument"]["Statement"], NamesBucket=True) if one["Effect"] == "Deny"
        ]
        assert (denied["Principal"], denied["Action"], denied["Condition"]) == ("*", "sqs:*", NOT_TLS)

    assert sorted(covered) == sorted(of_type("AWS::SQS::Queue"))  # Of two policies of one queue the last would count.


def test_data_is_protected_from_deletion_unless_the_owner_says_no(of_type, source):
    (policy,), (table,) = of_type("AWS::S3::BucketPolicy").values(), of_type("AWS::DynamoDB::Table").values()
    kept = [one for one in _resolved(policy["PolicyDocument"]["Statement"]) if one["Sid"] == "KeepBucket"]

    assert source["Parameters"]["DeletionProtection"]["Default"] == "yes"
    assert [(one["Effect"], one["Principal"], one["Action"]) for one in kept] == [("Deny", "*", "s3:DeleteBucket")]
    assert _resolved(table["DeletionProtectionEnabled"]) is True
    assert _resolved(table["DeletionProtectionEnabled"], ProtectsData=False) is False


def test_access_to_the_bucket_can_be_logged(of_type):
    (bucket,) = of_type("AWS::S3::Bucket").values()

    logging = _resolved(bucket["LoggingConfiguration"], LogsAccess=True)
    assert logging["DestinationBucketName"] == "<AccessLogBucketName>"


def test_bucket_forgets_what_nobody_needs(of_type):
    (bucket,) = of_type("AWS::S3::Bucket").values()
    rules = bucket["LifecycleConfiguration"]["Rules"]
    plain = {rule["Id"]: rule for rule in rules if "Id" in rule}

    assert plain["remains-of-uploads"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert "Prefix" not in plain["remains-of-uploads"]
    assert (plain["staging"]["Prefix"], plain["staging"]["ExpirationInDays"]) == ("staging/", 60)
    assert plain["staging"]["NoncurrentVersionExpiration"]
    assert plain["results"]["ExpirationInDays"]["Fn::If"][2] == {"Ref": "ResultRetentionDays"}
    chosen = [rule["Fn::If"] for rule in rules if "Fn::If" in rule]
    assert {condition for condition, _, _ in chosen} == {"ExpiresInbox"}
    assert {rule["Prefix"]: rule["ExpirationInDays"] for _, rule, _ in chosen} == {
        "inbox/": {"Ref": "InboxRetentionDays"},
        "validate/": {"Ref": "InboxRetentionDays"},
    }


def test_uploads_are_told_of_once_and_by_our_bucket_only(template, of_type):
    (bucket,) = of_type("AWS::S3::Bucket").values()
    uploads = [
        one
        for one in bucket["NotificationConfiguration"]["QueueConfigurations"]
        if _target(one["Queue"]) == "UploadQueue"
    ]
    allowed = [
        (policy["Queues"], statement)
        for name, policy in of_type("AWS::SQS::QueuePolicy").items()
        for statement in policy["PolicyDocument"]["Statement"]
        if statement.get("Effect") == "Allow" and name != "SourceDeadLetterQueuePolicy"
    ]
    assert [_target(queue) for queues, _ in allowed for queue in queues] == ["UploadQueue", "ControlQueue"]
    for queues, statement in allowed:
        assert statement["Principal"] == {"Service": "s3.amazonaws.com"}
        assert _target(statement["Resource"]) == _target(*queues)
        assert "ArnEquals" in statement["Condition"]
    assert {one["Event"] for one in uploads} == {"s3:ObjectCreated:*"}
    assert [one["Filter"]["S3Key"]["Rules"] for one in uploads] == [
        [{"Name": "prefix", "Value": prefix}] for prefix in ("inbox/", "validate/")
    ]
    assert bucket["NotificationConfiguration"]["EventBridgeConfiguration"] == {"EventBridgeEnabled": True}
    assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}
    assert statement["Condition"]["ArnEquals"]["aws:SourceArn"]["Fn::Sub"][1]["Name"] == bucket["BucketName"]
    assert "UploadQueuePolicy" in _as_list(template["Resources"]["Bucket"]["DependsOn"])


def test_table_is_kept_and_can_be_put_back(template):
    table = template["Resources"]["Table"]
    properties = table["Properties"]

    assert table["DeletionPolicy"] == table["UpdateReplacePolicy"] == "Retain"
    assert properties["BillingMode"] == "PAY_PER_REQUEST"
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert _resolved(properties["SSESpecification"]) == {"SSEEnabled": True, "SSEType": "KMS"}
    assert properties["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}


def test_table_has_one_sparse_index_of_what_is_due(of_type):
    (table,) = of_type("AWS::DynamoDB::Table").values()
    types = {attribute["AttributeName"]: attribute["AttributeType"] for attribute in table["AttributeDefinitions"]}
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


def test_every_dead_letter_queue_function_and_worrying_count_has_alarms(of_type):
    alarms = of_type("AWS::CloudWatch::Alarm").values()
    watched = {
        (alarm["MetricName"], _target(alarm["Dimensions"][0]["Value"]))
        for alarm in alarms
        if alarm["Namespace"].startswith("AWS/")
    }
    dead_letters = {name for name in of_type("AWS::SQS::Queue") if name.endswith("DeadLetterQueue")}

    assert len(dead_letters) == 6
    assert {("ApproximateNumberOfMessagesVisible", name) for name in dead_letters} <= watched
    for function in of_type("AWS::Lambda::Function"):
        assert {("Errors", function), ("Throttles", function)} <= watched
    counted = {alarm["MetricName"] for alarm in alarms if alarm["Namespace"] == "Dropbatch"}
    assert counted == {
        *("Ticks", "OldestPendingAge", "TokenRefused", "QuotaSpent", "Outage"),
        *("AmbiguousSubmits", "StuckItems", "LawsBroken", "Errors"),
    }
    assert counted < set(METRICS)
    for alarm in alarms:
        assert alarm["AlarmActions"]["Fn::If"][0] == "Notifies"
        assert "Metrics" not in alarm  # Metric math would cost more, and no local AWS knows it.


def test_what_is_counted_is_counted_for_this_stack_alone(of_type):
    for function in of_type("AWS::Lambda::Function").values():
        assert function["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"] == {"Ref": "AWS::StackName"}
    for alarm in of_type("AWS::CloudWatch::Alarm").values():
        if alarm["Namespace"] == "Dropbatch":
            assert alarm["Dimensions"] == [{"Name": "service", "Value": {"Ref": "AWS::StackName"}}]


def test_missing_data_raises_an_alarm_for_ticks_alone_and_not_on_a_first_deployment(of_type):
    alarms = of_type("AWS::CloudWatch::Alarm")

    # A new alarm is INSUFFICIENT_DATA, and actions run only when the state changes. With `breaching` it would go to
    # ALARM before the first tick.
    assert {name for name, alarm in alarms.items() if alarm["TreatMissingData"] != "notBreaching"} == {"NoTickAlarm"}
    assert {name for name, alarm in alarms.items() if "InsufficientDataActions" in alarm} == {"NoTickAlarm"}
    no_tick = alarms["NoTickAlarm"]
    assert no_tick["TreatMissingData"] == "missing"
    assert no_tick["InsufficientDataActions"] == no_tick["AlarmActions"]
    assert no_tick["Period"] == {"Fn::If": ["TicksEachMinute", 60, 86_400]}
    assert no_tick["EvaluationPeriods"] == {"Fn::If": ["TicksEachMinute", 5, 1]}


def test_each_alarm_has_its_page_in_the_runbook(of_type):
    headings = re.findall(r"^### (.+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    told = {name for heading in headings for name in re.findall(r"`(\w+Alarm)`", heading)}

    assert told == set(of_type("AWS::CloudWatch::Alarm"))


def test_dashboard_shows_every_alarm_and_no_widget_covers_another(of_type):
    (dashboard,) = of_type("AWS::CloudWatch::Dashboard").values()
    body = dashboard["DashboardBody"]["Fn::Sub"]
    alarms, *widgets = json.loads(body)["widgets"]

    # An alarm that is there only with some parameters cannot be named in the dashboard's text.
    always = {name for name in of_type("AWS::CloudWatch::Alarm") if name != "SourceDeadLetterAlarm"}
    assert set(re.findall(r"\$\{(\w+)\.Arn\}", body)) == always
    taken = [
        (x, y)
        for widget in (alarms, *widgets)
        for x in range(widget["x"], widget["x"] + widget["width"])
        for y in range(widget["y"], widget["y"] + widget["height"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert all(widget["properties"]["title"] for widget in widgets)


def test_each_job_that_is_over_may_be_told_of_and_nothing_else():
    (told,) = [one for one in iam.grants("PollRole", _Names(), CHOICES) if one.action == "events:PutEvents"]

    assert told.resource.endswith(":event-bus/default")
    assert set(told.condition) == {
        ("StringEquals", "events:source", (SOURCE,)),
        ("StringEquals", "events:detail-type", (DETAIL_TYPE,)),
    }
    assert not any(_may(role, "events:PutEvents") for role in ("SubmitRole", "PollTickRole"))


def test_a_failed_job_of_this_stack_is_mailed_where_there_is_an_address(template, of_type):
    rule = of_type("AWS::Events::Rule")["FailedJobRule"]
    (policy,) = of_type("AWS::SNS::TopicPolicy").values()

    assert rule["EventPattern"] == {
        "source": [SOURCE],
        "detail-type": [DETAIL_TYPE],
        "detail": {"state": ["failed"], "results": {"bucket": [{"Ref": "Bucket"}]}},
    }
    assert rule["Targets"][0]["Arn"] == {"Ref": "Notifications"}
    *allowed, denied = policy["PolicyDocument"]["Statement"]
    publishers = [statement["Principal"]["Service"] for statement in allowed]
    assert publishers == ["cloudwatch.amazonaws.com", "events.amazonaws.com"]
    assert (denied["Effect"], denied["Condition"]) == ("Deny", {"Bool": {"aws:SecureTransport": "false"}})
    for name in ("Notifications", "FailedJobRule", "NotificationsPolicy"):
        assert template["Resources"][name]["Condition"] == "Notifies"


def test_the_disks_hold_the_largest_replies_and_the_parts_made_of_them(source):
    poll, submit = (source["Resources"][name]["Properties"] for name in ("PollFunction", "SubmitFunction"))
    assert max(THREADS, BATCHES_PER_MESSAGE) * 2 * MAX_REPLY_BYTES < poll["EphemeralStorage"]["Size"] << 20
    assert "EphemeralStorage" not in submit
    assert MAX_REPLY_BYTES < 512 << 20


# ── the source bucket ────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_rule_of_the_source_bucket_sends_to_the_queue_of_uploads(of_type):
    (rule,) = [one for one in of_type("AWS::Events::Rule").values() if "aws.s3" in one["EventPattern"]["source"]]
    pattern = _resolved(rule["EventPattern"], HasSourcePrefix=True)
    assert pattern == {
        "source": ["aws.s3"],
        "detail-type": ["Object Created"],
        "detail": {"bucket": {"name": ["<SourceBucketName>"]}, "object": {"key": [{"prefix": "<SourcePrefix>"}]}},
    }
    assert "object" not in _resolved(rule["EventPattern"], HasSourcePrefix=False)["detail"]
    (target,) = _resolved(rule["Targets"])
    assert target["Arn"] == "<UploadQueue.Arn>"
    assert target["DeadLetterConfig"] == {"Arn": "<SourceDeadLetterQueue.Arn>"}

    policies = of_type("AWS::SQS::QueuePolicy")
    for name, queue in (("UploadQueuePolicy", "UploadQueue"), ("SourceDeadLetterQueuePolicy", "SourceDeadLetterQueue")):
        statements = _resolved(policies[name]["PolicyDocument"]["Statement"], UsesSource=True, NamesBucket=True)
        (sends,) = [one for one in statements if one["Sid"] == "SourceRuleSends"]
        assert sends["Resource"] == f"<{queue}.Arn>"
        assert sends["Condition"] == {"ArnEquals": {"aws:SourceArn": "<SourceRule.Arn>"}}
    without = _resolved(policies["UploadQueuePolicy"]["PolicyDocument"]["Statement"], NamesBucket=True)
    assert "SourceRuleSends" not in [one["Sid"] for one in without]


def test_submit_alone_reads_the_source_bucket_and_nobody_writes_there():
    source = "arn:<AWS::Partition>:s3:::<SourceBucketName>"
    for role in ROLES:
        granted = iam.grants(role, _Names(), CHOICES | {"UsesSource": True})
        found = {grant.action for grant in granted if source in grant.resource}
        wanted = {"s3:GetObject", "s3:GetObjectVersion", "s3:ListBucket"} if role == "SubmitRole" else set()
        assert found == wanted, role
        assert not any(source in one.resource for one in iam.grants(role, _Names(), CHOICES))

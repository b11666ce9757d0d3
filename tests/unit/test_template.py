"""House rules of the template, checked on what SAM makes of it, offline.

What local AWSs ignore (lifecycle, time to live, encryption, alarms) is promised here and nowhere else.
"""

import json
import re
from pathlib import Path

import pytest
from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

from shared.notices import JOB_OVER, SOURCE
from shared.observability import METRICS
from shared.settings import ENVIRONMENT

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


def _statements(of_type):
    for role, properties in of_type("AWS::IAM::Role").items():
        for policy in properties["Policies"]:
            for statement in policy["PolicyDocument"]["Statement"]:
                yield role, statement
    for name, properties in of_type("AWS::IAM::ManagedPolicy").items():
        for statement in properties["PolicyDocument"]["Statement"]:
            yield name, statement


def test_there_are_two_functions_and_what_they_need(of_type):
    assert set(of_type("AWS::Lambda::Function")) == {"SubmitFunction", "PollFunction"}
    assert len(of_type("AWS::S3::Bucket")) == 1
    assert len(of_type("AWS::DynamoDB::Table")) == 1
    assert len(of_type("AWS::SQS::Queue")) == 7
    assert len(of_type("AWS::Lambda::EventSourceMapping")) == 3
    assert len(of_type("AWS::Scheduler::Schedule")) == 1


def test_parameters_are_those_of_the_design(source):
    told = source["Parameters"]

    assert set(told) == {
        "CloudflareAccountId",
        "CloudflareApiToken",
        "CloudflareApiTokenSecretArn",
        "WorkersAiBaseUrl",
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
    }
    assert {name for name, parameter in told.items() if "Default" not in parameter} == {"CloudflareAccountId"}
    assert all(parameter["Description"] for parameter in told.values())
    defaults = [told[name]["Default"] for name in ("MaxRequestsPerBatch", "MaxBatchBytes", "ApiCallsPerMinute")]
    assert defaults == [500, 9_500_000, 200]
    assert told["CloudflareApiToken"]["NoEcho"] is True
    for name, parameter in told.items():
        limits = {"AllowedPattern", "AllowedValues"} if parameter["Type"] == "String" else {"MinValue", "MaxValue"}
        assert limits & set(parameter), f"{name} takes anything"


def test_outputs_are_those_of_the_design(template):
    assert set(template["Outputs"]) == {
        "BucketName",
        "TableName",
        "SubmitFunctionName",
        "PollFunctionName",
        "UploadQueueUrl",
        "UploadDeadLetterQueueUrl",
        "SubmitQueueUrl",
        "SubmitDeadLetterQueueUrl",
        "PollQueueUrl",
        "PollDeadLetterQueueUrl",
        "PollTickDeadLetterQueueUrl",
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
    assert bool(re.search(source["Parameters"]["WorkersAiBaseUrl"]["AllowedPattern"], url)) is taken


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
        ("DefaultModel", "", True),
        ("DefaultModel", "@cf/baai/bge-small-en-v1.5", True),
        ("DefaultModel", "@cf/../../x", False),
        ("BucketName", "", True),
        ("BucketName", "My_Bucket", False),
        ("PollSchedule", "rate(1 minute)", True),
        ("NotificationEmail", "ops@example.com", True),
        ("NotificationEmail", "ops", False),
    ],
)
def test_parameters_are_checked_before_anything_is_made(source, name, value, taken):
    assert bool(re.search(source["Parameters"][name]["AllowedPattern"], value)) is taken


def test_a_token_or_a_secret_must_be_given(source):
    assert "TokenIsGiven" in source["Rules"]


def test_functions_get_exactly_the_settings_they_read(of_type):
    for name, function in of_type("AWS::Lambda::Function").items():
        assert set(function["Environment"]["Variables"]) == ENVIRONMENT | POWERTOOLS | ALLOCATOR, name


def test_no_token_is_in_the_environment(of_type):
    for function in of_type("AWS::Lambda::Function").values():
        assert "CloudflareApiToken" not in re.findall(r'"Ref": "(\w+)"', json.dumps(function["Environment"]))


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
        assert queue["SqsManagedSseEnabled"] is True
        assert "KmsMasterKeyId" not in queue


def test_a_missed_tick_is_not_made_up_for(of_type):
    (tick,) = of_type("AWS::Scheduler::Schedule").values()
    (invoke,) = of_type("AWS::Lambda::EventInvokeConfig").values()

    assert tick["ScheduleExpression"] == {"Ref": "PollSchedule"}
    assert tick["Target"]["RetryPolicy"]["MaximumRetryAttempts"] == 0
    assert tick["Target"]["DeadLetterConfig"]
    assert json.loads(tick["Target"]["Input"]) == {}
    assert _target(tick["Target"]["Arn"]) == _target(invoke["FunctionName"]) == "PollFunction"
    assert invoke["MaximumRetryAttempts"] == 0


def test_roles_name_single_actions_on_single_resources(of_type):
    for role, statement in _statements(of_type):
        for action in _as_list(statement["Action"]):
            assert "*" not in action, f"{role}: {action}"
        if statement["Sid"] == "Trace":
            # X-Ray has no resources: AWS accepts only the star for these two actions.
            assert set(statement["Action"]) == {"xray:PutTraceSegments", "xray:PutTelemetryRecords"}
        else:
            assert "*" not in _as_list(statement["Resource"]), f"{role}: {statement['Sid']}"


def test_each_function_has_a_role_of_its_own(of_type):
    roles = [_target(function["Role"]) for function in of_type("AWS::Lambda::Function").values()]

    assert len(set(roles)) == 2
    assert set(roles) | {"PollTickRole"} == set(of_type("AWS::IAM::Role"))


def _may(of_type, role, action):
    """The resources on which a role may do something, as text."""
    return [
        json.dumps(resource)
        for owner, statement in _statements(of_type)
        if owner == role and action in _as_list(statement["Action"])
        for resource in _as_list(statement["Resource"])
    ]


def test_nobody_may_delete_or_read_the_whole_table(of_type):
    forbidden = ("s3:DeleteObject", "s3:DeleteObjectVersion", "dynamodb:Scan", "sqs:PurgeQueue")
    for role in of_type("AWS::IAM::Role"):
        assert [action for action in forbidden if _may(of_type, role, action)] == []

    (deletes,) = [s for _, s in _statements(of_type) if "dynamodb:DeleteItem" in _as_list(s["Action"])]
    assert deletes["Condition"] == {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": ["CONTROL"]}}


def test_poll_never_reads_uploads_and_submit_never_writes_results(of_type):
    assert not any("inbox/" in resource for resource in _may(of_type, "PollRole", "s3:GetObject"))
    written = [resource for resource in _may(of_type, "SubmitRole", "s3:PutObject") if "results/" in resource]
    assert written == [json.dumps({"Fn::Sub": "${Bucket.Arn}/results/*/status.json"})]
    for role in of_type("AWS::IAM::Role"):
        assert not any("inbox/" in resource for resource in _may(of_type, role, "s3:PutObject"))


def test_submit_does_not_send_to_the_queue_of_uploads(of_type):
    assert not any("UploadQueue" in resource for resource in _may(of_type, "SubmitRole", "sqs:SendMessage"))


def test_one_secret_is_read_by_the_functions_alone(of_type):
    readers = {
        owner
        for owner, statement in _statements(of_type)
        if "secretsmanager:GetSecretValue" in _as_list(statement["Action"])
    }

    assert readers == {"SubmitRole", "PollRole"}


def test_bucket_is_private_versioned_encrypted_and_stays(template):
    bucket = template["Resources"]["Bucket"]
    properties = bucket["Properties"]

    assert bucket["DeletionPolicy"] == bucket["UpdateReplacePolicy"] == "Retain"
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(properties["PublicAccessBlockConfiguration"]) == 4
    assert properties["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    assert properties["BucketEncryption"]


def test_bucket_is_spoken_to_over_tls_only(of_type):
    (policy,) = of_type("AWS::S3::BucketPolicy").values()
    (statement,) = policy["PolicyDocument"]["Statement"]

    assert (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", "*", "s3:*")
    assert statement["Condition"]["Bool"] == {"aws:SecureTransport": "false"}
    assert statement["Condition"]["NotIpAddress"] == {"aws:SourceIp": "127.0.0.0/8"}


def test_bucket_forgets_what_nobody_needs(of_type):
    (bucket,) = of_type("AWS::S3::Bucket").values()
    rules = bucket["LifecycleConfiguration"]["Rules"]
    plain = {rule["Id"]: rule for rule in rules if "Id" in rule}

    assert plain["remains-of-uploads"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert "Prefix" not in plain["remains-of-uploads"]
    assert (plain["staging"]["Prefix"], plain["staging"]["ExpirationInDays"]) == ("staging/", 60)
    assert plain["staging"]["NoncurrentVersionExpiration"]
    assert plain["results"]["ExpirationInDays"]["Fn::If"][2] == {"Ref": "ResultRetentionDays"}
    (inbox,) = [rule["Fn::If"] for rule in rules if "Fn::If" in rule]
    assert inbox[0] == "ExpiresInbox"
    assert inbox[1]["ExpirationInDays"] == {"Ref": "InboxRetentionDays"}


def test_uploads_are_told_of_once_and_by_our_bucket_only(template, of_type):
    (bucket,) = of_type("AWS::S3::Bucket").values()
    (told,) = bucket["NotificationConfiguration"]["QueueConfigurations"]
    (policy,) = of_type("AWS::SQS::QueuePolicy").values()
    (statement,) = policy["PolicyDocument"]["Statement"]

    assert told["Event"] == "s3:ObjectCreated:*"
    assert told["Filter"] == {"S3Key": {"Rules": [{"Name": "prefix", "Value": "inbox/"}]}}
    assert _target(told["Queue"]) == "UploadQueue"
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
    assert properties["SSESpecification"] == {"SSEEnabled": True}
    assert properties["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}
    assert properties["DeletionProtectionEnabled"] is True


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

    assert len(dead_letters) == 4
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


def test_that_nothing_is_told_is_an_alarm_for_ticks_alone(of_type):
    alarms = of_type("AWS::CloudWatch::Alarm")
    breaching = {name for name, alarm in alarms.items() if alarm["TreatMissingData"] == "breaching"}

    assert breaching == {"NoTickAlarm"}
    assert alarms["NoTickAlarm"]["Period"] == {"Fn::If": ["TicksEachMinute", 300, 86_400]}


def test_each_alarm_has_its_page_in_the_runbook(of_type):
    headings = re.findall(r"^### (.+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    told = {name for heading in headings for name in re.findall(r"`(\w+Alarm)`", heading)}

    assert told == set(of_type("AWS::CloudWatch::Alarm"))


def test_dashboard_shows_every_alarm_and_no_widget_covers_another(of_type):
    (dashboard,) = of_type("AWS::CloudWatch::Dashboard").values()
    body = dashboard["DashboardBody"]["Fn::Sub"]
    alarms, *widgets = json.loads(body)["widgets"]

    assert set(re.findall(r"\$\{(\w+)\.Arn\}", body)) == set(of_type("AWS::CloudWatch::Alarm"))
    taken = [
        (x, y)
        for widget in (alarms, *widgets)
        for x in range(widget["x"], widget["x"] + widget["width"])
        for y in range(widget["y"], widget["y"] + widget["height"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    assert all(widget["properties"]["title"] for widget in widgets)


def test_each_job_that_is_over_may_be_told_of_and_nothing_else(of_type):
    (told,) = [s for _, s in _statements(of_type) if "events:PutEvents" in _as_list(s["Action"])]

    assert told["Resource"]["Fn::Sub"].endswith(":event-bus/default")
    assert told["Condition"] == {"StringEquals": {"events:source": SOURCE, "events:detail-type": JOB_OVER}}


def test_a_failed_job_of_this_stack_is_mailed_where_there_is_an_address(template, of_type):
    (rule,) = of_type("AWS::Events::Rule").values()
    (policy,) = of_type("AWS::SNS::TopicPolicy").values()

    assert rule["EventPattern"] == {
        "source": [SOURCE],
        "detail-type": [JOB_OVER],
        "detail": {"state": ["failed"], "source": {"bucket": [{"Ref": "Bucket"}]}},
    }
    assert rule["Targets"][0]["Arn"] == {"Ref": "Notifications"}
    publishers = [statement["Principal"]["Service"] for statement in policy["PolicyDocument"]["Statement"]]
    assert publishers == ["cloudwatch.amazonaws.com", "events.amazonaws.com"]
    for name in ("Notifications", "FailedJobRule", "NotificationsPolicy"):
        assert template["Resources"][name]["Condition"] == "Notifies"

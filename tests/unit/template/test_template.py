"""The template: functions, storage and queues, alarms, and what it asks for."""

import json
import re
import subprocess

import pytest

from functions.poll.contain import THREADS
from functions.poll.due_polls import BATCHES_PER_MESSAGE
from local.processes import bare_environment
from shared.observability import METRICS
from shared.settings import ENVIRONMENT
from shared.spool import MAX_REPLY_BYTES
from tests.support.aws.translated_template import NOT_TLS, ROOT, resolved, target
from tests.support.terminal import converse
from tools.plan import concurrency

# ── runtime, settings, logs, concurrency, disks, and the schedule ─────────────────────────────────
POWERTOOLS = {"POWERTOOLS_SERVICE_NAME", "POWERTOOLS_METRICS_NAMESPACE", "POWERTOOLS_LOG_LEVEL"}
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}


def test_functions_get_exactly_settings_they_read(of_type):
    for name, function in of_type("AWS::Lambda::Function").items():
        assert set(function["Environment"]["Variables"]) == ENVIRONMENT | POWERTOOLS | ALLOCATOR, (
            name
        )


def test_sources_report_failures_and_are_bounded(of_type):
    for mapping in of_type("AWS::Lambda::EventSourceMapping").values():
        assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert mapping["BatchSize"] == 1
        most = mapping["ScalingConfig"]["MaximumConcurrency"]
        assert 2 <= resolved(most, UsesWorker=True) <= 10


def test_schedule_does_not_retry(of_type):
    (tick,) = of_type("AWS::Scheduler::Schedule").values()
    (invoke,) = of_type("AWS::Lambda::EventInvokeConfig").values()

    assert tick["ScheduleExpression"] == "rate(1 minute)"
    assert tick["Target"]["RetryPolicy"]["MaximumRetryAttempts"] == 0
    assert tick["Target"]["DeadLetterConfig"]
    assert json.loads(tick["Target"]["Input"]) == {}
    assert target(tick["Target"]["Arn"]) == target(invoke["FunctionName"]) == "PollFunction"
    assert invoke["MaximumRetryAttempts"] == 0


def test_disks_hold_largest_replies_and_parts(source):
    disk = source["Resources"]["PollFunction"]["Properties"]["EphemeralStorage"]["Size"]
    assert max(THREADS, BATCHES_PER_MESSAGE) * 2 * MAX_REPLY_BYTES < disk << 20
    assert "EphemeralStorage" not in source["Resources"]["SubmitFunction"]["Properties"]
    assert MAX_REPLY_BYTES < 512 << 20


# ── the bucket, the table, the secrets and the queues ─────────────────────────────────────────────
def test_data_can_be_encrypted_with_own_key(of_type):
    (bucket,) = of_type("AWS::S3::Bucket").values()
    (table,) = of_type("AWS::DynamoDB::Table").values()
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    keys = {
        "bucket": rule["ServerSideEncryptionByDefault"],
        "table": table["SSESpecification"],
        **{name: queue["KmsMasterKeyId"] for name, queue in of_type("AWS::SQS::Queue").items()},
        **{name: topic["KmsMasterKeyId"] for name, topic in of_type("AWS::SNS::Topic").items()},
        **{name: logs["KmsKeyId"] for name, logs in of_type("AWS::Logs::LogGroup").items()},
        **{name: one["KmsKeyId"] for name, one in of_type("AWS::SecretsManager::Secret").items()},
    }

    for name, key in keys.items():
        assert "<KmsKeyArn>" in str(resolved({"key": key}, UsesOwnKey=True)), name
        assert "<KmsKeyArn>" not in str(resolved({"key": key})), name
    assert len(keys) == 15


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

    who = statement["Effect"], statement["Principal"], statement["Action"]
    assert who == ("Deny", "*", "s3:*")
    assert statement["Resource"] == ["<Bucket.Arn>", "<Bucket.Arn>/*"]
    assert statement["Condition"] == NOT_TLS


def test_data_is_protected_unless_owner_declines(of_type, source):
    (policy,) = of_type("AWS::S3::BucketPolicy").values()
    (table,) = of_type("AWS::DynamoDB::Table").values()
    rules = resolved(policy["PolicyDocument"]["Statement"])
    (kept,) = [one for one in rules if one["Sid"] == "KeepBucket"]

    assert source["Parameters"]["DeletionProtection"]["Default"] == "yes"
    assert (kept["Effect"], kept["Principal"], kept["Action"]) == ("Deny", "*", "s3:DeleteBucket")
    assert resolved(table["DeletionProtectionEnabled"]) is True
    assert resolved(table["DeletionProtectionEnabled"], ProtectsData=False) is False


def test_table_is_retained_with_pitr(template):
    table = template["Resources"]["Table"]
    properties = table["Properties"]

    assert table["DeletionPolicy"] == table["UpdateReplacePolicy"] == "Retain"
    assert properties["BillingMode"] == "PAY_PER_REQUEST"
    assert properties["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
    assert resolved(properties["SSESpecification"]) == {"SSEEnabled": True, "SSEType": "KMS"}
    assert properties["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}


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


def test_queues_require_tls(of_type):
    covered = []
    for policy in of_type("AWS::SQS::QueuePolicy").values():
        covered += [target(queue) for queue in policy["Queues"]]
        rules = resolved(policy["PolicyDocument"]["Statement"], NamesBucket=True)
        (denied,) = [one for one in rules if one["Effect"] == "Deny"]
        assert (denied["Principal"], denied["Action"]) == ("*", "sqs:*")
        assert denied["Condition"] == NOT_TLS

    # Of two policies of one queue the last would count.
    assert sorted(covered) == sorted(of_type("AWS::SQS::Queue"))


# ── alarms, the dashboard, and mails about failed jobs ────────────────────────────────────────────
def test_queues_functions_and_counts_have_alarms(of_type):
    alarms = of_type("AWS::CloudWatch::Alarm").values()
    watched = {
        (alarm["MetricName"], target(alarm["Dimensions"][0]["Value"]))
        for alarm in alarms
        if alarm["Namespace"].startswith("AWS/")
    }
    dead_letters = {name for name in of_type("AWS::SQS::Queue") if name.endswith("DeadLetterQueue")}

    assert len(dead_letters) == 3
    assert {("ApproximateNumberOfMessagesVisible", name) for name in dead_letters} <= watched
    for function in of_type("AWS::Lambda::Function"):
        assert ("Errors", function) in watched
    # Without its ticks nothing is polled: `NoTickAlarm` is raised sooner than one of its throttles.
    assert ("Throttles", "SubmitFunction") in watched
    counted = {alarm["MetricName"] for alarm in alarms if alarm["Namespace"] == "Dropbatch"}
    assert counted == {
        *("Ticks", "OldestPendingAge", "Paused", "AmbiguousSubmits", "StuckItems", "Errors")
    }
    assert counted < set(METRICS)
    for alarm in alarms:
        assert resolved(alarm["AlarmActions"], Notifies=True) == ["<Notifications>"]
        assert "Metrics" not in alarm  # Metric math would cost more, and no local AWS knows it.


def test_missing_ticks_raise_alarm(of_type):
    """Missing data raises an alarm for ticks alone, and not on a first deployment."""
    alarms = of_type("AWS::CloudWatch::Alarm")

    # A new alarm is INSUFFICIENT_DATA, and actions run only when the state changes. With
    # `breaching` it would go to ALARM before the first tick.
    told = [name for name, alarm in alarms.items() if "InsufficientDataActions" in alarm]
    no_tick = alarms.pop("NoTickAlarm")
    assert {alarm["TreatMissingData"] for alarm in alarms.values()} == {"notBreaching"}
    assert told == ["NoTickAlarm"]
    assert no_tick["TreatMissingData"] == "missing"
    assert no_tick["InsufficientDataActions"] == no_tick["AlarmActions"]
    assert (no_tick["Period"], no_tick["EvaluationPeriods"]) == (60, 5)


def test_each_alarm_has_its_page_in_runbook(of_type):
    headings = re.findall(r"^### (.+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    told = {name for heading in headings for name in re.findall(r"`(\w+Alarm)`", heading)}

    assert told == set(of_type("AWS::CloudWatch::Alarm"))


def test_runbook_says_how_many_functions_run_at_once():
    page = (ROOT / "docs/operations.md").read_text()
    said = re.findall(r"Dropbatch uses (\d+) at most, with `Transport=worker` (\d+)\.", page)
    assert said == [(str(concurrency()), str(concurrency(worker=True)))]


# ── parameters, their checks, rules and outputs ───────────────────────────────────────────────────
def test_parameters_have_defaults_and_limits(source):
    told = source["Parameters"]
    asked = [name for name, parameter in told.items() if "Default" not in parameter]
    assert asked == ["CloudflareAccountId"]
    assert all(parameter["Description"] for parameter in told.values())
    limits = ("MaxRequestsPerBatch", "MaxBatchBytes", "ApiCallsPerMinute")
    assert [told[name]["Default"] for name in limits] == [5_000, 9_500_000, 200]
    assert not [name for name, parameter in told.items() if "NoEcho" in parameter], (
        "SAM asks for it without end"
    )
    for name, parameter in told.items():
        limits = {"AllowedPattern", "AllowedValues", "MinValue", "MaxValue"}
        assert limits & set(parameter), f"{name} takes anything"


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
def test_token_goes_over_https_or_stays_here(source, url, taken):
    for name in ("WorkersAiBaseUrl", "WorkerUrl"):
        optional = name == "WorkerUrl" and not url
        assert bool(re.search(source["Parameters"][name]["AllowedPattern"], url)) is (
            taken or optional
        ), name


SECRET = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:cf/token"
KEYS = "arn:aws:kms:eu-west-1:123456789012"
TAKEN = {
    "CloudflareAccountId": ["0123456789abcdef0123456789abcdef"],
    "CloudflareApiTokenSecretArn": [f"{SECRET}-AbCdEf"],
    "AiGatewayId": ["my-gateway_1"],
    "WorkerSecretArn": [f"{SECRET}-AbCdEf"],
    "SourceBucketName": ["", "team.exports"],
    "SourcePrefix": ["exports/@cf/"],
    "DefaultModel": ["", "@cf/baai/bge-small-en-v1.5"],
    "BucketName": [""],
    "NotificationEmail": ["ops@example.com"],
    "KmsKeyArn": [f"{KEYS}:key/1234abcd-12ab-34cd-56ef-1234567890ab"],
    "PermissionsBoundaryArn": ["arn:aws:iam::123456789012:policy/boundary"],
}
REFUSED = {
    "CloudflareAccountId": ["0123456789ABCDEF0123456789ABCDEF"],
    "CloudflareApiTokenSecretArn": [SECRET],
    "AiGatewayId": ["a/b"],
    "WorkerSecretArn": ["worker"],
    "AiGatewayTokenSecretArn": ["gateway"],
    "SourceBucketName": ["arn:aws:s3:::team-exports"],
    "SourcePrefix": ["exports/*", "${aws:username}/"],
    "DefaultModel": ["@cf/../../x"],
    "BucketName": ["My_Bucket"],
    "NotificationEmail": ["ops"],
    "KmsKeyArn": [f"{KEYS}:alias/mine"],
    "PermissionsBoundaryArn": ["boundary"],
}


def test_parameters_are_checked_first(source, subtests):
    for values, taken in ((TAKEN, True), (REFUSED, False)):
        for name, value in [(one, value) for one, many in values.items() for value in many]:
            with subtests.test(name, value=value):
                pattern = source["Parameters"][name]["AllowedPattern"]
                assert bool(re.search(pattern, value)) is taken


ASK = """
from samcli.commands._utils.template import get_template_parameters
from samcli.commands.deploy.guided_context import GuidedContext

for _ in range({times}):
    asked = GuidedContext.prompt_parameters(
        object.__new__(GuidedContext), get_template_parameters("template.yaml"), {{}}, "", ""
    )
    print("ANSWERED", {{name: one["Value"] for name, one in asked.items()}})
"""
STACKS = [
    {},
    {"CloudflareApiTokenSecretArn": f"{SECRET}-AbCdEf"},
    {"Transport": "worker", "WorkerUrl": "https://w.example"},
]
"""What somebody answers; one process asks for all of them, since the SAM CLI takes 2 s to start."""


@pytest.mark.build
def test_enter_passes_every_optional_question(source):
    parameters, asked = list(source["Parameters"]), []

    def answer(line):
        if not (line.startswith("Parameter ") and line.endswith(":")):
            return None
        stack, number = divmod(len(asked), len(parameters))
        name = line.split()[1].rstrip(":")
        assert name == parameters[number], f"{name} is asked again, or too early: {STACKS[stack]}"
        asked.append(name)
        return STACKS[stack].get(name, TAKEN[name][0] if name == "CloudflareAccountId" else "")

    command = [str(ROOT / ".local/sam/bin/python"), "-c", ASK.format(times=len(STACKS))]
    code, shown = converse(
        command, answer, ROOT, {**bare_environment(), "SAM_CLI_TELEMETRY": "0"}, quiet=0.03
    )

    assert code == 0, shown
    assert asked == parameters * len(STACKS)
    assert shown.count("ANSWERED") == len(STACKS)


@pytest.mark.build
def test_programs_of_make_find_their_packages():
    programs = re.findall(
        r"^\t\.local/sam/bin/python -m (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert "tools.deploy" in programs

    command = [ROOT / ".local/sam/bin/python", "-c", f"import {', '.join(programs)}"]
    done = subprocess.run(
        command, cwd=ROOT, env=bare_environment(), capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")

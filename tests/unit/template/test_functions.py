"""The two functions: runtime, settings, logs, concurrency, disks, and the schedule."""

import json
import re

from functions.poll.due import THREADS
from functions.poll.polling import BATCHES_PER_MESSAGE
from shared.settings import ENVIRONMENT
from shared.spool import MAX_REPLY_BYTES
from tests.support.aws.translated_template import resolved, target
from tools import pack

POWERTOOLS = {
    "POWERTOOLS_SERVICE_NAME",
    "POWERTOOLS_METRICS_NAMESPACE",
    "POWERTOOLS_LOG_LEVEL",
}
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}


def test_there_are_two_functions_and_what_they_need(of_type):
    assert set(of_type("AWS::Lambda::Function")) == {"SubmitFunction", "PollFunction"}
    assert len(of_type("AWS::S3::Bucket")) == 1
    assert len(of_type("AWS::DynamoDB::Table")) == 1
    assert len(of_type("AWS::SQS::Queue")) == 8
    assert len(of_type("AWS::Lambda::EventSourceMapping")) == 5
    assert len(of_type("AWS::Scheduler::Schedule")) == 1


def test_functions_get_exactly_settings_they_read(of_type):
    for name, function in of_type("AWS::Lambda::Function").items():
        assert set(function["Environment"]["Variables"]) == ENVIRONMENT | POWERTOOLS | ALLOCATOR, (
            name
        )


def test_no_token_is_in_environment(of_type):
    for function in of_type("AWS::Lambda::Function").values():
        named = set(re.findall(r'"Ref": "(\w+)"', json.dumps(function["Environment"])))
        assert {name for name in named if re.search("Token|Secret", name)} == {
            "AiGatewayTokenSecretArn",
            "CloudflareApiTokenSecretArn",
            "WorkerSecretArn",
        }


def test_functions_are_what_is_packed(template, of_type, source):
    assert set(source["Parameters"]["Architecture"]["AllowedValues"]) == set(pack.PROCESSORS)
    for name, function in of_type("AWS::Lambda::Function").items():
        assert function["Runtime"] == f"python{pack.LAMBDA_PYTHON}"
        assert function["Architectures"] == [{"Ref": "Architecture"}]
        assert template["Resources"][name]["Metadata"]["BuildMethod"] == "makefile"
        room = name.removesuffix("Function").lower()
        assert function["Handler"] == f"functions.{room}.handler.lambda_handler"


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
    poll, submit = (
        source["Resources"][name]["Properties"] for name in ("PollFunction", "SubmitFunction")
    )
    assert (
        max(THREADS, BATCHES_PER_MESSAGE) * 2 * MAX_REPLY_BYTES
        < poll["EphemeralStorage"]["Size"] << 20
    )
    assert "EphemeralStorage" not in submit
    assert MAX_REPLY_BYTES < 512 << 20

"""Alarms, the dashboard, and mails about failed jobs."""

import re

from shared.aws.event_bus import DETAIL_TYPE, SOURCE
from shared.observability import METRICS
from tests.support.aws.translated_template import ROOT, resolved, target


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
        *("Ticks", "OldestPendingAge", "Paused", "AmbiguousSubmits", "StuckItems", "Errors"),
    }
    assert counted < set(METRICS)
    for alarm in alarms:
        assert resolved(alarm["AlarmActions"], Notifies=True) == ["<Notifications>"]
        assert "Metrics" not in alarm  # Metric math would cost more, and no local AWS knows it.


def test_metrics_are_of_this_stack_alone(of_type):
    for function in of_type("AWS::Lambda::Function").values():
        assert function["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"] == {
            "Ref": "AWS::StackName"
        }
    for alarm in of_type("AWS::CloudWatch::Alarm").values():
        if alarm["Namespace"] == "Dropbatch":
            assert alarm["Dimensions"] == [{"Name": "service", "Value": {"Ref": "AWS::StackName"}}]


def test_missing_ticks_raise_alarm(of_type):
    """Missing data raises an alarm for ticks alone, and not on a first deployment."""
    alarms = of_type("AWS::CloudWatch::Alarm")

    # A new alarm is INSUFFICIENT_DATA, and actions run only when the state changes. With
    # `breaching` it would go to ALARM before the first tick.
    assert {
        name for name, alarm in alarms.items() if alarm["TreatMissingData"] != "notBreaching"
    } == {"NoTickAlarm"}
    assert {name for name, alarm in alarms.items() if "InsufficientDataActions" in alarm} == {
        "NoTickAlarm"
    }
    no_tick = alarms["NoTickAlarm"]
    assert no_tick["TreatMissingData"] == "missing"
    assert no_tick["InsufficientDataActions"] == no_tick["AlarmActions"]
    assert (no_tick["Period"], no_tick["EvaluationPeriods"]) == (60, 5)


def test_each_alarm_has_its_page_in_runbook(of_type):
    headings = re.findall(r"^### (.+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    told = {name for heading in headings for name in re.findall(r"`(\w+Alarm)`", heading)}

    assert told == set(of_type("AWS::CloudWatch::Alarm"))


def test_failed_job_is_mailed_if_address_is_given(template, of_type):
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
    assert (denied["Effect"], denied["Condition"]) == (
        "Deny",
        {"Bool": {"aws:SecureTransport": "false"}},
    )
    for name in ("Notifications", "FailedJobRule", "NotificationsPolicy"):
        assert template["Resources"][name]["Condition"] == "Notifies"

"""What a deployment creates and costs, and what the account's Lambda limit means for it."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from local.template import defaults, template
from tools.account_stack import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tools.answers import Answers

MAX_CALLS = 240
"""Calls a minute that Cloudflare allows a token."""
MAX_ENVIRONMENT_BYTES = 4_096
"""Lambda's limit of all names and values of a function's environment."""
KINDS = {
    "AWS::S3::Bucket": "bucket",
    "AWS::DynamoDB::Table": "table",
    "AWS::SQS::Queue": "queue",
    "AWS::Serverless::Function": "function",
    "AWS::SecretsManager::Secret": "secret",
    "AWS::CloudWatch::Alarm": "alarm",
    "AWS::CloudWatch::Dashboard": "dashboard",
}
"""The resources that a person knows by name, in the order in which they are listed."""


def resources(parameters: Mapping[str, str]) -> str:
    """The kinds of resources that a stack with these parameters has, counted."""
    has_secret = not parameters.get(
        "WorkerSecretArn" if _uses_worker(parameters) else "CloudflareApiTokenSecretArn"
    )
    counted = Counter(
        one["Type"] for one in template()["Resources"].values() if "Condition" not in one
    )
    counted |= Counter({"AWS::SecretsManager::Secret": int(has_secret)})
    named = [
        f"{counted[kind]} {word}{'s' * (counted[kind] > 1)}"
        for kind, word in KINDS.items()
        if counted[kind]
    ]
    return f"{', '.join(named)}, with their roles, policies and logs"


def _uses_worker(parameters: Mapping[str, str]) -> bool:
    return parameters.get("Transport") == "worker"


def wrong_rate(parameters: Mapping[str, str]) -> str:
    """What is wrong with the calls a minute; empty if nothing is."""
    calls = parameters.get("ApiCallsPerMinute", "")
    if _uses_worker(parameters) or not calls.isdigit() or int(calls) <= MAX_CALLS:
        return ""
    words = (
        f"ApiCallsPerMinute {calls}: Cloudflare allows a token {MAX_CALLS} calls a minute. "
        "More need "
    )
    return f"{words}Transport=worker, or another stack (docs/transports.md)."


def dollars() -> tuple[str, str]:
    """What an idle stack costs a month, and a job of a million records, as docs/limits.md says."""
    text = (ROOT / "docs/limits.md").read_text("utf-8")
    (idle,) = re.findall(r"\*\*(\$[\d.]+)\*\* a month", text)
    (job,) = re.findall(r"such a job costs (\$[\d.]+\d)", text)
    return idle, job


def concurrency(*, worker: bool = False) -> int:
    """How many functions the stack runs at once at most: those of its queues, and a tick."""
    used = 1
    for one in template()["Resources"].values():
        if one["Type"] != "AWS::Serverless::Function":
            continue
        for event in one["Properties"]["Events"].values():
            most = event["Properties"]["ScalingConfig"]["MaximumConcurrency"]
            used += most if isinstance(most, int) else most["Fn::If"][1 if worker else 2]
    return used


def about_limit(limit: int, region: str, *, worker: bool = False) -> str:
    """What an account's limit of functions that run at once means for a stack."""
    used = concurrency(worker=worker)
    may_run = f"Lambda: this account may run {limit:,} functions at once"
    if limit >= used:
        return f"{may_run}, this stack up to {used}."
    return (
        f"{may_run}, and this stack alone up to {used}. Under load it and the account's other "
        "functions are then throttled, and jobs take longer. AWS raises it for free on request:\n"
        "  aws service-quotas request-service-quota-increase --service-code lambda "
        f"--quota-code L-B99A9384 --desired-value 1000 --region {region}"
    )


def environment(parameters: Mapping[str, str], saved: Mapping[str, Any]) -> tuple[int, str]:
    """Bytes of a function's environment, at most; and the parameters with the longest values.

    Args:
        parameters: those that are given; the others have their defaults.
        saved: name, region and account of the stack.
    """
    given = defaults() | dict(parameters)
    values = {
        name: _at_most(name, value, given, saved)
        for name, value in template()["Globals"]["Function"]["Environment"]["Variables"].items()
    }
    longest = sorted(parameters, key=lambda name: -len(parameters[name]))[:3]
    size = sum(len(name) + len(value.encode()) for name, value in values.items())
    return size, ", ".join(f"{name} ({len(parameters[name])})" for name in longest)


def _at_most(name: str, value: Any, given: Mapping[str, str], saved: Mapping[str, Any]) -> str:
    """A variable's value, as long as it can get.

    CloudFormation ends the names that it makes with 12 characters.
    """
    if isinstance(value, str):
        return value
    if "Fn::If" in value:
        _, made, named = value["Fn::If"]
        secret = f"secret:{made['Fn::GetAtt']}-{'x' * 19}"
        arn = f"arn:aws-us-gov:secretsmanager:{saved['region']}:{'0' * 12}:{secret}"
        return given[named["Ref"]] or arn
    if "Fn::Join" in value:
        separator, parts = value["Fn::Join"]
        return str(separator.join(_at_most(name, part, given, saved) for part in parts))
    if "Fn::Select" in value:
        return "x" * 8  # The first digits of the stack's id.
    referenced = value["Ref"]
    if referenced in template()["Parameters"]:
        return given.get(referenced, "")
    if pseudo := {"AWS::StackName": "stack_name", "AWS::Region": "region"}.get(referenced):
        return str(saved[pseudo])
    made = f"{saved['stack_name']}-{referenced}-{'x' * 12}"
    if name.endswith("_QUEUE_URL"):
        return f"https://sqs.{saved['region']}.amazonaws.com.cn/{'0' * 12}/{made[:80]}"
    return given["BucketName"] or "dropbatch-" + "x" * 36 if referenced == "Bucket" else made


def describe(answers: Answers, saved: Mapping[str, Any], limit: str) -> str:
    """What is shown before a first deployment."""
    idle, job = dollars()
    place = f"{saved['region']}, AWS account {saved['aws_account']}"
    token = "The token goes into the stack's secret and nowhere else.\n" if answers.token else ""
    return f"""
This creates the stack "{saved["stack_name"]}" in {place}:
  {resources(answers.parameters)}.
AWS bills about {idle} a month while it is idle (an account has 10 alarms and 3 dashboards free),
and about {job} for a job of a million records (docs/limits.md). Cloudflare bills the tokens that
models use.
{token}{limit}
"""

"""What a deployment creates and costs, and what the account's Lambda limit means for it."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from local.template import template
from tools.account_stack import ROOT, DeployError
from tools.answers import Answers

MAX_CALLS = 240
"""Calls a minute that Cloudflare allows a token."""
KINDS = {
    "AWS::S3::Bucket": "bucket",
    "AWS::DynamoDB::Table": "table",
    "AWS::SQS::Queue": "queue",
    "AWS::Serverless::Function": "function",
    "AWS::CloudWatch::Alarm": "alarm",
}
"""The resources that a person knows by name, in the order in which they are listed."""


def resources() -> str:
    """The kinds of resources that each stack has, counted."""
    counted = Counter(
        one["Type"] for one in template()["Resources"].values() if "Condition" not in one
    )
    named = [f"{counted[kind]} {word}{'s' * (counted[kind] > 1)}" for kind, word in KINDS.items()]
    return f"{', '.join(named)}, with their secret, roles, policies and logs"


def check_rate(parameters: Mapping[str, str]) -> None:
    """Refuse more calls a minute than Cloudflare allows."""
    calls = parameters.get("ApiCallsPerMinute", "")
    is_worker = parameters.get("Transport") == "worker"
    if calls.isdigit() and int(calls) > MAX_CALLS and not is_worker:
        raise DeployError(
            f"ApiCallsPerMinute {calls}: Cloudflare allows a token {MAX_CALLS} calls a minute. "
            "More need Transport=worker, or another stack (docs/transports.md)."
        )


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


def describe(answers: Answers, saved: Mapping[str, Any], limit: str) -> str:
    idle, job = dollars()
    place = f"{saved['region']}, AWS account {saved['aws_account']}"
    token = "The token goes into the stack's secret and nowhere else.\n" if answers.token else ""
    return f"""
This creates the stack "{saved["stack_name"]}" in {place}:
  {resources()}.
AWS bills about {idle} a month while it is idle (an account has 10 alarms free),
and about {job} for a job of a million records (docs/limits.md). Cloudflare bills the tokens that
models use.
{token}{limit}
"""

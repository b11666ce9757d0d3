"""`doctor`: find what is wrong with a stack, and say what to do about it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Literal

from dropbatch.cli.operators import DEAD_LETTERS, QUEUE, log_group
from dropbatch.client import aws, events
from dropbatch.client.find import history
from dropbatch.core.models import catalog
from dropbatch.core.names import FINAL_JOB_STATES
from dropbatch.errors import Error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropbatch.client.stack import Stack

Level = Literal["ok", "note", "bad", "unknown"]

TICK_SECONDS = 180.0
"""A tick runs every minute. Logs arrive some seconds later."""
_ADVICE = "The policy in the stack's output OperatorPolicyArn permits it."
MAX_JOBS = 1_000
"""At most this many unfinished jobs of the last week are checked."""


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: what was checked.
        level: `ok`; `note`: worth knowing; `bad`: something does not work; `unknown`: it could not
            be checked.
        message: what was found, and what to do.
    """

    name: str
    level: Level
    message: str


def examine(stack: Stack) -> Iterator[Finding]:
    """Run the checks one after another. A check that is not permitted is a finding too."""
    for name, look in CHECKS.items():
        try:
            with aws.explained(advice=_ADVICE):
                yield from (Finding(name, level, message) for level, message in look(stack))
        except Error as error:
            yield Finding(name, "unknown", str(error))


def _stack(stack: Stack) -> Iterator[tuple[Level, str]]:
    (found,) = stack.client("cloudformation").describe_stacks(StackName=stack.name)["Stacks"]
    status = found["StackStatus"]
    if status in {"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"}:
        yield "ok", f"{stack.name}: {status}"
    elif status.endswith("_IN_PROGRESS"):
        yield (
            "note",
            (f"{stack.name}: {status}. A deployment is under way; look again when it is over."),
        )
    else:
        yield (
            "bad",
            (
                f"{stack.name}: {status}. Its events in CloudFormation show why; deploy "
                "again with `make deploy`."
            ),
        )


def _clock(stack: Stack) -> Iterator[tuple[Level, str]]:
    answer = (
        stack.s3.head_bucket(Bucket=stack.bucket)
        if stack.is_local
        else stack.s3.list_objects_v2(Bucket=stack.bucket, Prefix="inbox/", MaxKeys=1)
    )
    date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    if date is None:
        yield "unknown", "AWS returned no time."
        return
    ahead = time.time() - parsedate_to_datetime(date).timestamp()
    if abs(ahead) < aws.MAX_CLOCK_SECONDS / 5:
        yield "ok", "this machine's clock agrees with AWS"
    else:
        where = "ahead of" if ahead > 0 else "behind"
        yield (
            "bad",
            (
                f"This machine's clock is {abs(ahead):,.0f} s {where} AWS's. Set it: AWS "
                "denies requests beyond 300 s."
            ),
        )


def _functions(stack: Stack) -> Iterator[tuple[Level, str]]:
    functions = stack.client("lambda")
    for output in ("SubmitFunctionName", "PollFunctionName"):
        name = stack.outputs[output]
        found = functions.get_function_configuration(FunctionName=name)
        state, update = found.get("State", "Active"), found.get("LastUpdateStatus", "Successful")
        if state in {"Active", "Inactive"} and update == "Successful":
            yield "ok", f"{name}: {state}"
        else:
            yield (
                "bad",
                (
                    f"{name}: {state}, last update {update}: "
                    f"{found.get('StateReason', '')}. Deploy again."
                ),
            )


def _tick(stack: Stack) -> Iterator[tuple[Level, str]]:
    logs, now = stack.client("logs"), time.time()
    pages = logs.get_paginator("filter_log_events").paginate(  # Of which any may be empty.
        logGroupName=log_group(stack, stack.outputs["PollFunctionName"]),
        startTime=int((now - 2 * TICK_SECONDS) * 1000),
        filterPattern='"Ticks"',
    )
    ticked = max((event["timestamp"] for page in pages for event in page["events"]), default=None)
    if ticked is None:
        (found,) = stack.client("cloudformation").describe_stacks(StackName=stack.name)["Stacks"]
        age = now - found["CreationTime"].timestamp()
        if age < TICK_SECONDS:
            yield (
                "note",
                (f"The stack is {age:,.0f} s old; the first tick runs within a minute or two."),
            )
            return
        yield (
            "bad",
            (
                f"No tick was logged in the last {2 * TICK_SECONDS:,.0f} s. Is the "
                "schedule enabled? "
                "`dropbatch tail` shows whether the poll function fails."
            ),
        )
        return
    seconds = now - ticked / 1000
    level: Level = "ok" if seconds < TICK_SECONDS else "bad"
    yield level, f"the last tick ended {max(seconds, 0):,.0f} s ago"


def _queues(stack: Stack) -> Iterator[tuple[Level, str]]:
    waiting = _counts(stack, lambda name: name.endswith(QUEUE) and not name.endswith(DEAD_LETTERS))
    yield (
        "ok",
        ", ".join(f"{name.removesuffix(QUEUE)} {count:,}" for name, count in waiting.items())
        + " messages",
    )


def _dead_letters(stack: Stack) -> Iterator[tuple[Level, str]]:
    for name, count in _counts(stack, lambda name: name.endswith(DEAD_LETTERS)).items():
        queue = name.removesuffix(DEAD_LETTERS)
        if count:
            yield (
                "bad",
                (
                    f"{queue}: {count:,} messages failed five times. `dropbatch tail "
                    "--since 1d` shows why; when "
                    "fixed, `dropbatch redrive` sends them again."
                ),
            )
        else:
            yield "ok", f"{queue}: none"


def _counts(stack: Stack, wanted: Callable[[str], bool]) -> dict[str, int]:
    """About how many messages each queue holds."""
    sqs, name = stack.client("sqs"), "ApproximateNumberOfMessages"
    return {
        output: int(
            sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name]
        )
        for output, url in sorted(stack.outputs.items())
        if wanted(output)
    }


def _pauses(stack: Stack) -> Iterator[tuple[Level, str]]:
    word = (stack.read("control/stack") or b"").decode(errors="replace").strip()
    if word == "pause":
        yield "note", "The stack is paused by control/stack. `dropbatch resume` lifts it."
    reasons: dict[str, tuple[int, str]] = {}
    unfinished = 0
    for _, status in history(stack, datetime.now(UTC) - timedelta(days=7)):
        if status["state"] in FINAL_JOB_STATES:
            continue
        unfinished += 1
        if waiting := status.get("waiting_for"):
            count = reasons.get(waiting["code"], (0, ""))[0] + 1
            reasons[waiting["code"]] = count, waiting["message"]
        if unfinished == MAX_JOBS:
            break
    for code, (count, message) in sorted(reasons.items()):
        yield (
            ("note" if code == "paused" else "bad"),
            f"{count:,} jobs are waiting: {code}: {message}",
        )
    if not reasons and word != "pause":
        yield "ok", f"no pause; {unfinished:,} unfinished jobs of the last 7 days"


def _alarms(stack: Stack) -> Iterator[tuple[Level, str]]:
    pages = stack.client("cloudwatch").get_paginator("describe_alarms")
    raised = pages.paginate(AlarmNamePrefix=f"{stack.name}-", StateValue="ALARM").search(
        "MetricAlarms[]"
    )
    # Not of "NAME-staging".
    ours = re.compile(rf"{re.escape(stack.name)}-[A-Za-z0-9]+Alarm-[A-Za-z0-9]+")
    alarm = None
    for alarm in filter(lambda one: ours.fullmatch(one["AlarmName"]), raised):
        yield (
            "bad",
            (f"{alarm['AlarmName']}: {alarm.get('AlarmDescription') or alarm['StateReason']}"),
        )
    if alarm is None:
        yield "ok", "none raised"


def _models(stack: Stack) -> Iterator[tuple[Level, str]]:
    known = catalog()
    yield "ok", f"facts of {known.read_on}"
    model = environment_of(stack).get("DEFAULT_MODEL", "")
    if not model:
        yield "ok", "no DefaultModel: each upload names its model"
        return
    if not known.lists(model):
        yield "note", f"DefaultModel {model} is not in the list of `dropbatch models --all`."
    elif not known.find(model).batch:
        yield (
            "bad",
            (
                f"DefaultModel {model} does not take batches. `dropbatch models` lists "
                "those that do."
            ),
        )
    else:
        yield "ok", f"DefaultModel {model}"


def environment_of(stack: Stack) -> dict[str, str]:
    """The environment of the stack's submit function, which has its parameters."""
    found = stack.client("lambda").get_function_configuration(
        FunctionName=stack.outputs["SubmitFunctionName"]
    )
    variables: dict[str, str] = found.get("Environment", {}).get("Variables", {})
    return variables


def _token(stack: Stack) -> Iterator[tuple[Level, str]]:
    import os

    from dropbatch.cli.cloudflare import api_of, check_token

    token = os.environ.get("CLOUDFLARE_API_TOKEN", "").strip()
    if not token:
        yield (
            "note",
            ("not checked: the stack's token is a secret. Set CLOUDFLARE_API_TOKEN to check one."),
        )
        return
    environment = environment_of(stack)
    api = api_of(environment["WORKERS_AI_BASE_URL"], environment["CLOUDFLARE_ACCOUNT_ID"], token)
    if wrong := check_token(api):
        yield "bad", wrong
    else:
        yield "ok", "the token of CLOUDFLARE_API_TOKEN may read Workers AI in the stack's account"


def _events(stack: Stack) -> Iterator[tuple[Level, str]]:
    found = events.look(stack)
    yield (
        "note" if found.state == "refused" else "ok",
        f"{found.state}: {found.message}",
    )
    for model, problem in found.models.items():
        if problem and found.state != "off":
            yield "note", f"{model}: no events: {problem}. Its batches are polled."


CHECKS: dict[str, Callable[[Stack], Iterator[tuple[Level, str]]]] = {
    "stack": _stack,
    "clock": _clock,
    "functions": _functions,
    "tick": _tick,
    "token": _token,
    "models": _models,
    "events": _events,
    "pauses": _pauses,
    "queues": _queues,
    "dead letters": _dead_letters,
    "alarms": _alarms,
}
"""The checks, ordered so that a cause comes before its effects."""

"""For operators: `models`, `serve`, `doctor`, `redrive`."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import click

from dropbatch.cli.context import Context, Exit, as_json, emit, flag, gone, is_json, pass_context
from dropbatch.client import aws
from dropbatch.client.find import history
from dropbatch.client.progress import counted
from dropbatch.client.stack import Stack, events_of, variables_of
from dropbatch.core.models import Catalog, Model, catalog, is_model
from dropbatch.core.names import CONTROL_PK, FINAL_JOB_STATES, STACK_CONTROL
from dropbatch.errors import Error, UsageError

Level = Literal["ok", "note", "bad", "unknown"]
Told = Iterator[tuple[Level, str]]


@click.command()
@flag("--all", "all_", help="Also list models that do not take batches.")
@gone("--refresh", "The list is shipped; other models work with the option task.", is_flag=True)
@as_json
def models(*, all_: bool) -> None:
    """List models: task, prices per million tokens, tokens of the context window."""
    known = catalog()
    days = (datetime.now(UTC).date() - date.fromisoformat(known.read_on)).days
    click.echo(f"Facts of {known.read_on}, {counted(days, 'day')} old", err=True)
    if not is_json():
        click.echo(HEADER)
    for model in sorted((known.find(one.id) for one in known.models), key=lambda one: one.id):
        if all_ or model.batch:
            emit(_shown(model, known), _line(model))


ROW = "{:<46}  {:<14}  {:>9}  {:>9}  {:<10}  {:>9}"
HEADER = ROW.format("model", "task", "$/M in", "$/M out", "priced at", "context")


def _shown(model: Model, known: Catalog) -> dict[str, Any]:
    return {
        "id": model.id,
        "task": model.task or "unknown",
        "batch": model.batch,
        "input_price": _number(model.input_price),
        "output_price": _number(model.output_price),
        "cached_price": _number(model.cached_price),
        "priced_at": model.priced_at or None,
        "source": known.sources.get(model.price_source),
        "context": model.context,
        "efforts": model.efforts and list(model.efforts.values),
        "deprecated_at": model.deprecated_at or None,
        "needs_paid": model.needs_paid,
        "read_on": known.read_on,
    }


def _line(model: Model) -> str:
    prices = _price(model.input_price), _price(model.output_price), model.priced_at
    context = f"{model.context:,}" if model.context else ""
    ends = f"  until {model.deprecated_at}" if model.deprecated_at else ""
    row = ROW.format(model.id, model.task or "unknown", *prices, context)
    return f"{row}{'' if model.batch else '  no batches'}{ends}".rstrip()


def _number(dollars: Decimal | None) -> str | None:
    return None if dollars is None else str(dollars)


def _price(dollars: Decimal | None) -> str:
    return "-" if dollars is None else f"${dollars}"


KEY, MODEL = "DROPBATCH_API_KEY", "DROPBATCH_MODEL"


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8_000,
    show_default=True,
    help="0 for a free one.",
)
@click.option("--host", help=f"Listen on this address, not only for this machine. Needs {KEY}.")
@click.option(
    "--model",
    envvar=MODEL,
    show_envvar=True,
    help="For files that name none of Workers AI's, but gpt-….",
)
@pass_context
def serve(context: Context, *, port: int, host: str | None, model: str | None) -> None:
    """Serve OpenAI's Batch API: programs only change OPENAI_BASE_URL.

    The first line printed is the base URL; each request has a line on standard error. If
    DROPBATCH_API_KEY is set, each request must have it.
    """
    key = os.environ.get(KEY, "")
    if host is not None and not key:
        raise UsageError(
            f"--host lets other machines call: set {KEY} to a key that each request must have."
        )
    if model is not None and not is_model(model):
        raise UsageError(f"--model: {model[:100]!r} is not a model id, such as @cf/baai/bge-m3.")
    try:
        from dropbatch.serve.app import base_url, listen, make_server
    except ImportError as error:
        message = f"{error.name} is not installed: pip install 'dropbatch[serve]'."
        raise UsageError(message) from error

    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.getLogger("dropbatch.serve").setLevel(logging.INFO)
    server = make_server(context.stack, key, model or "")
    with listen(host or "127.0.0.1", port) as listening:
        click.echo(base_url(listening))
        server.run(sockets=[listening])


DEAD_LETTERS, QUEUE = "DeadLetterQueueUrl", "QueueUrl"
"""The suffixes of the outputs that are queue URLs."""
LONG_POLL_SECONDS = 1
"""A short poll asks some of SQS's servers only: it may return nothing while messages wait."""
TICK = "{}"
"""A run of the schedule that could not start. No queue takes it, and the next run does its work."""


class Redriven(NamedTuple):
    """How many messages of a queue were sent again, and how many ticks were deleted."""

    moved: int
    ticks: int


@click.command()
@as_json
@pass_context
def redrive(context: Context) -> None:
    """Send messages of the dead-letter queues back to their queues."""
    for queue, done in redrive_queues(context.stack).items():
        line = f"{queue:<8}{counted(done.moved, 'message'):>15}"
        if done.ticks:
            line += f", {counted(done.ticks, 'tick')} deleted: later ones did their work"
        emit({"queue": queue, **done._asdict()}, line)


def redrive_queues(stack: Stack) -> dict[str, Redriven]:
    """Send the messages of the dead-letter queues back to their queues, by queue.

    An interrupted run may send one twice, which is harmless.
    """
    sqs, targets = stack.client("sqs"), stack.outputs
    return {
        name: _redrive(sqs, source, targets[f"{name}{QUEUE}"])
        for name, source in _dead_letter_queues(stack)
        if f"{name}{QUEUE}" in targets
    }


def _dead_letter_queues(stack: Stack) -> list[tuple[str, str]]:
    """Their URLs, each with the name of the queue whose letters it has."""
    found = sorted(stack.outputs.items())
    return [(one.removesuffix(DEAD_LETTERS), url) for one, url in found if DEAD_LETTERS in one]


def _redrive(sqs: Any, source: str, target: str) -> Redriven:
    moved = ticks = 0
    while messages := sqs.receive_message(
        QueueUrl=source, MaxNumberOfMessages=10, WaitTimeSeconds=LONG_POLL_SECONDS
    ).get("Messages", []):
        for message in messages:
            is_tick = message["Body"].strip() == TICK
            if not is_tick:
                sqs.send_message(QueueUrl=target, MessageBody=message["Body"])
            sqs.delete_message(QueueUrl=source, ReceiptHandle=message["ReceiptHandle"])
            moved, ticks = moved + (not is_tick), ticks + is_tick
    return Redriven(moved, ticks)


TICK_SECONDS = 180.0
"""A tick runs every minute. Logs arrive some seconds later."""
MAX_JOBS = 1_000
"""At most this many unfinished jobs of the last week are checked."""
_ADVICE = "The policy in the stack's output OperatorPolicyArn permits it."
_LEVELS = {"ok": "ok", "note": "note", "bad": "BAD", "unknown": "?"}


class Finding(NamedTuple):
    """The result of one check: its name, a level of `_LEVELS`, what was found, what to do."""

    name: str
    level: Level
    message: str


@click.command()
@gone("--probe", "`make try` runs one job against the real API.", is_flag=True)
@as_json
@pass_context
def doctor(context: Context) -> None:
    """Find what is wrong, and say what to do."""
    code = Exit.DONE
    for name, level, message in examine(context.stack):
        if level == "bad":
            code = Exit.JOB_FAILED
        shown = {"check": name, "level": level, "message": message}
        emit(shown, f"{_LEVELS[level]:<5} {name:<13} {message}")
    raise SystemExit(code)


def examine(stack: Stack) -> Iterator[Finding]:
    """Run the checks one after another. A check that is not permitted is a finding too."""
    for name, look in CHECKS.items():
        try:
            with aws.explained(advice=_ADVICE):
                yield from (Finding(name, level, message) for level, message in look(stack))
        except Error as error:
            yield Finding(name, "unknown", str(error))


def _stack(stack: Stack) -> Told:
    status = _described(stack)["StackStatus"]
    if status in {"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"}:
        yield "ok", f"{stack.name}: {status}"
    elif status.endswith("_IN_PROGRESS"):
        yield "note", f"{stack.name}: {status}. Look again when the deployment is over."
    else:
        why = "Its events in CloudFormation show why; deploy again with `make deploy`."
        yield "bad", f"{stack.name}: {status}. {why}"


def _described(stack: Stack) -> dict[str, Any]:
    (found,) = stack.client("cloudformation").describe_stacks(StackName=stack.name)["Stacks"]
    return dict(found)


def _functions(stack: Stack) -> Told:
    for output in ("SubmitFunctionName", "PollFunctionName"):
        name, found = stack.outputs[output], _function(stack, output)
        state, update = found.get("State", "Active"), found.get("LastUpdateStatus", "Successful")
        if state in {"Active", "Inactive"} and update == "Successful":
            yield "ok", f"{name}: {state}"
        else:
            why = found.get("StateReason", "")
            yield "bad", f"{name}: {state}, last update {update}: {why}. Deploy again."


def _function(stack: Stack, output: str) -> dict[str, Any]:
    functions = stack.client("lambda")
    return dict(functions.get_function_configuration(FunctionName=stack.outputs[output]))


def log_group(stack: Stack, output: str) -> str:
    """The log group of a function."""
    group = _function(stack, output).get("LoggingConfig", {}).get("LogGroup")
    return group or f"/aws/lambda/{stack.outputs[output]}"


def _tick(stack: Stack) -> Told:
    now, group = time.time(), log_group(stack, "PollFunctionName")
    pages = (
        stack.client("logs")
        .get_paginator("filter_log_events")
        .paginate(
            logGroupName=group,
            startTime=int((now - 2 * TICK_SECONDS) * 1000),
            filterPattern='"Ticks"',
        )
    )
    times = pages.search("events[].timestamp")  # Of the pages, any may be empty.
    last = max((at / 1000 for at in times if at is not None), default=None)
    age = now - _described(stack)["CreationTime"].timestamp()
    if last is not None:
        level: Level = "ok" if now - last < TICK_SECONDS else "bad"
        yield level, f"the last tick ended {max(now - last, 0):,.0f} s ago"
    elif age < TICK_SECONDS:
        yield "note", f"The stack is {age:,.0f} s old; the first tick runs in a minute or two."
    else:
        message = (
            f"No tick was logged in the last {2 * TICK_SECONDS:,.0f} s. Is the schedule enabled? "
            f"`aws logs tail {group}` shows whether the poll function fails."
        )
        yield "bad", message


def _token(stack: Stack) -> Told:
    from dropbatch.cli.cloudflare import Api, check_token

    token = os.environ.get("CLOUDFLARE_API_TOKEN", "").strip()
    if not token:
        yield (
            "note",
            "not checked: the stack's token is a secret. Set CLOUDFLARE_API_TOKEN to check one.",
        )
        return
    found = variables_of(stack)
    api = Api(found["WORKERS_AI_BASE_URL"], found["CLOUDFLARE_ACCOUNT_ID"], token)
    if wrong := check_token(api):
        yield "bad", wrong
    else:
        yield "ok", "the token of CLOUDFLARE_API_TOKEN may read Workers AI in the stack's account"


def _events(stack: Stack) -> Told:
    variables = variables_of(stack)
    key = {"pk": CONTROL_PK, "sk": f"EVENTS#{variables.get('CLOUDFLARE_ACCOUNT_ID', '')}"}
    got = stack.client("dynamodb").get_item(
        TableName=stack.outputs["TableName"],
        Key={name: {"S": value} for name, value in key.items()},
        ConsistentRead=True,
    )
    yield from events_of(variables, got.get("Item", {}))


def _pauses(stack: Stack) -> Told:
    word = (stack.read(STACK_CONTROL) or b"").decode(errors="replace").strip()
    if word == "pause":
        yield "note", f"The stack is paused by {STACK_CONTROL}. `dropbatch resume` lifts it."
    reasons, unfinished = _waiting(stack)
    for code, (count, message) in sorted(reasons.items()):
        level: Level = "note" if code == "paused" else "bad"
        yield level, f"{counted(count, 'job')} waiting: {code}: {message}"
    if not reasons and word != "pause":
        yield "ok", f"no pause; {counted(unfinished, 'unfinished job')} of the last 7 days"


def _waiting(stack: Stack) -> tuple[dict[str, tuple[int, str]], int]:
    """For what unfinished jobs wait, each with how many and a message; and how many there are."""
    reasons, unfinished = dict[str, tuple[int, str]](), 0
    for _, status in history(stack, datetime.now(UTC) - timedelta(days=7)):
        if status["state"] in FINAL_JOB_STATES:
            continue
        unfinished += 1
        if waiting := status.get("waiting_for"):
            count, _ = reasons.get(waiting["code"], (0, ""))
            reasons[waiting["code"]] = count + 1, waiting["message"]
        if unfinished == MAX_JOBS:
            break
    return reasons, unfinished


def _dead_letters(stack: Stack) -> Told:
    sqs, name = stack.client("sqs"), "ApproximateNumberOfMessages"
    for queue, url in _dead_letter_queues(stack):
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"]
        if not (count := int(found[name])):
            yield "ok", f"{queue}: none"
            continue
        group = log_group(stack, "PollFunctionName" if queue == "Poll" else "SubmitFunctionName")
        message = (
            f"{queue}: {counted(count, 'message')} failed five times. "
            f"`aws logs tail {group} --since 1d` shows why; when fixed, "
            "`dropbatch redrive` sends them again."
        )
        yield "bad", message


def _alarms(stack: Stack) -> Told:
    pages = stack.client("cloudwatch").get_paginator("describe_alarms")
    found = pages.paginate(AlarmNamePrefix=f"{stack.name}-", StateValue="ALARM")
    # Not of "NAME-staging".
    ours = re.compile(rf"{re.escape(stack.name)}-[A-Za-z0-9]+Alarm-[A-Za-z0-9]+")
    raised = [one for one in found.search("MetricAlarms[]") if ours.fullmatch(one["AlarmName"])]
    for alarm in raised:
        why = alarm.get("AlarmDescription") or alarm["StateReason"]
        yield "bad", f"{alarm['AlarmName']}: {why}"
    if not raised:
        yield "ok", "none raised"


CHECKS: dict[str, Callable[[Stack], Told]] = {
    "stack": _stack,
    "functions": _functions,
    "tick": _tick,
    "token": _token,
    "events": _events,
    "pauses": _pauses,
    "dead letters": _dead_letters,
    "alarms": _alarms,
}
"""The checks, ordered so that a cause comes before its effects."""

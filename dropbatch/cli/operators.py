"""For operators: dead letters and logs."""

from __future__ import annotations

import heapq
import json
import time
from typing import TYPE_CHECKING, Any

from dropbatch.client import aws

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dropbatch.client.stack import Stack

DEAD_LETTERS, QUEUE = "DeadLetterQueueUrl", "QueueUrl"
"""The suffixes of the outputs that are queue URLs."""
LONG_POLL_SECONDS = 1
"""A short poll asks some of SQS's servers only: it may return nothing while messages wait."""
READ_SECONDS = 2.0
"""Seconds between two reads of the logs."""
LATE_SECONDS = 10.0
"""How late, in seconds, a log line may arrive."""
SETTLE_SECONDS = 3.0
"""Seconds after which a line is shown.

By then most that are older have arrived, also those of the other function.
"""


def redrive(stack: Stack) -> dict[str, int]:
    """Send the messages of the dead-letter queues back to their queues; return how many, by queue.

    A message is deleted after its queue has accepted it. An interrupted run may send one twice,
    which is harmless: every message may be delivered more than once.
    """
    sqs = stack.client("sqs")
    moved = {}
    for output, source in sorted(stack.outputs.items()):
        name = output.removesuffix(DEAD_LETTERS)
        if name == output or f"{name}{QUEUE}" not in stack.outputs:
            continue  # Runs of the schedule that could not be started are replaced by the next run.
        target = stack.outputs[f"{name}{QUEUE}"]
        moved[name] = 0
        with aws.explained():
            while messages := sqs.receive_message(
                QueueUrl=source, MaxNumberOfMessages=10, WaitTimeSeconds=LONG_POLL_SECONDS
            ).get("Messages", []):
                for message in messages:
                    sqs.send_message(QueueUrl=target, MessageBody=message["Body"])
                    sqs.delete_message(QueueUrl=source, ReceiptHandle=message["ReceiptHandle"])
                moved[name] += len(messages)
    return moved


def log_lines(stack: Stack, job_id: str, since: float, *, follow: bool) -> Iterator[dict[str, Any]]:
    """Log lines of both functions, oldest first.

    Args:
        stack: the stack.
        job_id: only lines that name this job; empty for all.
        since: Unix seconds.
        follow: keep reading until interrupted.
    """
    logs, seen = stack.client("logs"), dict[str, float]()
    groups = [log_group(stack, stack.outputs[f"{name}FunctionName"]) for name in ("Submit", "Poll")]
    more: dict[str, Any] = {"filterPattern": f'"{job_id}"'} if job_id else {}
    held: list[dict[str, Any]] = []
    while True:
        with aws.explained():
            pages = [_events(logs, group, since, more) for group in groups]
            merged = heapq.merge(*pages, key=lambda one: one["timestamp"])
            if not follow:
                yield from (_parsed(event["message"]) for event in merged)
                return
            for event in merged:
                identity = event.get("eventId") or f"{event['timestamp']}{event['message']}"
                if identity not in seen:
                    seen[identity] = event["timestamp"] / 1000
                    held.append(event)
        held.sort(key=lambda one: one["timestamp"])
        settled = time.time() - SETTLE_SECONDS
        while held and held[0]["timestamp"] / 1000 <= settled:
            yield _parsed(held.pop(0)["message"])
        time.sleep(READ_SECONDS)
        newest = max(seen.values(), default=since)
        since = max(since, newest - LATE_SECONDS)
        seen = {identity: at for identity, at in seen.items() if at >= since}


def _parsed(line: str) -> dict[str, Any]:
    """A log line in JSON, or as it is: CloudWatch cuts long ones."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return {"message": line}


def _events(logs: Any, group: str, since: float, more: dict[str, Any]) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """A group's log lines in JSON, in the order of their times.

    Within a page, that of the streams may come first.
    """
    pages = logs.get_paginator("filter_log_events").paginate(
        logGroupName=group, startTime=int(since * 1000), **more
    )
    for page in pages:
        lines = [event for event in page["events"] if event["message"].startswith("{")]
        yield from sorted(lines, key=lambda one: one["timestamp"])


def log_group(stack: Stack, function: str) -> str:
    """The log group of a function."""
    with aws.explained():
        found = stack.client("lambda").get_function_configuration(FunctionName=function)
    group: str = found.get("LoggingConfig", {}).get("LogGroup") or f"/aws/lambda/{function}"
    return group

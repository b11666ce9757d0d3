"""For operators: dead letters and logs."""

from __future__ import annotations

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


def redrive(stack: Stack) -> dict[str, int]:
    """Send the messages of the dead-letter queues back to their queues; return how many, by queue.

    A message is deleted after its queue has accepted it. An interrupted run may send one twice, which is harmless:
    every message may be delivered more than once.
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
    while True:
        found = []
        with aws.explained():
            for group in groups:
                pages = logs.get_paginator("filter_log_events").paginate(
                    logGroupName=group, startTime=int(since * 1000), **more
                )
                found += [event for page in pages for event in page["events"]]
        for event in sorted(found, key=lambda one: one["timestamp"]):
            identity = event.get("eventId") or f"{event['timestamp']}{event['message']}"
            if identity not in seen and event["message"].startswith("{"):
                seen[identity] = event["timestamp"] / 1000
                yield json.loads(event["message"])
        if not follow:
            return
        time.sleep(READ_SECONDS)
        newest = max(seen.values(), default=since)
        since = max(since, newest - LATE_SECONDS)
        seen = {identity: at for identity, at in seen.items() if at >= since}


def log_group(stack: Stack, function: str) -> str:
    """The log group of a function."""
    with aws.explained():
        found = stack.client("lambda").get_function_configuration(FunctionName=function)
    group: str = found.get("LoggingConfig", {}).get("LogGroup") or f"/aws/lambda/{function}"
    return group

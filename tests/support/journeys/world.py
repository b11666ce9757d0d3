"""The whole path in one process.

S3 and SQS by moto, a simulated table, both handlers, the API behind httpx.

Resources are created from the properties in `template.yaml`. S3's notifications go to SQS, and the
handlers receive the messages in SQS, by Lambda's rules for partial batch responses. Each function
may do what its role allows; a world in which a call was denied ends with an error. The clock is
simulated, so nothing waits. Worlds are deterministic: each begins at the same time, with the same
seed, and its threads run one after another.
"""

from __future__ import annotations

import dataclasses
import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_plus

import boto3
import botocore.client
import httpx
import time_machine
from moto.s3.models import s3_backends
from moto.sqs.models import sqs_backends

import functions.poll.handler
import functions.submit.handler
from dropbatch.client import threads
from dropbatch.core.names import FINAL_JOB_STATES
from local.template import template
from shared import bootstrap as composition
from shared.aws.queues import MAX_HOPS, Queues
from shared.workers_ai.client import http_client
from tests.support.aws import quick_moto
from tests.support.aws.iam import Permissions
from tests.support.aws.resources import (
    AWS_ACCOUNT,
    BUCKET,
    QUEUES,
    REGION,
    TABLE,
    Session,
    client,
    make_environment,
    make_resources,
    permissions_of,
    sign_in,
)

quick_moto.install()

STARTING_SECONDS = 2.0
"""Seconds from when a message is received to its invocation: each could be a process's first."""
TIMEOUT_SECONDS = template()["Globals"]["Function"]["Timeout"]
START = datetime(2026, 11, 21, 9, 30, 7, tzinfo=UTC)
"""When every test begins: a test must not depend on the hour."""


@dataclass
class Context:
    """Lambda's context, as far as the handlers use it."""

    clock: Callable[[], float]
    ends: float
    function_name: str = "dropbatch"
    memory_limit_in_mb: int = 1769
    invoked_function_arn: str = f"arn:aws:lambda:{REGION}:{AWS_ACCOUNT}:function:dropbatch"
    aws_request_id: str = "11111111-2222-3333-4444-555555555555"

    def get_remaining_time_in_millis(self) -> int:
        return max(int((self.ends - self.clock()) * 1000), 0)


@dataclass
class World:
    """A running Dropbatch: what its user does, and what AWS does."""

    traveller: Any
    s3: Any
    sqs: Any
    dynamodb: Any
    secrets: Any
    queues: dict[str, str]
    permissions: Permissions
    ticks: int = 0
    wakes: bool = False
    """Whether functions may plan wake-ups."""
    refused: list[dict[str, Any]] = field(default_factory=list)

    # ── a user ────────────────────────────────────────────────────────────────────────────────────

    def upload(self, path: str, body: bytes | str, **metadata: str) -> str:
        """Put an upload under `inbox/`; return its version id."""
        content = body.encode() if isinstance(body, str) else body
        answer = self.s3.put_object(
            Bucket=BUCKET, Key=f"inbox/{path}", Body=content, Metadata=metadata
        )
        return str(answer.get("VersionId", "null"))

    def upload_records(self, path: str, records: list[dict[str, Any]], **metadata: str) -> str:
        """Put an upload of JSON Lines."""
        return self.upload(
            path, "".join(json.dumps(record) + "\n" for record in records), **metadata
        )

    def run(
        self, path: str, body: bytes | str | list[Any], *, minutes: int = 60, **metadata: str
    ) -> None:
        """Put an upload, or records as JSON Lines, and let time pass until every job is over."""
        if isinstance(body, list):
            self.upload_records(path, body, **metadata)
        else:
            self.upload(path, body, **metadata)
        self.settle(minutes=minutes)

    def control(self, name: str, command: str) -> None:
        """Put a command: `name` is a job's id, `stack`, or `events`."""
        key = f"control/{name}" if name in {"stack", "events"} else f"control/jobs/{name}"
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=command.encode())

    def item(self, kind: str = "META") -> dict[str, Any]:
        """The only item in the ledger whose sort key begins so."""
        (found,) = [item for item in self.items() if item["sk"]["S"].startswith(kind)]
        return found

    def job_id(self) -> str:
        """The only job's."""
        return str(self.item()["job_id"]["S"])

    def pauses(self) -> list[str]:
        """Reasons of the pauses that Dropbatch began for its own account."""
        return [item["reason"]["S"] for item in self.items() if item["sk"]["S"] == "PAUSE"]

    def objects(self, prefix: str = "results/") -> list[str]:
        """Keys of all objects under a prefix."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", [])]

    def read(self, key: str) -> bytes:
        """One object."""
        content: bytes = self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    def manifests(self) -> dict[str, dict[str, Any]]:
        """Every manifest by its folder."""
        found = [key for key in self.objects() if key.endswith("/manifest.json")]
        return {key.rpartition("/")[0]: json.loads(self.read(key)) for key in found}

    def only_folder(self) -> str:
        """The folder of the only job that is over."""
        (folder,) = self.manifests()
        return folder

    def manifest(self, folder: str = "") -> dict[str, Any]:
        """The manifest of one job, or of the only one."""
        return self.manifests()[folder or self.only_folder()]

    def lines(self, name: str = "output.jsonl", folder: str = "") -> list[dict[str, Any]]:
        """One result file's lines."""
        content = self.read(f"{folder or self.only_folder()}/{name}")
        assert content == b"" or content.endswith(b"\n")
        return [json.loads(line) for line in content.split(b"\n")[:-1]]

    def status(self) -> dict[str, Any]:
        """The only status.json."""
        (key,) = [key for key in self.objects() if key.endswith("/status.json")]
        status: dict[str, Any] = json.loads(self.read(key))
        return status

    def notices(self) -> list[dict[str, Any]]:
        """The events since the last call, as a rule's target receives them."""
        told = []
        while found := self.sqs.receive_message(
            QueueUrl=self.queues["events"], MaxNumberOfMessages=10
        ).get("Messages"):
            for message in found:
                told.append(json.loads(message["Body"]))
                self.sqs.delete_message(
                    QueueUrl=self.queues["events"], ReceiptHandle=message["ReceiptHandle"]
                )
        return told

    # ── AWS ───────────────────────────────────────────────────────────────────────────────────────

    def now(self) -> float:
        """The simulated clock."""
        return time.time()

    def pass_time(self, seconds: float) -> None:
        """Move the clock."""
        self.traveller.shift(seconds)

    def deliver(self, queue: str, *, most: int = 1_000, times: int = 1) -> int:
        """Deliver a queue's messages to their function until none is visible; return their number.

        Args:
            queue: logical name.
            most: the maximum number of messages.
            times: how often each message is delivered: SQS promises only "at least once".
        """
        delivered = 0
        handler = (
            functions.poll.handler
            if queue in {"PollQueue", "VisitQueue"}
            else functions.submit.handler
        )
        while delivered < most and _visible(queue):
            answer = self.sqs.receive_message(
                QueueUrl=self.queues[queue],
                MaxNumberOfMessages=1,
                AttributeNames=["All"],
                WaitTimeSeconds=0,
            )
            messages = answer.get("Messages", [])
            if not messages:  # The visible message was too old, or went to the dead-letter queue.
                break
            for message in messages:
                message["Body"] = self._with_versions(message["Body"])
            for _ in range(times):
                failed = self.invoke(
                    handler, {"Records": [_record(message, queue) for message in messages]}
                )
            for message in messages:
                if message["MessageId"] not in failed:
                    self.sqs.delete_message(
                        QueueUrl=self.queues[queue], ReceiptHandle=message["ReceiptHandle"]
                    )
            delivered += len(messages)
        return delivered

    def _with_versions(self, body: str) -> str:
        """Add versions, found by ETag: S3's notifications have them if the bucket is versioned."""
        message = json.loads(body) if body.startswith("{") and '"Records"' in body else {}
        bucket = s3_backends[AWS_ACCOUNT]["aws"].buckets[BUCKET]
        if not message or bucket.versioning_status != "Enabled":
            return body
        for record in message["Records"]:
            told = record["s3"]["object"]
            versions = bucket.keys.getlist(unquote_plus(told["key"]))
            found = [one.version_id for one in versions if one.etag.strip('"') == told.get("eTag")]
            told.setdefault("versionId", found[-1] if found else "")
        return json.dumps(message)

    def invoke(
        self, handler: Any, event: dict[str, Any], seconds: float = TIMEOUT_SECONDS
    ) -> set[str]:
        """Call a handler as Lambda does; return the ids of the messages it failed on.

        Args:
            handler: the function's module.
            event: what Lambda passes to it.
            seconds: how long the function may run.
        """
        context = Context(time.time, time.time() + seconds)
        outer = self.permissions.role, handler.processor
        self.permissions.role = "PollRole" if handler is functions.poll.handler else "SubmitRole"
        # as in a separate process: another invocation may be running
        handler.processor = type(handler.processor)()
        try:
            answer = handler.lambda_handler(event, context)
        finally:
            self.permissions.role, handler.processor = outer
        failed = {one["itemIdentifier"] for one in answer.get("batchItemFailures", [])}
        self.refused += [
            record for record in event.get("Records", []) if record["messageId"] in failed
        ]
        return failed

    def tick(self, seconds: float = TIMEOUT_SECONDS) -> None:
        """Run the scheduled tick."""
        self.ticks += 1
        self.invoke(functions.poll.handler, {}, seconds)

    def deliver_all(self) -> int:
        """Deliver the messages of all queues until they are empty."""
        total = 0
        while count := sum(self.deliver(queue) for queue in QUEUES):
            total += count
        return total

    def settle(self, *, minutes: int = 60, until: Callable[[], bool] | None = None) -> None:
        """Let minutes pass, each with its tick and its deliveries, until every job is over."""
        ends = time.time() + 60 * minutes
        while time.time() < ends:
            self.deliver_all()
            self.tick()
            self.deliver_all()
            if until() if until else self.all_over():
                return
            self._pass_minutes()
        raise AssertionError(f"not settled after {minutes} minutes: {self.open_items()[:5]}")

    def _pass_minutes(self) -> None:
        """Move to the minute in which the next item is due; ticks before it would find nothing."""
        dues = [float(item["due_at"]["N"]) for item in self.open_items()]
        wanted = max(min(dues, default=0.0), time.time() + 1)
        self.pass_time(wanted - time.time() + 60 - wanted % 60)

    def all_over(self) -> bool:
        """Whether there are jobs, and all of them are final."""
        jobs = [item for item in self.items() if item["sk"]["S"] == "META"]
        return bool(jobs) and all(job["state"]["S"] in FINAL_JOB_STATES for job in jobs)

    def open_items(self) -> list[dict[str, Any]]:
        """The jobs and batches that are not over."""
        return [
            item
            for item in self.items()
            if "work" in item and item["state"]["S"] not in FINAL_JOB_STATES
        ]

    def items(self) -> list[dict[str, Any]]:
        """All items of the table, in wire form."""
        pages = self.dynamodb.get_paginator("scan").paginate(TableName=TABLE)
        return [item for page in pages for item in page["Items"]]


def _visible(queue: str) -> bool:
    """Whether a queue has a message to deliver."""
    return bool(sqs_backends[AWS_ACCOUNT][REGION].queues[queue].messages)


def _record(message: dict[str, Any], queue: str) -> dict[str, Any]:
    received_at = time.time() - STARTING_SECONDS
    return {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": {
            **message.get("Attributes", {}),
            "SentTimestamp": str(int(1_000 * received_at)),
            "ApproximateFirstReceiveTimestamp": str(int(1_000 * received_at)),
        },
        "messageAttributes": {},
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:{REGION}:{AWS_ACCOUNT}:{queue}",
        "awsRegion": REGION,
    }


REAL_SUBMIT = ThreadPoolExecutor.submit
"""For tests that need real threads."""


def _run_at_once(
    _executor: Any, function: Callable[..., Any], /, *arguments: Any, **named: Any
) -> Future[Any]:
    """Run the work instead of starting a thread: it ends before the next begins."""
    done = Future[Any]()
    try:
        done.set_result(function(*arguments, **named))
    except BaseException as error:  # noqa: BLE001 - raised where the thread's result is read
        done.set_exception(error)
    return done


def make_world(
    transport: httpx.BaseTransport, monkeypatch: Any, **settings: object
) -> Iterator[World]:
    """Create resources and services; call it under moto's mock.

    Args:
        transport: the API.
        monkeypatch: pytest's.
        settings: the environment variables that differ from the template's defaults.
    """
    sign_in(monkeypatch)
    urls = make_resources()
    environment = make_environment(urls, settings)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    permissions = permissions_of(environment)
    _judge_calls(permissions, monkeypatch)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", _run_at_once)
    monkeypatch.setattr(threads, "begin", lambda call, item: call(item))
    with time_machine.travel(START, tick=False) as traveller:
        random.seed(0)
        _install_services(transport, traveller, monkeypatch)
        s3, sqs, dynamodb, secrets = (
            client(name) for name in ("s3", "sqs", "dynamodb", "secretsmanager")
        )
        world = World(traveller, s3, sqs, dynamodb, secrets, urls, permissions)
        monkeypatch.setattr(
            Queues, "can_wake", property(lambda self: world.wakes and self.hops < MAX_HOPS - 1)
        )
        yield world
    composition.services.cache_clear()
    assert permissions.refused == []


def _judge_calls(permissions: Permissions, monkeypatch: Any) -> None:
    """Let AWS deny each call that the role of the running function does not allow."""
    real = botocore.client.BaseClient._make_api_call  # type: ignore[attr-defined] # Private: not in the stubs.

    def call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        service = client.meta.service_model.service_name
        return permissions.call(
            service, operation, arguments, lambda: real(client, operation, arguments)
        )

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)


def _install_services(transport: httpx.BaseTransport, traveller: Any, monkeypatch: Any) -> None:
    """Give both handlers services that share clients, call the API by `transport`."""
    monkeypatch.setattr(composition, "http_client", lambda: http_client(transport))
    monkeypatch.setattr(boto3.session, "Session", Session)
    composition.services.cache_clear()
    moved = dataclasses.replace(composition.services(), sleep=traveller.shift)
    for module in (functions.submit.handler, functions.poll.handler):
        monkeypatch.setattr(module, "services", lambda: moved)

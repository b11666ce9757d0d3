"""Counts both functions' calls to AWS and the API, in a job that runs in this process, on moto and a simulated clock.

DynamoDB units are computed from the sizes of the items. The time spent waiting for answers is assumed, as stated here.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import botocore.client
import httpx
import pytest
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber

import dropbatch.core.plan_upload
import functions.poll.handler
import functions.submit.handler
from bench.timing import AWS_SECONDS, S3_BYTES_A_SECOND
from dropbatch.core.keys import is_in_results
from functions.poll.schedule.delete_staged import FIRST_SECONDS
from local.template import default
from local.workers_ai import Behaviour, WorkersAI, transport
from shared.observability import logger, metrics
from tests.support.aws.resources import BUCKET
from tests.support.journeys.world import TIMEOUT_SECONDS, World, make_world

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODEL = "@cf/baai/bge-small-en-v1.5"
IDLE_TICKS, MONTH_MINUTES = 10, 43_800
WAITS = AWS_SECONDS | {"secretsmanager": 0.0}
API_WAITS = {"submit": 1.0, "pending": 0.3, "finished": 0.8}
"""Seconds until Workers AI answers, assumed."""
CALL_CPU = 0.001
"""Seconds of work on sockets and TLS per call, assumed: there is none here."""
TLS_CPU = 0.0008e-6
"""Processor seconds that TLS takes for each byte that is moved: measured with httpx and boto3, on one machine."""
PLATFORM_LOG = 420
"""Bytes that Lambda itself logs per run."""
TICK_SECONDS = 60.0
STAGING_SECONDS = 86_400.0 * int(default("StagingRetentionDays"))
S3_READS = {"GetObject", "HeadObject"}
S3_FREE = {"DeleteObjects"}


# ── counting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def item_size(wire: Any) -> int:  # noqa: ANN401 - DynamoDB's wire form
    """Bytes of an item as DynamoDB counts them."""
    return sum(len(name.encode()) + _value_size(value) for name, value in wire.items())


def _value_size(value: dict[str, Any]) -> int:
    ((kind, held),) = value.items()
    match kind:
        case "N":
            return len(held.strip("-0.").replace(".", "")) // 2 + 2
        case "BOOL" | "NULL":
            return 1
        case "M":
            return 3 + sum(len(name.encode()) + 1 + _value_size(member) for name, member in held.items())
        case "L":
            return 3 + sum(1 + _value_size(member) for member in held)
        case "SS":
            return sum(len(member.encode()) for member in held)
        case _:
            return len(held.encode())


@dataclass
class Run:
    """What one invocation used; threads of one pool wait in parallel."""

    step: str
    waits: dict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    foreign: float = 0.0
    """Processor seconds of moto and of the local API."""
    moved: int = 0
    """Bytes of objects, requests and replies."""

    def waited(self) -> float:
        """Seconds of waiting; parallel waits count once."""
        pools: dict[str, float] = defaultdict(float)
        for (pool, _), seconds in self.waits.items():
            pools[pool] = max(pools[pool], seconds)
        return sum(pools.values())


class Log:
    """Counts the bytes that the functions print, and notes which metrics have a value."""

    def __init__(self, used: Counter[str], valued: set[str]) -> None:
        """Count into `used`, and note names in `valued`."""
        self.used, self.valued = used, valued

    def write(self, text: str) -> int:
        """Count the bytes of a text."""
        self.used["log bytes"] += len(text.encode())
        if text.startswith('{"_aws"'):
            (told,) = json.loads(text)["_aws"]["CloudWatchMetrics"]
            self.valued |= {metric["Name"] for metric in told["Metrics"]}
        return len(text)

    def flush(self) -> None:
        """Do nothing."""


class Meter:
    """Counts the functions' calls while one of them runs."""

    def __init__(self) -> None:
        """Start all counts at zero."""
        self.used: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        """By function: `calls`, waiting for answers; `sleep`, waiting for the next due item; `CPU`, computing."""
        self.steps: dict[str, Counter[str]] = defaultdict(Counter)
        """What each step used: calls by service, `waiting` and `computing` seconds."""
        self.stored: Counter[str] = Counter()
        """Bytes at the end of the job: `early` and `late` in S3, by when they are deleted, and `items` in the table."""
        self.valued: set[str] = set()
        """The metrics that had a value."""
        self.items: dict[str, dict[str, Any]] = {}
        self.run: Run | None = None
        self.lock = threading.Lock()

    # ── AWS ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def call(self, client: Any, operation: str, arguments: dict[str, Any], answer: dict[str, Any]) -> None:  # noqa: ANN401
        """Count one call to AWS."""
        service = client.meta.service_model.service_name
        if service == "dynamodb":
            self.units(operation, arguments, answer)
        if self.run is None:
            return
        seconds = 0.0
        with self.lock:
            if service == "s3":
                if operation not in S3_FREE:
                    self.used["S3 reads" if operation in S3_READS else "S3 writes"] += 1
                moved = _body_size(operation, arguments, answer)
                self.run.moved += moved
                seconds = moved / S3_BYTES_A_SECOND
            elif service == "sqs":
                self.used["SQS requests"] += 1
            self.operations[operation] += 1
            self.steps[self.run.step][service] += 1
        self.wait(WAITS.get(service, WAITS["dynamodb"]) + seconds)

    def wait(self, seconds: float) -> None:
        """Count seconds for which this thread waits."""
        if self.run is not None:
            thread = threading.current_thread()
            with self.lock:
                self.run.waits[thread.name.partition("_")[0], thread.ident or 0] += seconds + CALL_CPU

    def units(self, operation: str, arguments: dict[str, Any], answer: dict[str, Any]) -> None:
        """Count the DynamoDB units of one call, if a function runs."""
        reads = writes = 0.0
        match operation:
            case "PutItem":
                writes = self._write(arguments["Item"], arguments["Item"])
            case "UpdateItem" | "DeleteItem":
                writes = self._write(arguments["Key"], answer.get("Attributes", {}))
            case "GetItem":
                reads = _pages(item_size(answer.get("Item", {})), 4096) * (
                    1 if arguments.get("ConsistentRead") else 0.5
                )
            case "BatchGetItem":
                found = [item for items in answer["Responses"].values() for item in items]
                reads = sum(_pages(item_size(item), 4096) for item in found)
                asked = sum(len(wanted["Keys"]) for wanted in arguments["RequestItems"].values())
                reads += asked - len(found)
            case "Query":
                size = sum(item_size(item) for item in answer.get("Items", [])) or 100 * answer["Count"]
                reads = _pages(size, 4096) * (1 if arguments.get("ConsistentRead") else 0.5)
        if self.run is not None:
            self.used["DynamoDB read units"] += reads  # type: ignore[assignment]
            self.used["DynamoDB write units"] += writes  # type: ignore[assignment]

    def _write(self, key: dict[str, Any], after: dict[str, Any]) -> int:
        """Units of one write: of the item, and of its entry in the index if that changes."""
        name = json.dumps([key["pk"], key["sk"]])
        before = self.items.get(name, {})
        if after:
            self.items[name] = after
        entries = [(item.get("work"), item.get("due_at")) for item in (before, after or before)]
        there = [all(entry) for entry in entries]
        index = 0 if entries[0] == entries[1] else sum(there)
        return _pages(max(item_size(before), item_size(after)), 1024) + index

    # ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def invocation(self, function: str, step: str, *, scheduled: bool) -> Iterator[None]:
        """Count one run of a function, for one of the steps."""
        self.run = Run(step)
        log: Any = Log(self.used, self.valued)
        logger.registered_handler.setStream(log)  # type: ignore[attr-defined]
        clock, cpu = time.time(), time.process_time()
        with contextlib.redirect_stdout(log):
            yield
        own = max(time.process_time() - cpu - self.run.foreign, 0.0) + self.run.moved * TLS_CPU
        run, self.run = self.run, None
        self.steps[step]["waiting"] += run.waited()  # type: ignore[assignment]
        self.steps[step]["computing"] += own  # type: ignore[assignment]
        self.used["Lambda runs"] += 1
        self.used["log bytes"] += PLATFORM_LOG
        if not scheduled:
            self.used["SQS requests"] += 2  # received and deleted by Lambda's poller
        self.seconds[f"{function} CPU"] += own  # type: ignore[assignment]
        calls = min(run.waited(), TICK_SECONDS)
        self.seconds[f"{function} calls"] += calls  # type: ignore[assignment]
        self.seconds[f"{function} sleep"] += min(time.time() - clock, TICK_SECONDS - calls)  # type: ignore[assignment]

    def move(self, size: int) -> None:
        """Count bytes that were moved over TLS."""
        if self.run is not None:
            with self.lock:
                self.run.moved += size

    @contextlib.contextmanager
    def foreign(self) -> Iterator[None]:
        """Exclude this thread's processor time from the function's."""
        began = time.thread_time()
        yield
        if self.run is not None:
            with self.lock:
                self.run.foreign += time.thread_time() - began


def _body_size(operation: str, arguments: dict[str, Any], answer: dict[str, Any]) -> int:
    """Bytes of the object that a call of S3 carries."""
    if operation == "GetObject":
        return int(answer.get("ContentLength", 0))
    body = arguments.get("Body", b"")
    if isinstance(body, (bytes, mmap.mmap)):
        return len(body)
    position = body.tell()
    size = body.seek(0, os.SEEK_END)
    body.seek(position)
    return int(size)


def _pages(size: int, page: int) -> int:
    return max(-(-size // page), 1)


# ── a job ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Metered(World):
    """A world whose functions are metered."""

    meter: Meter

    def settle(self, *, minutes: int = 60, until: Callable[[], bool] | None = None) -> None:
        """Let minutes pass, second by second, until every job is over: messages arrive when they are asked for."""
        ends, tick_at = time.time() + 60 * minutes, time.time() + TICK_SECONDS
        while time.time() < ends:
            if time.time() >= tick_at:
                tick_at += TICK_SECONDS
                self.tick()
            self.deliver_all()
            if until() if until else self.all_over():
                return
            self.pass_time(1.0)
        raise AssertionError(f"not settled after {minutes} minutes")

    def invoke(self, handler: Any, event: dict[str, Any], seconds: float = TIMEOUT_SECONDS) -> set[str]:  # noqa: ANN401
        """Call a handler as Lambda does."""
        function = "poll" if handler is functions.poll.handler else "submit"
        queue = event["Records"][0]["eventSourceARN"] if "Records" in event else ""
        step = "split" if queue.endswith(("UploadQueue", "SplitQueue")) else function
        with self.meter.invocation(function, step, scheduled="Records" not in event):
            return super().invoke(handler, event, seconds)


def measure(batches: int, records: int, text: int, latency: float) -> Meter:
    """Run one job, its batches all of the same size, to its end; with 0 batches, run some idle ticks."""
    meter = Meter()
    metrics.provider.namespace, metrics.provider.service = "Dropbatch", "dropbatch"  # as the template's variables do
    api = WorkersAI(
        Behaviour(embedder="hash", latency=latency, latency_kind="lognormal", latency_spread=0.5),
        now=lambda: time.time(),  # noqa: PLW0108 - the clock moves
    )
    real_call = botocore.client.BaseClient._make_api_call  # type: ignore[attr-defined] # noqa: SLF001 - private: not in the stubs
    real_stub = BotocoreStubber.__call__

    def call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:  # noqa: ANN401
        answer: dict[str, Any] = {}
        try:
            answer = real_call(client, operation, arguments)
        finally:
            meter.call(client, operation, arguments, answer)
        return answer

    def stub(self: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        with meter.foreign():
            return real_stub(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setattr(botocore.client.BaseClient, "_make_api_call", call)
        patch.setattr(BotocoreStubber, "__call__", stub)
        patch.setattr(dropbatch.core.plan_upload, "FIRST_BATCH_RECORDS", records)
        inner = transport(api)
        settings = {"MAX_REQUESTS_PER_BATCH": records, "COMPLETION_EVENTS": "no"}
        making = contextlib.contextmanager(make_world)(_Api(inner, meter), patch, **settings)
        with making as made:
            made.wakes = made.reads_and_submits = True
            world = Metered(**vars(made))
            world.meter = meter
            if not batches:
                for _ in range(IDLE_TICKS):
                    world.tick()
                    world.pass_time(60 - world.now() % 60)
                return meter
            line = json.dumps({"text": "w" * text}) + "\n"
            world.upload("cost.jsonl", line * (batches * records), model=MODEL)
            world.settle(minutes=600)
            assert world.manifest()["counts"]["succeeded"] == batches * records
            _store(world)
            for seconds in (FIRST_SECONDS, STAGING_SECONDS - FIRST_SECONDS):
                world.pass_time(seconds)
                world.tick()
            assert world.objects("staging/") == []
    return meter


def _store(world: Metered) -> None:
    """Note what a job that is over has stored, its results excepted."""
    stored = world.meter.stored
    pages = world.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="staging/")
    for staged in (entry for page in pages for entry in page["Contents"]):
        stored["early" if is_in_results(staged["Key"]) else "late"] += staged["Size"]
    # In a job as small as this, no segment is written: a large one holds all its output in segments too.
    stored["early"] += sum(file["bytes"] for file in world.manifest()["files"])
    stored["items"] = sum(item_size(item) for item in world.items())


class _Api(httpx.BaseTransport):
    """The local API, with its processor time excluded from the function's."""

    def __init__(self, inner: httpx.BaseTransport, meter: Meter) -> None:
        self.inner, self.meter = inner, meter

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self.meter.foreign():
            asked = request.read()
            submits = b'"requests"' in asked[:20]
            answer = self.inner.handle_request(request)
            content = answer.read()
        size = len(content)
        self.meter.wait(API_WAITS["submit" if submits else "finished" if size > 500 else "pending"])
        self.meter.used["API calls"] += 1
        self.meter.steps[self.meter.run.step if self.meter.run else ""]["api"] += 1
        self.meter.used["reply bytes"] += size
        self.meter.move(len(asked) + size)
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)

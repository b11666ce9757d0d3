"""Measures what both functions compute for a call and for a record, in jobs on moto.

They run one after the other, in this process. How long calls wait for answers is assumed, as stated
here.
"""

import contextlib
import io
import json
import mmap
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import botocore.client
import httpx
import pytest
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber

import dropbatch.core.plan
import functions.poll.handler
import functions.submit.handler
from bench.timing import AWS_SECONDS
from local.workers_ai import Behaviour, WorkersAI, transport
from shared.observability import logger, metrics
from tests.support.journeys.world import TIMEOUT_SECONDS, World, make_world

MODEL = "@cf/baai/bge-small-en-v1.5"
FULL_BATCHES, FULL_RECORDS, FULL_TEXT = 3, 5_000, 985
"""The job on which processor time is measured: the largest batches, of records of 1 KB."""
SMALL_BATCHES = 40
"""Batches of a record, of the job on which the processor time of calls is measured."""
ROUNDS = 3
"""Of each measurement of processor time; the fastest counts, because the machine may be shared."""
LATENCY = 60.0
"""Seconds until a batch is answered, the median."""
FUNCTIONS = ("submit", "poll")
WAITS = AWS_SECONDS | {"secretsmanager": 0.0}
API_WAITS = {"submit": 1.0, "pending": 0.3, "finished": 0.8}
"""Seconds until Workers AI answers, assumed."""
CALL_CPU = 0.001
"""Seconds of work on sockets and TLS per call, assumed: there is none here."""
TLS_CPU = 0.0008e-6
"""Processor seconds that TLS takes for each byte that is moved.

Measured with httpx and boto3, on one machine.
"""
TICK_SECONDS = 60.0


# ── counting ──────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Run:
    """What one invocation of a function used."""

    function: str
    foreign: float = 0.0
    """Processor seconds of moto and of the local API."""
    moved: int = 0
    """Bytes of objects, requests and replies."""


class Meter:
    """Counts the functions' calls while one of them runs, and what it computes."""

    def __init__(self) -> None:
        """Start all counts at zero."""
        self.calls: Counter[str] = Counter()
        """Of AWS and of the API, by function."""
        self.computed: defaultdict[str, float] = defaultdict(float)
        """Seconds of a whole processor, by function."""
        self.run: Run | None = None
        self.lock = threading.Lock()

    def call(self, moved: int) -> None:
        """Count one call, and bytes that it moved over TLS."""
        if self.run is not None:
            with self.lock:
                self.run.moved += moved
                self.calls[self.run.function] += 1

    @contextlib.contextmanager
    def invocation(self, function: str) -> Iterator[None]:
        """Count one run of a function."""
        self.run = Run(function)
        log = io.StringIO()
        logger.registered_handler.setStream(log)  # type: ignore[attr-defined]
        cpu = time.process_time()
        with contextlib.redirect_stdout(log):
            yield
        own = max(time.process_time() - cpu - self.run.foreign, 0.0)
        self.computed[function] += own + self.run.moved * TLS_CPU
        self.run = None

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


# ── a job ─────────────────────────────────────────────────────────────────────────────────────────


class Metered(World):
    """A world whose functions are metered."""

    meter: Meter

    def settle(self, *, minutes: int = 60, until: Callable[[], bool] | None = None) -> None:
        """Let minutes pass, second by second, until every job is over.

        Messages arrive when they are asked for.
        """
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

    def invoke(
        self,
        handler: Any,
        event: dict[str, Any],
        seconds: float = TIMEOUT_SECONDS,  # noqa: ANN401, RUF100
    ) -> set[str]:
        """Call a handler as Lambda does."""
        with self.meter.invocation("poll" if handler is functions.poll.handler else "submit"):
            return super().invoke(handler, event, seconds)


def measure(batches: int, records: int, text: int, latency: float) -> Meter:
    """Run one job, its batches all of the same size, to its end."""
    meter = Meter()
    # as the template's variables do
    metrics.provider.namespace, metrics.provider.service = "Dropbatch", "dropbatch"
    api = WorkersAI(
        Behaviour(embedder="hash", latency=latency, latency_kind="lognormal", latency_spread=0.5),
        now=lambda: time.time(),  # noqa: PLW0108 - the clock moves
    )
    real_call = botocore.client.BaseClient._make_api_call  # type: ignore[attr-defined] # noqa: SLF001 - private: not in the stubs
    real_stub = BotocoreStubber.__call__

    def call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        answer: dict[str, Any] = {}
        try:
            answer = real_call(client, operation, arguments)
        finally:
            is_s3 = client.meta.service_model.service_name == "s3"
            meter.call(_body_size(operation, arguments, answer) if is_s3 else 0)
        return answer

    def stub(self: Any, *arguments: Any, **named: Any) -> Any:
        with meter.foreign():
            return real_stub(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setattr(botocore.client.BaseClient, "_make_api_call", call)
        patch.setattr(BotocoreStubber, "__call__", stub)
        patch.setattr(dropbatch.core.plan, "FIRST_BATCH_RECORDS", records)
        inner = transport(api)
        settings = {"MAX_REQUESTS_PER_BATCH": records, "COMPLETION_EVENTS": "no"}
        making = contextlib.contextmanager(make_world)(_Api(inner, meter), patch, **settings)
        with making as made:
            made.wakes = True
            world = Metered(**vars(made))
            world.meter = meter
            line = json.dumps({"text": "w" * text}) + "\n"
            world.upload("cost.jsonl", line * (batches * records), model=MODEL)
            world.settle(minutes=600)
            assert world.manifest()["counts"]["succeeded"] == batches * records
    return meter


class _Api(httpx.BaseTransport):
    """The local API, with its processor time excluded from the function's."""

    def __init__(self, inner: httpx.BaseTransport, meter: Meter) -> None:
        self.inner, self.meter = inner, meter

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self.meter.foreign():
            asked = request.read()
            answer = self.inner.handle_request(request)
            content = answer.read()
        self.meter.call(len(asked) + len(content))
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)


# ── computing ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Computing:
    """Seconds of a whole processor that each function takes.

    For a call and for a record of 1 KB with its answer.
    """

    call: dict[str, float]
    record: dict[str, float]


def computing() -> Computing:
    """Measure it: in the two jobs that are compared all batches are answered at once.

    So their calls are the same.
    """
    small, few, full = (
        [measure(*job) for _ in range(ROUNDS)]
        for job in (
            (SMALL_BATCHES, 1, 20, LATENCY),
            (FULL_BATCHES, 1, 20, 0.0),
            (FULL_BATCHES, FULL_RECORDS, FULL_TEXT, 0.0),
        )
    )

    def least(rounds: list[Meter], name: str) -> float:
        return min(one.computed[name] for one in rounds)

    records = FULL_BATCHES * FULL_RECORDS
    return Computing(
        {name: min(one.computed[name] / one.calls[name] for one in small) for name in FUNCTIONS},
        {name: (least(full, name) - least(few, name)) / records for name in FUNCTIONS},
    )

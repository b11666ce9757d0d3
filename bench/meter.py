"""Measures what both functions compute for a call and for a record, in jobs on moto.

They run one after the other, in this process. How long calls wait for answers is assumed, as stated
here.
"""

import contextlib
import io
import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber

import dropbatch.core.plan
import functions.poll.handler
from bench.timing import AWS_SECONDS
from local.workers_ai import Behaviour, WorkersAI, transport
from shared.observability import logger, metrics
from tests.support.aws import quick_moto
from tests.support.journeys.world import World, make_world

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


def behaviour_of(latency: float) -> Behaviour:
    """How the API answers, within so many seconds (the median)."""
    spread = {"latency_kind": "lognormal", "latency_spread": 0.5}
    return Behaviour(embedder="hash").changed({"latency": latency, **spread})


class Meter:
    """Counts each function's calls of AWS and the API, and seconds of a processor it computes."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.computed: defaultdict[str, float] = defaultdict(float)
        self._running = ""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def invocation(self, function: str) -> Iterator[None]:
        log = io.StringIO()
        logger.registered_handler.setStream(log)  # type: ignore[attr-defined]
        began, self._running = time.process_time(), function
        with contextlib.redirect_stdout(log):
            yield
        self.computed[function] += time.process_time() - began
        self._running = ""

    @contextlib.contextmanager
    def foreign(self) -> Iterator[list[int]]:
        """Count one call, not what this thread computes for it; the list gets the bytes moved."""
        began, moved = time.thread_time(), list[int]()
        yield moved
        own = TLS_CPU * sum(moved) - (time.thread_time() - began)
        if self._running:
            with self._lock:
                self.calls[self._running] += 1
                self.computed[self._running] += own


class Metered(World):
    meter: Meter

    def invoke(self, handler: Any, event: dict[str, Any], *seconds: float) -> set[str]:
        with self.meter.invocation("poll" if handler is functions.poll.handler else "submit"):
            return super().invoke(handler, event, *seconds)


class _Api(httpx.BaseTransport):
    def __init__(self, api: WorkersAI, meter: Meter) -> None:
        self.inner, self.meter = transport(api), meter

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self.meter.foreign() as moved:
            asked = request.read()
            answer = self.inner.handle_request(request)
            content = answer.read()
            moved.extend((len(asked), len(content)))
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)


def measure(batches: int, records: int, text: int, latency: float) -> Meter:
    """Run one job, its batches all of the same size, to its end."""
    meter, real_stub = Meter(), BotocoreStubber.__call__
    # as the template's variables do
    metrics.provider.namespace, metrics.provider.service = "Dropbatch", "dropbatch"

    def stub(self: Any, event_name: str, request: Any, **named: Any) -> Any:
        with meter.foreign() as moved:
            answer = real_stub(self, event_name, request, **named)
            headers = (request.headers, answer.headers if answer else {})
            moved.extend(int(one.get("Content-Length") or 0) for one in headers)
            return answer

    with pytest.MonkeyPatch.context() as patch, mock_aws():
        patch.setattr(quick_moto, "DIRECT", {})  # Each call is one of botocore.
        patch.setattr(BotocoreStubber, "__call__", stub)
        patch.setattr(dropbatch.core.plan, "FIRST_BATCH_RECORDS", records)
        # The clock moves.
        api = _Api(WorkersAI(behaviour_of(latency), now=lambda: time.time()), meter)  # noqa: PLW0108
        settings = {"MAX_REQUESTS_PER_BATCH": records, "COMPLETION_EVENTS": "no"}
        with contextlib.contextmanager(make_world)(api, patch, **settings) as made:
            world = Metered(**vars(made))
            world.meter, world.wakes = meter, True
            line = json.dumps({"text": "w" * text}) + "\n"
            world.upload("cost.jsonl", line * (batches * records), model=MODEL)
            world.settle(minutes=600)
            assert world.manifest()["counts"]["succeeded"] == batches * records
    return meter


@dataclass(frozen=True, slots=True)
class Computing:
    """Seconds of a whole processor, by function: for a call, and a record with its answer."""

    call: dict[str, float]
    record: dict[str, float]


def computing() -> Computing:
    """Measure it: in the two jobs that are compared all batches are answered at once."""
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

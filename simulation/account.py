"""An AWS account in memory: a table, a bucket, queues, an event bus, functions on one clock."""

import gc
import json
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from urllib.parse import quote_plus

import boto3

from simulation.invocations import EventSource, Function, Invocation, Schedule
from simulation.kernel import DiedError, Kernel, Life
from simulation.services.awkward import Awkward
from simulation.services.calls import Calls
from simulation.services.dynamodb import DynamoDB
from simulation.services.events import Events
from simulation.services.expressions import NotSimulatedError
from simulation.services.s3 import S3, Version
from simulation.services.sqs import SQS, Queue
from simulation.services.table import Table

START = 1_800_000_000.0
"""Unix seconds at which an account begins, unless it is given another time."""
MOST_INVOCATIONS = 1_000
"""Invocations at the same time that an account has at first."""
SERVICES = ("dynamodb", "s3", "sqs", "events")
A_TABLE = Table("table", "pk", "sk")


class Account:
    """Everything of one seed.

    Attributes:
        began: Unix seconds.
        kernel: the clock, and the seed's decisions.
        calls: how calls of services take place.
        functions: by name.
        sources: what each queue invokes, by the queue's name.
        notifications: prefixes of keys in the bucket, each with the queue that is told of new
            objects.
        trace: called with a line for each moment at which an invocation may be switched away from.
    """

    def __init__(
        self,
        seed: int,
        awkward: Awkward | None = None,
        *,
        start: float = START,
        table: Table = A_TABLE,
        bucket: str = "bucket",
        queues: Iterable[Queue] = (),
    ) -> None:
        """Make empty services; `installed` puts them in place of boto3's."""
        self.seed = seed
        self.began = start
        self.kernel = Kernel(seed, start)
        self.calls = Calls(self.kernel, awkward or Awkward())
        self.calls.before = self._before
        self.dynamodb = DynamoDB(self.calls, table)
        self.s3 = S3(self.calls, bucket)
        self.s3.watchers.append(self.notify)
        self.events = Events(self.calls)
        self.sqs = SQS(self.calls, {one.name: one for one in queues}, self._message_sent)
        self.functions: dict[str, Function] = {}
        self.sources: dict[str, EventSource] = {}
        self.notifications: list[tuple[str, str]] = []
        self.trace: Callable[[str], None] | None = None

    # ── what it has ───────────────────────────────────────────────────────────────────────────────

    def add_function(
        self,
        name: str,
        handler: Callable[[dict[str, Any], Any], Any],
        *,
        timeout: float = 3.0,
        most: int = MOST_INVOCATIONS,
        build: Callable[[], Any] = lambda: None,
    ) -> Function:
        """Add a function; its arguments are described at `Function`, `timeout` is in seconds."""
        function = self.functions[name] = Function(name, handler, timeout, most, self.calls, build)
        return function

    def connect(self, queue: str, function: Function, most: int = MOST_INVOCATIONS) -> EventSource:
        """Let a queue invoke a function with each of its messages, at most `most` at a time."""
        source = self.sources[queue] = EventSource(
            self.sqs.queues[queue], function, most, self.calls
        )
        return source

    def schedule(self, function: Function, seconds: float, first: float) -> Schedule:
        """Invoke a function every so many seconds, the first time at `first`, Unix seconds."""
        return Schedule(function, seconds, first, self.calls)

    # ── what happens in it ────────────────────────────────────────────────────────────────────────

    def run(self, seconds: float, done: Callable[[], bool] | None = None) -> None:
        """Let time pass, or until `done` says so."""
        self.kernel.run(self.kernel.now + seconds, done)

    def notify(self, version: Version) -> None:
        """Tell the queues of a new object, as S3 does; also to tell them once more."""
        for prefix, queue in self.notifications:
            if version.key.startswith(prefix):
                self._send_notification(version, queue)

    def _send_notification(self, version: Version, queue: str) -> None:
        described = {"key": quote_plus(version.key), "versionId": version.id, "eTag": version.etag}
        at = version.modified.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        record = {
            "eventName": "ObjectCreated:Put",
            "eventTime": at,
            "s3": {"bucket": {"name": self.s3.bucket}, "object": described},
        }
        body = json.dumps({"Records": [record]})
        times = 1 + (self.kernel.random.random() < self.calls.awkward.notified_twice)
        for _ in range(times):
            late = self.kernel.random.uniform(0, self.calls.awkward.notified_late_seconds)
            moment = self.kernel.now + self.kernel.random.uniform(0.1, 0.5) + late
            self.kernel.at(moment, lambda: self.sqs.put(queue, body))

    def _message_sent(self, queue: Queue, visible_at: float) -> None:
        if (source := self.sources.get(queue.name)) is not None:
            source.wake(visible_at)

    def _before(self, life: Life, operation: str) -> None:
        if self.trace is not None:
            self.trace(f"{self.kernel.now - self.began:10.3f} {life.name} {operation}")
        self.may_die(life)

    def may_die(self, life: Life) -> None:
        """Kill the running invocation if its seed has chosen this call."""
        invocation: Invocation = life.owner
        if invocation.dies_at and life.calls >= invocation.dies_at:
            self.kernel.kill(life)
            raise DiedError

    # ── what a function sees ──────────────────────────────────────────────────────────────────────

    def clock(self) -> float:
        """Unix seconds by the clock of the running invocation, in place of `time.time`."""
        life = self.kernel.life()
        return self.kernel.now - (life.owner.clock_behind if life else 0.0)

    def called_at(self) -> float:
        """When the present call of the running task began, by the clock of its invocation."""
        task = self.kernel.task
        return self.clock() if task is None else task.called_at - task.life.owner.clock_behind

    def invocation(self) -> Invocation:
        life = self.kernel.life()
        assert life is not None, "nothing runs"
        found: Invocation = life.owner
        return found

    def client(self, name: str, *_: object, **_options: object) -> Any:
        """A client of a simulated service, in place of `boto3.client`."""
        if name not in SERVICES:
            raise NotSimulatedError(f"the service {name}")
        return Client(getattr(self, name))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In place of AWS, threads and chance, until the context ends."""

        def session(*_: object, **_options: object) -> SimpleNamespace:
            return SimpleNamespace(client=self.client)

        with ExitStack() as stack:
            for target, name, replacement in (
                (ThreadPoolExecutor, "submit", _as_method(self.kernel.submit)),
                (ThreadPoolExecutor, "shutdown", _as_method(self.kernel.shut_down)),
                (boto3, "client", self.client),
                (boto3, "Session", session),
                (boto3.session, "Session", session),
            ):
                stack.enter_context(patch.object(target, name, replacement))
            thresholds = gc.get_threshold()
            gc.set_threshold(50_000, 50, 1_000)  # An account has many objects and few circles.
            stack.callback(gc.set_threshold, *thresholds)
            stack.callback(random.setstate, random.getstate())
            random.seed(self.seed)
            stack.callback(self.kernel.close)
            yield


def _as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a class passes its instance to; a bound method would not get it."""
    return lambda *given, **named: function(*given, **named)  # noqa: PLW0108 - see above


META = SimpleNamespace(events=SimpleNamespace(register=lambda *_: None))
"""A boto3 client's `meta`, as far as programs use it at their start: nobody takes notice."""


class Client:
    """A service as boto3's client shows it."""

    def __init__(self, service: object) -> None:
        """Look each operation up when it is called: somebody may have replaced it."""
        self.meta = META
        self._service = service

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._service, name)
        except AttributeError:
            raise NotSimulatedError(f"{type(self._service).__name__}.{name}") from None

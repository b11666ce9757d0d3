"""A simulated world: `template.yaml`'s queues, table, bucket and functions, users, and a clock, decided by one seed.

The functions are the real ones, entered by their handlers. What they import is replaced at the outermost edge: boto3's
session, the HTTP client, the thread pool, time and chance.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.parse import quote_plus

import boto3
from aws_lambda_powertools.utilities.batch import BatchProcessor

import functions.poll.handler
import functions.submit.handler
from dropbatch.core.keys import job_id
from local.template import properties, template
from local.workers_ai import Behaviour, Fault, WorkersAI
from shared import bootstrap, observability
from shared.aws import attribute_values, dynamodb
from shared.ledger import batches, jobs
from shared.pacing import budget, controls
from shared.workers_ai import client as api_client
from shared.workers_ai.transports import Credentials
from tests.simulation.kernel import DiedError, Kernel, Life
from tests.simulation.services.api import Http, Meta
from tests.simulation.services.awkward import Awkward
from tests.simulation.services.calls import Calls
from tests.simulation.services.dynamodb import DynamoDB
from tests.simulation.services.events import Events
from tests.simulation.services.s3 import S3, Version
from tests.simulation.services.sqs import SQS, Queue
from tests.simulation.worlds.lambdas import EventSource, Function, Invocation
from tests.support.aws.resources import BUCKET, QUEUES, TABLE, TOKEN, variables
from tests.support.doubles import other_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shared.bootstrap import Services
    from tests.simulation.services.dynamodb import Key, Wire

START = 1_795_253_407.0
"""Unix seconds at which every world begins: 2026-11-21, 09:30:07 UTC."""
TICK_SECONDS = 60.0
LATE_TICK_SECONDS = 600.0
"""Seconds between ticks when everything is over; each is as long as a small job for the simulation."""
FINAL = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Upload:
    """What a user has put: its key, and its records as they were written, one a line."""

    key: str
    job_id: str
    lines: tuple[str, ...]
    at: float


class Reader:
    """Stands for `attribute_values.read`, and reads a stored item only once: neither it nor what is read changes."""

    def __init__(self, table: DynamoDB) -> None:
        """Nothing is read yet; what was read is forgotten when its item is overwritten or deleted."""
        self._items = table.items
        self._read: dict[int, tuple[Any, type, Any]] = {}
        table.watchers.append(self._forget)

    def __call__(self, item: Any, kind: type) -> Any:
        """As `attribute_values.read`."""
        found = self._read.get(id(item))
        if found is not None and found[1] is kind:
            return found[2]
        value: Any = attribute_values.read(item, kind)
        if "pk" in item and self._items.get((item["pk"]["S"], item["sk"]["S"])) is item:
            self._read[id(item)] = item, kind, value
        return value

    def _forget(self, _key: Key, old: Wire | None, _new: Wire | None) -> None:
        self._read.pop(id(old), None)


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, awkward: Awkward | None = None, behaviour: Behaviour | None = None) -> None:
        """Make empty services; `simulated` also installs them."""
        self.seed = seed
        self.began = START
        self.has_faults = False
        self.calls_per_minute = int(os.environ["API_CALLS_PER_MINUTE"])
        self.call_times: list[float] = []
        self.token = TOKEN
        self.tick_seconds = TICK_SECONDS
        self.kernel = Kernel(seed, START)
        self.calls = Calls(self.kernel, awkward or Awkward())
        self.calls.before = lambda life, _operation: self.may_die(life)
        self.api = WorkersAI(behaviour or Behaviour(embedder="hash", latency=20.0), now=lambda: self.kernel.now)
        self.dynamodb = DynamoDB(self.calls, TABLE)
        self.s3 = S3(self.calls, BUCKET)
        self.s3.watchers.append(self._notify)
        self.events = Events(self.calls)
        self.sqs = SQS(self.calls, {name: _queue(name) for name in QUEUES}, self._message_sent)
        self.metrics: dict[str, float] = {}
        self.measured: list[Callable[[str, float], None]] = []
        """Called with each metric and its value."""
        self.versions: dict[str, other_versions.Version] = {}
        """The functions of which new processes are another version."""
        self._building: other_versions.Version | None = None
        self.failures: list[BaseException] = []
        """What messages failed with."""
        self.uploads: list[Upload] = []
        self._open: set[str] = set()
        """Keys of the items of jobs that are not over."""
        self.dynamodb.watchers.append(self._note_over)
        self.sources: dict[str, EventSource] = {}
        self.functions: dict[str, Function] = {}
        for name, module in (("Submit", functions.submit.handler), ("Poll", functions.poll.handler)):
            self._make_function(f"{name}Function", module)
        self.kernel.at(START + self.kernel.random.uniform(0, TICK_SECONDS), self._tick)

    # ── users ────────────────────────────────────────────────────────────────────────────────────────────────────

    def upload(self, name: str, lines: list[str], **metadata: str) -> Upload:
        """Put an upload under `inbox/` now."""
        key = f"inbox/{name}"
        body = "".join(f"{line}\n" for line in lines).encode()
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=body, Metadata=metadata)
        stored = self.s3.objects[key]
        upload = Upload(
            key, job_id(BUCKET, key, stored.id, stored.etag, stored.modified), tuple(lines), self.kernel.now
        )
        self.uploads.append(upload)
        self._open.add(f"JOB#{upload.job_id}")
        return upload

    def notify_again(self, upload: Upload) -> None:
        """S3 sends the event of an upload a second time."""
        self._notify(self.s3.objects[upload.key])

    def command(self, name: str, word: str) -> None:
        """Write a command: `name` is a job's id, or `stack`."""
        key = "control/stack" if name == "stack" else f"control/jobs/{name}"
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=word.encode())

    def redeploy(self, versions: Mapping[str, other_versions.Version] | None = None, **settings: object) -> None:
        """Deploy the stack: functions of other versions, or with other parameters, which `simulated` restores.

        Args:
            versions: by function; one that is not here becomes this version.
            settings: the functions' variables.
        """
        self.versions = dict(versions or {})
        os.environ.update({name: str(value) for name, value in settings.items()})
        self.calls_per_minute = int(os.environ["API_CALLS_PER_MINUTE"])
        for function in self.functions.values():
            function.replace_processes()

    def run(self, seconds: float, done: Callable[[], bool] | None = None) -> None:
        """Let time pass."""
        self.kernel.run(self.kernel.now + seconds, done)

    def settle(self, seconds: float) -> bool:
        """Let time pass until every upload's job is over; return whether they are."""
        self.run(seconds, self.all_over)
        return self.all_over()

    def wait_for_late_things(self, seconds: float) -> None:
        """Let time pass when everything is over: messages may come again, and rare ticks find nothing to do."""
        self.tick_seconds = LATE_TICK_SECONDS
        self.run(seconds)

    # ── what a judge reads ───────────────────────────────────────────────────────────────────────────────────────

    def job(self, upload: Upload) -> dict[str, Any] | None:
        """A job's item in wire form."""
        return self.dynamodb.items.get((f"JOB#{upload.job_id}", "META"))

    def all_over(self) -> bool:
        """Whether every upload has a job, and all are final."""
        return not self._open

    def _note_over(self, key: Key, _old: Wire | None, new: Wire | None) -> None:
        if key[1] == "META" and new is not None and new["state"]["S"] in FINAL:
            self._open.discard(key[0])

    def result(self, upload: Upload, name: str) -> bytes | None:
        """A result file of an upload, None if there is none."""
        found = self.s3.objects.get(f"results/{upload.key.removeprefix('inbox/')}/{upload.job_id}/{name}")
        return None if found is None else found.body

    # ── AWS ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _make_function(self, name: str, module: Any) -> None:
        described = template()["Resources"][name]["Properties"]
        timeout = template()["Globals"]["Function"]["Timeout"]
        reserved = _number(described["ReservedConcurrentExecutions"])
        function = self.functions[name] = Function(
            name, module, timeout, reserved, self.calls, partial(self._build, name)
        )
        for event in described["Events"].values():
            if event["Type"] != "SQS":
                continue
            queue = _resource(event["Properties"]["Queue"])
            most = _number(event["Properties"]["ScalingConfig"]["MaximumConcurrency"])
            self.sources[queue] = EventSource(self.sqs.queues[queue], function, most, self.calls)

    def _build(self, function: str) -> Services:
        """Services of a new process of a function."""
        self._building = self.versions.get(function)
        return replace(bootstrap.services.__wrapped__(), now=self.clock, sleep=self.kernel.wait)

    def clock(self) -> float:
        """Unix seconds by the clock of the running invocation."""
        life = self.kernel.life()
        return self.kernel.now - (life.owner.clock_behind if life else 0.0)

    def client(self, name: str, config: object = None) -> Any:
        """A client of a simulated service."""
        del config
        found: Any = {"dynamodb": self.dynamodb, "s3": self.s3, "sqs": self.sqs, "events": self.events}[name]
        found.meta = Meta
        return other_versions.OtherVersion(found, self._building) if name == "dynamodb" and self._building else found

    def _tick(self) -> None:
        self.functions["PollFunction"].invoke({}, lambda _: None)
        self.kernel.at(self.kernel.now + self.tick_seconds, self._tick)

    def _message_sent(self, queue: Queue, visible_at: float) -> None:
        self.sources[queue.name].wake(visible_at)

    def _notify(self, version: Version) -> None:
        for one in properties("Bucket")["NotificationConfiguration"]["QueueConfigurations"]:
            (rule,) = one["Filter"]["S3Key"]["Rules"]
            if version.key.startswith(rule["Value"]):
                self._send_notification(version, _resource(one["Queue"]))

    def _send_notification(self, version: Version, queue: str) -> None:
        described = {"key": quote_plus(version.key), "versionId": version.id, "eTag": version.etag}
        at = version.modified.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        record = {
            "eventName": "ObjectCreated:Put",
            "eventTime": at,
            "s3": {"bucket": {"name": BUCKET}, "object": described},
        }
        body = json.dumps({"Records": [record]})
        times = 1 + (self.kernel.random.random() < self.calls.awkward.notified_twice)
        for _ in range(times):
            late = self.kernel.random.uniform(0, self.calls.awkward.notified_late_seconds)
            moment = self.kernel.now + self.kernel.random.uniform(0.1, 0.5) + late
            self.kernel.at(moment, lambda: self.sqs.put(queue, body))

    def inject(self, *faults: Fault) -> None:
        """Let the API do something to its next calls."""
        self.has_faults = self.has_faults or bool(faults)
        self.api.inject(*faults)

    def may_die(self, life: Life) -> None:
        """Kill the running invocation if its seed has chosen this call."""
        invocation: Invocation = life.owner
        if invocation.dies_at and life.calls >= invocation.dies_at:
            self.kernel.kill(life)
            raise DiedError

    def services(self) -> Services:
        """The services of the running invocation's process, for the handlers."""
        life = self.kernel.life()
        assert life is not None
        invocation: Invocation = life.owner
        return invocation.process.services

    def message_failed(self, record: Any, exception: Any) -> Any:
        """In place of the processor's handler of a failed message, which Lambda delivers again."""
        self.failures.append(exception[1])
        processor = self._handler().processor
        return BatchProcessor.failure_handler(processor, record, exception)

    def _handler(self) -> Any:
        life = self.kernel.life()
        assert life is not None
        return self.functions[life.name.partition("-")[0]].handler

    def count(self, name: str, unit: str, value: float = 1) -> None:
        """Add to a metric."""
        del unit
        self.metrics[name] = self.metrics.get(name, 0.0) + value
        for watch in self.measured:
            watch(name, value)


@contextmanager
def simulated(
    seed: int, awkward: Awkward | None = None, behaviour: Behaviour | None = None, **settings: object
) -> Iterator[World]:
    """A world, installed in place of AWS, the API, threads, time and chance until the context ends."""
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, _environment(settings)))
        world = World(seed, awkward, behaviour)
        clock = SimpleNamespace(time=world.clock, monotonic=world.clock)
        session = SimpleNamespace(client=world.client)
        chance = random.Random(seed)
        reader = Reader(world.dynamodb)
        for target, name, replacement in (
            *((module, "read", reader) for module in (budget, controls, dynamodb, batches, jobs)),
            (ThreadPoolExecutor, "submit", _as_method(world.kernel.submit)),
            (ThreadPoolExecutor, "shutdown", _as_method(world.kernel.shut_down)),
            (boto3.session, "Session", lambda: session),
            (bootstrap, "http_client", lambda: Http(world.calls, world.api, world.call_times)),
            (bootstrap, "_credentials_reader", lambda *_: lambda _fresh: Credentials(world.token)),
            (api_client, "time", clock),
            (api_client, "_cut_off_at", _never_cut_off),
            (controls, "secrets", SimpleNamespace(token_hex=lambda size: chance.randbytes(size).hex())),
            (functions.submit.handler, "services", world.services),
            (functions.poll.handler, "services", world.services),
            (observability.metrics, "add_metric", world.count),
            (observability.LoggingBatchProcessor, "failure_handler", world.message_failed),
            (observability.metrics, "flush_metrics", lambda **_: None),
            (inspect, "signature", cache(inspect.signature)),  # Powertools asks for a handler's with each message.
        ):
            stack.enter_context(patch.object(target, name, replacement))
        thresholds = gc.get_threshold()
        gc.set_threshold(50_000, 50, 1_000)  # A world has many objects and few circles.
        stack.callback(gc.set_threshold, *thresholds)
        before, level = random.getstate(), observability.logger.log_level
        stack.callback(random.setstate, before)
        stack.callback(observability.logger.setLevel, level)
        random.seed(seed)
        observability.logger.setLevel("CRITICAL")
        stack.callback(world.kernel.close)
        yield world


def _as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a class passes its instance to; a bound method would not get it."""
    return lambda *given, **named: function(*given, **named)  # noqa: PLW0108 - see above


@contextmanager
def _never_cut_off(_deadline: float) -> Iterator[None]:
    """No timer: the simulated API answers in simulated time."""
    yield None


def _environment(settings: dict[str, object]) -> dict[str, str]:
    given = {name: str(value) for name, value in settings.items()}
    queues = {name: name for name in QUEUES}
    secret = {"AWS_DEFAULT_REGION": "eu-west-1", "CLOUDFLARE_API_TOKEN_SECRET_ARN": "token"}
    return {**variables(queues), **secret, **given}


def _queue(name: str) -> Queue:
    described = properties(name)
    redrive = described["RedrivePolicy"]
    return Queue(name, described["VisibilityTimeout"], described["MessageRetentionPeriod"], redrive["maxReceiveCount"])


def _number(value: Any) -> int:
    """A number of the template; of a condition, the value that holds with reserved concurrency."""
    return int(value["Fn::If"][1]) if isinstance(value, dict) else int(value)


def _resource(value: Any) -> str:
    """The logical name in a GetAtt."""
    attribute = value["Fn::GetAtt"]
    return str(attribute[0] if isinstance(attribute, list) else attribute.partition(".")[0])

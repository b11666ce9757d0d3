"""A simulated world.

`template.yaml`'s queues, table, bucket and functions, users, and a clock, decided by one seed.

The functions are the real ones, entered by their handlers. What they import is replaced at the
outermost edge: by `simulation` boto3's session, the thread pool and chance, and here the HTTP
client and time.
"""

from __future__ import annotations

import inspect
import os
import random
import secrets
from base64 import urlsafe_b64encode
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from hashlib import sha256
from math import inf
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec
from aws_lambda_powertools.utilities.batch import BatchProcessor

import functions.poll.handler
import functions.submit.handler
from dropbatch.core.models import find_model
from dropbatch.core.names import job_id
from dropbatch.core.prices import Tokens, cost_of
from local.template import properties, template
from local.workers_ai import Behaviour, Fault, WorkersAI
from local.workers_ai.complete import reported
from local.workers_ai.models.catalogue import MODELS
from shared import bootstrap, observability
from shared.aws import attribute_values, dynamodb
from shared.events.subscribe import events_of
from shared.ledger import batches, jobs
from shared.pacing import breaker
from shared.workers_ai import client as api_client
from shared.workers_ai.transports import Credentials
from simulation import Account, Awkward, Queue
from tests.simulation.services.api import Http, is_of_queues
from tests.simulation.worlds.users import meaning
from tests.support.aws.resources import BUCKET, QUEUES, TOKEN, ledger_table, variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from local.workers_ai.replies import Reply
    from shared.services import Services
    from simulation.services.dynamodb import DynamoDB, Key, Wire

START = 1_795_253_407.0
"""Unix seconds at which every world begins: 2026-11-21, 09:30:07 UTC."""
TICK_SECONDS = 60.0
LATE_TICK_SECONDS = 600.0
"""Seconds between ticks when everything is over."""
API_SECONDS = (0.08, 0.4)
"""Shortest and longest usual duration of a call of the API, beside what it takes for a batch."""
HANDLERS: dict[str, Any] = {
    "SubmitFunction": functions.submit.handler,
    "PollFunction": functions.poll.handler,
}
FINAL = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Upload:
    """What a user has put: its key, and its records as they were written, one a line."""

    key: str
    job_id: str
    lines: tuple[str, ...]
    at: float


class Reader:
    """Stands for `attribute_values.read`, and reads a stored item only once."""

    def __init__(self, table: DynamoDB) -> None:
        """Nothing is read yet."""
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


class World(Account):
    """Everything of one seed."""

    def __init__(
        self, seed: int, awkward: Awkward | None = None, behaviour: Behaviour | None = None
    ) -> None:
        """Make empty services; `simulated` also installs them."""
        super().__init__(
            seed,
            awkward,
            start=START,
            table=ledger_table(),
            bucket=BUCKET,
            queues=map(_queue, QUEUES),
        )
        self.calls.seconds |= {"api": API_SECONDS, "queues": API_SECONDS}
        self.has_faults = False
        self.calls_per_minute = int(os.environ["API_CALLS_PER_MINUTE"])
        self.is_through_worker = os.environ["TRANSPORT"] == "worker"
        self.call_times: list[float] = []
        """When each call of models, or of the token's check, reached the API."""
        self.queue_times: list[float] = []
        """When each call of Queues did."""
        self.on_call: list[Callable[[str, str, bytes], None]] = [self._note_call]
        self.on_answer: list[Callable[[str, Mapping[str, str], bytes, Reply], None]] = []
        self.meanings: dict[str, str] = {}
        """What each body is about that was sent, by its SHA-256."""
        self.sent: dict[str, list[dict[str, Any]]] = {}
        """The requests of each body, by what it is about."""
        self.foreign_ids: set[str] = set()
        """Batches that others had accepted."""
        self.token = TOKEN
        """The value of the secret."""
        self.secret_reads = 0
        self.api = WorkersAI(
            behaviour or Behaviour(embedder="hash", latency=20.0), now=lambda: self.kernel.now
        )
        for one in properties("Bucket")["NotificationConfiguration"]["QueueConfigurations"]:
            (rule,) = one["Filter"]["S3Key"]["Rules"]
            self.notifications.append((rule["Value"], _resource(one["Queue"])))
        self.metrics: dict[str, float] = {}
        self.measured: list[Callable[[str, float], None]] = []
        """Called with each metric and its value."""
        self.failures: list[BaseException] = []
        """What messages failed with."""
        self.uploads: list[Upload] = []
        self.spoilt: list[Key] = []
        """Items that nobody can read."""
        self._open: set[str] = set()
        """Keys of the items of jobs that are not over."""
        self.dynamodb.watchers.append(self._note_over)
        for name, module in HANDLERS.items():
            self._make_function(name, module)
        first = START + self.kernel.random.uniform(0, TICK_SECONDS)
        self._ticks = self.schedule(self.functions["PollFunction"], TICK_SECONDS, first)

    def _note_call(self, path: str, _query: str, body: bytes) -> None:
        if b'"requests"' in body[:20]:
            # As the Worker does.
            requests = msgspec.json.decode(body)["requests"]
            passed_on = msgspec.json.encode({"requests": requests})
            for sent in (body, passed_on) if self.is_through_worker else (body,):
                about = self.meanings[sha256(sent).hexdigest()] = meaning(body)
                self.sent[about] = requests
        (self.queue_times if is_of_queues(path) else self.call_times).append(self.kernel.now)

    def bill_of(self, one: dict[str, Any]) -> Decimal:
        """What the answers to one of `billed` cost, US dollars; 0 without a price."""
        requests = self.sent[one["sha256"]]
        found = reported(MODELS[one["model"]], requests, self.api.behaviour)
        tokens = Tokens(
            sum(one.prompt_tokens for one in found), sum(one.completion_tokens for one in found)
        )
        cost = cost_of(find_model(one["model"]), tokens)
        return cost.amount if cost else Decimal()

    @property
    def billed(self) -> list[dict[str, Any]]:
        """What this stack had accepted; `sha256` is of what each body is about."""
        ours = [one for one in self.api.accepted if one["request_id"] not in self.foreign_ids]
        return [{**one, "sha256": self.meanings[one["sha256"]]} for one in ours]

    # ── users ─────────────────────────────────────────────────────────────────────────────────────

    def upload(self, name: str, lines: list[str], **metadata: str) -> Upload:
        """Put an upload under `inbox/` now."""
        key = f"inbox/{name}"
        body = "".join(f"{line}\n" for line in lines).encode()
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=body, Metadata=metadata)
        stored = self.s3.objects[key]
        upload = Upload(
            key,
            job_id(BUCKET, key, stored.id, stored.etag, stored.modified),
            tuple(lines),
            self.kernel.now,
        )
        self.uploads.append(upload)
        self._open.add(f"JOB#{upload.job_id}")
        return upload

    def notify_again(self, upload: Upload) -> None:
        """S3 sends the event of an upload a second time."""
        self.notify(self.s3.objects[upload.key])

    def command(self, name: str, word: str) -> None:
        """Write a command: `name` is a job's id, or `stack`."""
        key = "control/stack" if name == "stack" else f"control/jobs/{name}"
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=word.encode())

    def spoil(self, key: Key, item: Wire) -> None:
        """Something makes an item unreadable; laws of its job's own items are judged no more."""
        watchers, self.dynamodb.watchers = self.dynamodb.watchers, []
        self.dynamodb._store(key, item)
        self.dynamodb.watchers = watchers
        self.spoilt.append(key)
        if key[1] != "RATE":  # Each call's token is seen all the same.
            self.dynamodb.unwatched.add(key[0] if key[0].startswith("JOB#") else key)
        self._open.discard(key[0])

    def is_spoilt(self, upload: Upload | None = None) -> bool:
        """Whether an item of an upload's job was spoilt, or of any job."""
        start = f"JOB#{upload.job_id if upload else ''}"
        return any(pk.startswith(start) for pk, _ in self.spoilt)

    def redeploy(self, **settings: object) -> None:
        """Deploy the stack with other parameters, which `simulated` restores."""
        os.environ.update({name: str(value) for name, value in settings.items()})
        self.calls_per_minute = int(os.environ["API_CALLS_PER_MINUTE"])
        for function in self.functions.values():
            function.replace_processes()

    @property
    def tick_seconds(self) -> float:
        """Seconds from one tick to the next."""
        return self._ticks.seconds

    @tick_seconds.setter
    def tick_seconds(self, seconds: float) -> None:
        self._ticks.seconds = seconds

    def settle(self, seconds: float) -> bool:
        """Let time pass until every upload's job is over; return whether they are."""
        self.run(seconds, self.all_over)
        return self.all_over()

    def wait_for_late_things(self, seconds: float) -> None:
        """Let time pass when everything is over."""
        self.tick_seconds = LATE_TICK_SECONDS
        self.run(seconds)

    # ── what a judge reads ────────────────────────────────────────────────────────────────────────

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
        found = self.s3.objects.get(
            f"results/{upload.key.removeprefix('inbox/')}/{upload.job_id}/{name}"
        )
        return None if found is None else found.body

    # ── AWS ───────────────────────────────────────────────────────────────────────────────────────

    def _make_function(self, name: str, module: Any) -> None:
        described = template()["Resources"][name]["Properties"]
        timeout = template()["Globals"]["Function"]["Timeout"]
        sources = [one for one in described["Events"].values() if one["Type"] == "SQS"]
        most = [
            _number(one["Properties"]["ScalingConfig"]["MaximumConcurrency"]) for one in sources
        ]

        def handle(event: dict[str, Any], context: Any) -> Any:
            module.processor = type(module.processor)()  # As in a process of its own.
            return module.lambda_handler(event, context)

        function = self.add_function(
            name, handle, timeout=timeout, most=sum(most) + 2, build=self._build
        )
        for source, runs in zip(sources, most, strict=True):
            self.connect(_resource(source["Properties"]["Queue"]), function, runs)

    def _build(self) -> Services:
        """Services of a new process."""
        made = replace(bootstrap.services.__wrapped__(), now=self.clock, sleep=self.kernel.wait)
        # Events have a clock of their own, which was taken from the services before.
        return replace(made, events=events_of(replace(made, events=None)) if made.events else None)

    def inject(self, *faults: Fault) -> None:
        """Let the API do something to its next calls."""
        self.has_faults = self.has_faults or bool(faults)
        self.api.inject(*faults)

    def services(self) -> Services:
        """The services of the running invocation's process, for the handlers."""
        found: Services = self.invocation().process.state
        return found

    def count(self, name: str, unit: str, value: float = 1) -> None:
        """Add to a metric."""
        del unit
        self.metrics[name] = self.metrics.get(name, 0.0) + value
        for watch in self.measured:
            watch(name, value)


@contextmanager
def simulated(
    seed: int,
    awkward: Awkward | None = None,
    behaviour: Behaviour | None = None,
    **settings: object,
) -> Iterator[World]:
    """A world, installed in place of AWS, the API, threads, time and chance."""
    with ExitStack() as stack:
        stack.enter_context(
            patch.dict(os.environ, _environment({"COMPLETION_EVENTS": "no"} | settings))
        )
        world = World(seed, awkward, behaviour)

        def message_failed(processor: BatchProcessor, record: Any, exception: Any) -> Any:
            """Of the invocation whose processor this is: others run meanwhile."""
            world.failures.append(exception[1])
            return BatchProcessor.failure_handler(processor, record, exception)

        clock = SimpleNamespace(time=world.clock, monotonic=world.clock)
        chance = random.Random(seed)
        reader = Reader(world.dynamodb)
        for target, name, replacement in (
            *((module, "read", reader) for module in (breaker, dynamodb, batches, jobs)),
            (
                bootstrap,
                "http_client",
                lambda: Http(world.calls, world.api, world.on_call, world.on_answer),
            ),
            (bootstrap, "_secret_reader", lambda *_: _SecretReader(world)),
            (api_client, "time", clock),
            (api_client, "_cut_off_at", _never_cut_off),
            (
                secrets,
                "token_urlsafe",
                lambda size: urlsafe_b64encode(chance.randbytes(size)).rstrip(b"=").decode(),
            ),
            (
                breaker,
                "secrets",
                SimpleNamespace(token_hex=lambda size: chance.randbytes(size).hex()),
            ),
            (functions.submit.handler, "services", world.services),
            (functions.poll.handler, "services", world.services),
            (observability.metrics, "add_metric", world.count),
            (observability.LoggingBatchProcessor, "failure_handler", message_failed),
            (observability.metrics, "flush_metrics", lambda **_: None),
            # Powertools asks for a handler's with each message.
            (inspect, "signature", cache(inspect.signature)),
        ):
            stack.enter_context(patch.object(target, name, replacement))
        stack.callback(observability.logger.setLevel, observability.logger.log_level)
        observability.logger.setLevel("CRITICAL")
        stack.enter_context(world.installed())
        yield world


@dataclass(slots=True)
class _SecretReader:
    """How a process reads the secret: it remembers it for a while."""

    world: World
    value: str = ""
    read_at: float = -inf

    def __call__(self, fresh: bool) -> Credentials:  # noqa: FBT001 - as the reader of the functions
        now = self.world.kernel.now
        if fresh or now - self.read_at >= bootstrap.SECRET_SECONDS:
            self.value, self.read_at = self.world.token, now
            self.world.secret_reads += 1
        return Credentials(self.value)


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
    return Queue(
        name,
        described["VisibilityTimeout"],
        described["MessageRetentionPeriod"],
        redrive["maxReceiveCount"],
    )


def _number(value: Any) -> int:
    """A number of the template."""
    while isinstance(value, dict):
        condition, yes, no = value["Fn::If"]
        value = no if condition == "UsesWorker" and os.environ["TRANSPORT"] != "worker" else yes
    return int(value)


def _resource(value: Any) -> str:
    """The logical name in a GetAtt."""
    attribute = value["Fn::GetAtt"]
    return str(attribute[0] if isinstance(attribute, list) else attribute.partition(".")[0])

"""Counts what AWS bills for jobs in a simulated world, where functions run side by side.

A call takes as long as it would; computing takes no time there.
"""

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from botocore.exceptions import ClientError

import dropbatch.core.plan
import functions.poll.dispatch as sizes
import functions.poll.files as segments
import functions.submit.read
import shared.aws.object_store
import simulation.services.s3
from bench.meter import API_WAITS, CALL_CPU, WAITS
from bench.timing import S3_BYTES_A_SECOND
from local.workers_ai.replies import Reply
from shared.observability import METRICS, logger
from simulation.invocations import Function
from simulation.services.dynamodb import Key, Wire, size_of
from tests.simulation.worlds.world import World

PLATFORM_LOG = 420
"""Bytes that Lambda itself logs per run."""
S3_READS = {"GetObject", "HeadObject"}
S3_FREE = {"DeleteObjects"}
COUNTED_AS = {
    "dynamodb": "DynamoDB calls",
    "sqs": "SQS requests",
    "events": "bus events",
    "api": "API calls",
}
OPERATIONS = ("get_item", "batch_get_item", "query", "update_item", "put_item", "delete_item")
FINISHED_BYTES = 500
"""A longer reply has answers."""
BY_SIZE = (
    (dropbatch.core.plan, "FIRST_BATCH_RECORDS"),
    (functions.submit.read, "RANGE_BYTES"),
    (shared.aws.object_store, "BLOCK_BYTES"),
    (segments, "SEGMENT_BYTES"),
    (segments, "MIN_COPY_BYTES"),
    (sizes, "LARGE_RECORDS"),
    (sizes, "LARGE_UPLOAD_BYTES"),
    (simulation.services.s3, "MIN_PART_BYTES"),
)
"""What depends on the size of a job.

In a model of it all these are as much smaller as its records are fewer.
"""


@dataclass
class Found:
    """What jobs used.

    Attributes:
        seconds: billed, by function.
        cold: processes that began, by function.
        calls: of AWS and of the API, by function.
        used: what has a price in `bench.cost`, and `API calls`.
        valued: the metrics that had a value.
    """

    seconds: Counter[str] = field(default_factory=Counter)
    cold: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    used: Counter[str] = field(default_factory=Counter)
    valued: set[str] = field(default_factory=set)


class _Log(io.StringIO):
    """Counts the bytes that the functions print."""

    def __init__(self, used: Counter[str]) -> None:
        super().__init__()
        self.used = used

    def write(self, text: str) -> int:
        self.used["log bytes"] += len(text.encode())
        return len(text)


@contextmanager
def scaled(times: int) -> Iterator[None]:
    """A job of one record is as one of so many."""
    with ExitStack() as stack:
        for module, name in BY_SIZE:
            stack.enter_context(patch.object(module, name, getattr(module, name) // times))
        yield


@contextmanager
def billed(world: World, found: Found) -> Iterator[None]:
    """Add what the functions use to what was found."""
    meter, table, calls = _Meter(world, found), world.dynamodb, world.calls
    with ExitStack() as stack:
        for owner, name, replacement in (
            (Function, "invoke", meter.invoking(Function.invoke)),
            (table, "watchers", [*table.watchers, meter.written]),
            (world, "measured", [*world.measured, meter.measured]),
            *((table, name, meter.counting_units(name)) for name in OPERATIONS),
            (calls, "read", meter.counting(calls.read)),
            (calls, "write", meter.counting(calls.write)),
        ):
            stack.enter_context(patch.object(owner, name, replacement))
        world.on_call.append(meter.called)  # The HTTP clients hold this list.
        stack.callback(world.on_call.remove, meter.called)
        handler: Any = logger.registered_handler
        stack.callback(handler.setStream, handler.stream)
        stack.callback(logger.setLevel, logger.log_level)
        handler.setStream(_Log(found.used))
        logger.setLevel("INFO")
        before = world.secret_reads
        yield
        found.used["secret reads"] += world.secret_reads - before


class _Meter:
    """Counts for `billed` what the functions do, and not what users do."""

    def __init__(self, world: World, found: Found) -> None:
        self.kernel, self.table, self.found = world.kernel, world.dynamodb, found
        self.told: dict[str, set[str]] = {}
        """The metrics that have a value, by the invocation that runs."""

    def invoking(self, invoke: Callable[..., bool]) -> Callable[..., bool]:
        """`Function.invoke`, which also counts runs and their time."""

        def invoked(
            function: Function, event: dict[str, Any], ended: Callable[[set[str] | None], None]
        ) -> bool:
            began, is_cold = self.kernel.now, not function.idle
            kind, name = _kind(function.name), f"{function.name}-{function.invocations + 1}"

            def over(failed: set[str] | None) -> None:
                self.found.seconds[kind] += self.kernel.now - began  # type: ignore[assignment]
                self.found.used["log bytes"] += PLATFORM_LOG + _metrics_bytes(self.told.pop(name))
                ended(failed)

            if not invoke(function, event, over):
                return False
            self.told[name] = set()
            self.found.cold[kind] += is_cold
            self.found.used["Lambda runs"] += 1
            # Received and deleted by Lambda's poller.
            self.found.used["SQS requests"] += 2 * ("Records" in event)
            return True

        return invoked

    def measured(self, name: str, _value: float) -> None:
        if (life := self.kernel.life()) is not None:
            self.told[life.owner.name].add(name)
            self.found.valued.add(name)

    def counting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`Calls.read` or `Calls.write`, which also counts."""

        def counted(operation: str, effect: Callable[..., Any]) -> Any:
            self._count(operation)
            return call(operation, effect)

        return counted

    def called(self, *_: object) -> None:
        self._count("api.call")

    def _count(self, operation: str) -> None:
        if (life := self.kernel.life()) is not None:
            self.found.calls[_kind(life.owner.function_name)] += 1
            self.found.used[_counted_as(operation)] += 1

    def counting_units(self, name: str) -> Callable[..., Any]:
        """One of DynamoDB's operations, which also counts units: of reads, of refused writes."""
        call, operation = getattr(self.table, name), name.title().replace("_", "")

        def counted(**given: Any) -> Any:
            try:
                answer = call(**given)
            except ClientError:
                if key := given.get("Key") or given.get("Item"):
                    item = self.table.items.get(self.table.key_of(key), {})
                    self.found.used["DynamoDB write units"] += write_units(item, item)
                raise
            if self.kernel.life() is not None:
                self.found.used["DynamoDB read units"] += read_units(operation, given, answer)  # type: ignore[assignment]
            return answer

        return counted

    def written(self, _key: Key, old: Wire | None, new: Wire | None) -> None:
        if self.kernel.life() is not None:
            self.found.used["DynamoDB write units"] += write_units(old or {}, new or {})


def as_slow_as_aws(world: World, times: int) -> None:
    """Let calls take as long as `bench.meter` assumes, for objects so many times larger."""
    for service, seconds in WAITS.items():
        world.calls.seconds[service] = (seconds + CALL_CPU, seconds + CALL_CPU)
    world.calls.seconds["api"] = (CALL_CPU, CALL_CPU)
    wait, s3 = world.kernel.wait, world.s3

    def answered(_url: str, _headers: Mapping[str, str], body: bytes, reply: Reply) -> None:
        is_finished = len(reply.body) > FINISHED_BYTES
        polled = "finished" if is_finished else "pending"
        wait(API_WAITS["submit" if b'"requests"' in body[:20] else polled])

    def moving(
        call: Callable[..., Any], size: Callable[[dict[str, Any], Any], int]
    ) -> Callable[..., Any]:
        def moved(**given: Any) -> Any:
            answer = call(**given)
            wait(size(given, answer) * times / S3_BYTES_A_SECOND)
            return answer

        return moved

    world.on_answer.append(answered)
    for name, size in (
        ("get_object", lambda _, answer: answer["Body"].getbuffer().nbytes),
        ("put_object", lambda given, _: len(s3.objects[given["Key"]].body)),
        ("upload_part_copy", lambda given, _: len(s3.objects[given["CopySource"]["Key"]].body)),
    ):
        setattr(s3, name, moving(getattr(s3, name), size))


def _kind(name: str) -> str:
    return name.removesuffix("Function").lower()


def _counted_as(operation: str) -> str:
    service, _, name = operation.partition(".")
    if service != "s3":
        return COUNTED_AS.get(service, service)
    name = name.title().replace("_", "")
    return "S3 deletions" if name in S3_FREE else "S3 reads" if name in S3_READS else "S3 writes"


def _metrics_bytes(names: set[str]) -> int:
    """Bytes of the line that tells CloudWatch of metrics; without any there is none."""
    listed = [{"Name": name, "Unit": METRICS[name]} for name in names]
    told = {"Namespace": "Dropbatch", "Dimensions": [["service"]], "Metrics": listed}
    line = {
        "_aws": {"Timestamp": 1_795_253_407_000, "CloudWatchMetrics": [told]},
        "service": "dropbatch",
    }
    return len(json.dumps(line | {name: [1.0] for name in names})) + 1 if names else 0


def read_units(operation: str, given: dict[str, Any], answer: dict[str, Any]) -> float:
    """Units of one call that reads; 0 for another."""
    share = 1 if given.get("ConsistentRead") else 0.5
    match operation:
        case "GetItem":
            return share * _pages(size_of(answer.get("Item", {})), 4096)
        case "BatchGetItem":
            found = [item for items in answer["Responses"].values() for item in items]
            asked = sum(len(wanted["Keys"]) for wanted in given["RequestItems"].values())
            return sum(_pages(size_of(item), 4096) for item in found) + asked - len(found)
        case "Query":
            size = sum(size_of(item) for item in answer.get("Items", [])) or 100 * answer["Count"]
            return share * _pages(size, 4096)
        case _:
            return 0


def write_units(before: Wire, after: Wire) -> int:
    """Units of one write: of the item, and of its entry in the index if that changes."""
    entries = [(item.get("work"), item.get("due_at")) for item in (before, after)]
    index = 0 if entries[0] == entries[1] else sum(all(entry) for entry in entries)
    return _pages(max(size_of(before), size_of(after)), 1024) + index


def _pages(size: int, page: int) -> int:
    return max(-(-size // page), 1)

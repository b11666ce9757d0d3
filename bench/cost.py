"""`python -m bench.cost`: what AWS bills for one more batch, counted and priced; writes `bench/cost.md`.

Whole jobs of several sizes run in this process on moto, on a moved clock, and every call the functions make is counted,
with DynamoDB's units reckoned from the items' own sizes. What a batch costs is the difference of two jobs divided by
the difference of their batches, so that what happens once a job does not count. Processor time is measured on batches
of full size, moto's and the local API's own share taken off; the time of waiting for answers is assumed, as stated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore.client
import httpx
import pytest
from moto import mock_aws
from moto.core.botocore_stubber import BotocoreStubber

import functions.poll.handler
import functions.submit.handler
from local.workers_ai import Behaviour, WorkersAI, transport
from shared.observability import logger, metrics
from tests.template import properties, template
from tests.world import World, make_world

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITTEN = Path(__file__).with_name("cost.md")
MODEL = "@cf/baai/bge-small-en-v1.5"
SIZES = (40, 120, 200)
"""Batches of the jobs that are counted."""
FULL_BATCHES, FULL_RECORDS, FULL_TEXT = 8, 500, 985
"""The job on which processor time is measured: batches of records of 1 KB."""

PRICES_OF = "us-east-1, arm64, November 2026"
PRICES = {
    "DynamoDB write units": 0.625e-6,
    "DynamoDB read units": 0.125e-6,
    "S3 writes": 5e-6,
    "S3 reads": 0.4e-6,
    "SQS requests": 0.4e-6,
    "Lambda runs": 0.2e-6,
    "Lambda GB-s": 13.3334e-6,
    "disk GB-s": 0.0309e-6,
    "log bytes": 0.5e-9,
}
"""Dollars for one of each."""

WAITS = {"dynamodb": 0.005, "s3 read": 0.03, "s3 write": 0.06, "sqs": 0.01, "secretsmanager": 0.0}
"""Seconds until AWS has answered one call, assumed."""
API_WAITS = {"submit": 1.0, "pending": 0.3, "finished": 0.8}
"""Seconds until Workers AI has, assumed."""
CALL_CPU = 0.001
"""Seconds for sockets and TLS, each call; assumed, for here there are none."""
PROCESSOR_MB = 1_769
"""Memory for which Lambda gives one whole processor; others get their share."""
PLATFORM_LOG = 420
"""Bytes that Lambda itself logs about a run."""
TICK_SECONDS = 60.0
S3_READS = {"GetObject", "HeadObject"}


# ── what a call is ───────────────────────────────────────────────────────────────────────────────────────────────────


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
    """Everything one invocation used; threads of one pool wait at the same time."""

    waits: dict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    foreign: float = 0.0
    """Seconds of this process's processor that were moto's and the API's."""

    def waited(self) -> float:
        """Seconds, what is done at the same time counted once."""
        pools: dict[str, float] = defaultdict(float)
        for (pool, _), seconds in self.waits.items():
            pools[pool] = max(pools[pool], seconds)
        return sum(pools.values())


class Log:
    """Takes what the functions print, and counts it."""

    def __init__(self, used: Counter[str]) -> None:
        """Count it there."""
        self.used = used

    def write(self, text: str) -> int:
        """Some text."""
        self.used["log bytes"] += len(text.encode())
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""


class Meter:
    """Counts what the functions ask for, while one of them runs."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.used: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.items: dict[str, dict[str, Any]] = {}
        self.run: Run | None = None
        self.lock = threading.Lock()

    # ── AWS ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def call(self, client: Any, operation: str, arguments: dict[str, Any], answer: dict[str, Any]) -> None:  # noqa: ANN401
        """One call of AWS."""
        service = client.meta.service_model.service_name
        if service == "dynamodb":
            self._units(operation, arguments, answer)
        if self.run is None:
            return
        kind = service
        if service == "s3":
            kind = "s3 read" if operation in S3_READS else "s3 write"
            self.used["S3 reads" if operation in S3_READS else "S3 writes"] += 1
        elif service == "sqs":
            self.used["SQS requests"] += 1
        self.operations[operation] += 1
        self.wait(WAITS.get(kind, WAITS["dynamodb"]))

    def wait(self, seconds: float) -> None:
        """This thread waits."""
        if self.run is not None:
            thread = threading.current_thread()
            with self.lock:
                self.run.waits[thread.name.partition("_")[0], thread.ident or 0] += seconds + CALL_CPU

    def _units(self, operation: str, arguments: dict[str, Any], answer: dict[str, Any]) -> None:
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
    def invocation(self, function: str, *, scheduled: bool) -> Iterator[None]:
        """One run of a function."""
        self.run = Run()
        log: Any = Log(self.used)
        logger.registered_handler.setStream(log)  # type: ignore[attr-defined]
        clock, cpu = time.time(), time.process_time()
        with contextlib.redirect_stdout(log):
            yield
        own = max(time.process_time() - cpu - self.run.foreign, 0.0)
        run, self.run = self.run, None
        self.used["Lambda runs"] += 1
        self.used["log bytes"] += PLATFORM_LOG
        if not scheduled:
            self.used["SQS requests"] += 2  # received and deleted by Lambda's poller
        self.seconds[f"{function} CPU"] += own  # type: ignore[assignment]
        self.seconds[f"{function} wait"] += min(run.waited() + time.time() - clock, TICK_SECONDS)  # type: ignore[assignment]

    @contextlib.contextmanager
    def foreign(self) -> Iterator[None]:
        """What this thread's processor does meanwhile is not the function's."""
        began = time.thread_time()
        yield
        if self.run is not None:
            with self.lock:
                self.run.foreign += time.thread_time() - began


def _pages(size: int, page: int) -> int:
    return max(-(-size // page), 1)


# ── a job ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Metered(World):
    """A world whose functions are metered, and whose ticks come each minute, whatever is due."""

    meter: Meter

    def invoke(self, handler: Any, event: dict[str, Any]) -> set[str]:  # noqa: ANN401
        """Call a handler as Lambda does."""
        function = "poll" if handler is functions.poll.handler else "submit"
        with self.meter.invocation(function, scheduled="Records" not in event):
            return super().invoke(handler, event)


def measure(batches: int, records: int, text: int, latency: float) -> Meter:
    """Run one job to its end."""
    meter = Meter()
    metrics.provider.namespace, metrics.provider.service = "Dropbatch", "dropbatch"  # as the template's variables do
    api = WorkersAI(
        Behaviour(embedder="hash", latency=latency, latency_kind="lognormal", latency_spread=0.5),
        now=lambda: time.time(),  # noqa: PLW0108 - the clock moves
    )
    real_call, real_stub = botocore.client.BaseClient._make_api_call, BotocoreStubber.__call__  # noqa: SLF001

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
        inner = transport(api)
        making = contextlib.contextmanager(make_world)(_Api(inner, meter), patch, MAX_REQUESTS_PER_BATCH=records)
        with making as made:
            world = Metered(**vars(made))
            world.meter = meter
            line = json.dumps({"text": "w" * text}) + "\n"
            world.upload("cost.jsonl", line * (batches * records), model=MODEL)
            world.settle(minutes=600)
            assert world.manifest()["counts"]["succeeded"] == batches * records
    return meter


class _Api(httpx.BaseTransport):
    """The local API, whose processor time is not the function's."""

    def __init__(self, inner: httpx.BaseTransport, meter: Meter) -> None:
        self.inner, self.meter = inner, meter

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        with self.meter.foreign():
            submits = b'"requests"' in request.read()[:20]
            answer = self.inner.handle_request(request)
            content = answer.read()
        size = len(content)
        self.meter.wait(API_WAITS["submit" if submits else "finished" if size > 500 else "pending"])
        self.meter.used["API calls"] += 1
        self.meter.used["reply bytes"] += size
        return httpx.Response(answer.status_code, headers=answer.headers, content=content)


# ── what it comes to ─────────────────────────────────────────────────────────────────────────────────────────────────


def per_batch(small: Counter[str], large: Counter[str], batches: int) -> dict[str, float]:
    """What so many more batches used, for each."""
    return {name: (large[name] - small[name]) / batches for name in large}


def memory_of(function: str) -> int:
    """MB that the template gives a function."""
    own = properties(f"{function.title()}Function")
    return int(own.get("MemorySize", template()["Globals"]["Function"]["MemorySize"]))


def lambda_seconds(used: dict[str, float], cpu: dict[str, float], function: str, memory: int) -> float:
    """Billed seconds of one function for one batch: waiting, and computing on its share of a processor."""
    return used[f"{function} wait"] + cpu[f"{function} CPU"] * max(PROCESSOR_MB / memory, 1.0)


def bill(used: dict[str, float], seconds: dict[str, float], cpu: dict[str, float], memory: dict[str, int]) -> list[Any]:
    """Rows of name, count and dollars for one batch."""
    billed = {name: lambda_seconds(seconds, cpu, name, memory[name]) for name in memory}
    disk = max(properties("PollFunction")["EphemeralStorage"]["Size"] - 512, 0) / 1024
    counts = {
        **{name: used.get(name, 0.0) for name in PRICES},
        "Lambda GB-s": sum(billed[name] * memory[name] / 1024 for name in memory),
        "disk GB-s": billed["poll"] * disk,
    }
    return [(name, count, count * PRICES[name]) for name, count in counts.items()]


_TEXT = """\
# What a batch costs

Written by `python -m bench.cost`; do not edit. Counted on moto with answers after a minute (median, lognormal, sigma
0.5), as the difference of jobs of {sizes} batches. DynamoDB's units are reckoned from the items' sizes, the
index's included. List prices of {prices}. Storage, the secret, alarms and what an
idle stack does come on top, and X-Ray's traces (the first 100,000 a month are free).

{table}

A million records of 1 KB are 2,000 batches of 500: **${million:.3f}**.

## Lambda's seconds

Waiting is assumed, for each call: DynamoDB {dynamodb:.0f} ms, S3 {s3_read:.0f} ms to read and {s3_write:.0f} ms to
write, SQS {sqs:.0f} ms; Workers AI {submit:.1f} s to submit, {pending:.1f} s to say that a batch is pending,
{finished:.1f} s to answer; calls at the same time count once. A tick's waiting for what comes due next is counted on
the moved clock. Processor time was measured on {full} batches of {records} records of 1 KB, whose answers had
{reply:.1f} MB each; {call_cpu:.0f} ms of waiting a call stand for TLS, which is not spoken here. A function has its
share of a processor: with less memory it computes longer and waits for less money.

{lambdas}

The same with other sizes, both functions alike, the whole bill of a million records:

{sizes_table}

## Growth

Each cell is for one batch more. S3's calls are the same in both; the rest follows the calls of the API, of which chance
has its share in jobs as small as these. By the simulation of `bench/polling.md` there are no more of them for a batch
in a job of 10,000 batches than in one of 2,000, and `tests/unit/test_segments.py` holds the work of finishing to the
same for each batch: the bill of 20,000 batches is 20 times that of 1,000.

{growth}
"""


def _grid(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def report(meters: dict[int, Meter], full: Meter) -> str:
    """Everything as text."""
    small, middle, large = SIZES
    used = per_batch(meters[small].used, meters[large].used, large - small)
    seconds = per_batch(meters[small].seconds, meters[large].seconds, large - small)
    cpu = {name: total / FULL_BATCHES for name, total in full.seconds.items()}
    memory = {name: memory_of(name) for name in ("submit", "poll")}
    rows = bill(used, seconds, cpu, memory)
    total = sum(dollars for *_, dollars in rows)
    lambdas = [
        [
            name,
            f"{memory[name]:,} MB",
            f"{seconds[f'{name} wait']:.2f} s",
            f"{cpu[f'{name} CPU']:.3f} s",
            f"{lambda_seconds(seconds, cpu, name, memory[name]):.2f} s",
        ]
        for name in memory
    ]
    sizes = [
        [f"{size:,} MB", f"${2_000 * sum(row[2] for row in bill(used, seconds, cpu, dict.fromkeys(memory, size))):.3f}"]
        for size in (256, 512, 768, 1_024, 1_769)
    ]
    first = per_batch(meters[small].used, meters[middle].used, middle - small)
    second = per_batch(meters[middle].used, meters[large].used, large - middle)
    counted = [name for name in PRICES if name in used] + ["API calls"]
    growth = [[name, f"{first[name]:.2f}", f"{second[name]:.2f}"] for name in counted]
    return _TEXT.format(
        sizes=f"{small} and of {large}",
        prices=PRICES_OF,
        table=_grid(
            ["for one batch", "count", "price of a million", "dollars"],
            [
                *([name, f"{count:,.2f}", f"${PRICES[name] * 1e6:g}", f"{cost:.7f}"] for name, count, cost in rows),
                ["", "", "", f"**{total:.7f}**"],
            ],
        ),
        million=2_000 * total,
        full=FULL_BATCHES,
        records=FULL_RECORDS,
        reply=full.used["reply bytes"] / FULL_BATCHES / 1e6,
        lambdas=_grid(["function", "memory", "waiting", "computing on a whole processor", "billed"], lambdas),
        sizes_table=_grid(["memory", "a million records"], sizes),
        growth=_grid(
            ["", f"from {small} to {middle} batches", f"from {middle} to {large} batches"],
            growth,
        ),
        call_cpu=CALL_CPU * 1e3,
        **{name.replace(" ", "_"): wait * 1e3 for name, wait in WAITS.items()},
        **API_WAITS,
    )


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__.splitlines()[0])
    parser.add_argument("--operations", action="store_true", help="print the calls of a batch by name; write nothing")
    operations = parser.parse_args().operations
    meters = {size: measure(size, 1, 20, 60.0) for size in (SIZES[::2] if operations else SIZES)}
    if operations:
        small, large = (meters[size].operations for size in SIZES[::2])
        for name, count in sorted(per_batch(small, large, SIZES[2] - SIZES[0]).items()):
            print(f"{name:24} {count:.2f}")
        return
    full = measure(FULL_BATCHES, FULL_RECORDS, FULL_TEXT, 60.0)
    text = report(meters, full)
    print(text)
    WRITTEN.write_text(text)


if __name__ == "__main__":
    main()

"""What AWS bills for whole jobs and for an idle stack; `bench.cost_page` writes it.

Both functions run in a simulated world (`bench.billed`). Processor time is measured on moto
(`bench.meter`).
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.billed import Found, as_slow_as_aws, billed, scaled
from bench.meter import (
    FULL_TEXT,
    FUNCTIONS,
    LATENCY,
    MODEL,
    Computing,
    behaviour_of,
)
from functions.poll.end import CLEAN_AFTER_SECONDS
from local.template import default, properties, template
from shared.ledger.due import LIFE_SECONDS
from simulation.services.dynamodb import size_of
from tests.simulation.cloudflare.events import Events
from tests.simulation.worlds.world import World, simulated

JOBS = {10: 1, 1_000: 1, 100_000: 500, 1_000_000: 500}
"""Records of the jobs whose total cost is shown; a record stands for how many of them."""
MILLION = 1_000_000
WHOLE_PROCESSOR_MB = 1_769
"""Memory for which Lambda gives one whole processor."""
SEEDS = range(1, 5)
SECRET, ALARM, METRIC = 0.40, 0.10, 0.30
"""Dollars a month for each; an account has 10 alarms for free."""

PRICES = {
    "DynamoDB write units": 0.625e-6,
    "DynamoDB read units": 0.125e-6,
    "S3 writes": 5e-6,
    "S3 reads": 0.4e-6,
    "SQS requests": 0.4e-6,
    "secret reads": 5e-6,
    "bus events": 1e-6,
    "Lambda runs": 0.2e-6,
    "Lambda GB-s": 13.3334e-6,
    "disk GB-s": 0.0309e-6,
    "log bytes": 0.5e-9,
}
"""Dollars for one of each: list prices of us-east-1, arm64, November 2026."""
POLLERS, RECEIVES_A_MINUTE = 5, 3
"""Pollers that Lambda runs for each queue of a function.

And long polls of 20 s that each makes while it is empty.
"""
STORAGE_PRICES = {"S3": 0.023, "table": 0.25, "logs": 0.03}
"""Dollars for a GB and a month of 730 hours."""

IDLE_TICKS, MONTH_MINUTES = 10, 43_800
COLD_SECONDS = 0.5
"""Billed for the start of a process.

Imports and services, without byte code (`bench/README.md`).
"""
POLLS, EVENTS = Events(is_on=False), Events()


def memory_of(function: str) -> int:
    """MB that the template gives a function."""
    own = properties(f"{function.title()}Function")
    return int(own.get("MemorySize", template()["Globals"]["Function"]["MemorySize"]))


def share_of(memory: int) -> float:
    """The share of a processor that a function of `memory` MB has."""
    return memory / WHOLE_PROCESSOR_MB


@dataclass(frozen=True)
class Bill:
    """What is billed for something.

    Attributes:
        used: what has a price, and `API calls`.
        wait: seconds that each function waits.
        cpu: seconds of a whole processor that each computes.
        stored: name, GB, hours and where, of what is kept.
        seconds: that it took.
        batches: that were sent.
    """

    used: Mapping[str, float]
    wait: Mapping[str, float]
    cpu: Mapping[str, float]
    stored: tuple[tuple[str, float, float, str], ...] = ()
    seconds: float = 0.0
    batches: int = 0

    def seconds_of(self, function: str, memory: int) -> float:
        """Billed seconds of a function: waiting, and computing on its share of a processor."""
        return self.wait[function] + self.cpu[function] * max(1 / share_of(memory), 1.0)

    def rows(self, memory: Mapping[str, int], times: float = 1.0) -> list[Any]:
        """Rows of name, count and dollars, of so many of these."""
        seconds = {name: self.seconds_of(name, memory[name]) for name in FUNCTIONS}
        disk = max(properties("PollFunction")["EphemeralStorage"]["Size"] - 512, 0) / 1024
        gb_seconds = sum(seconds[name] * memory[name] / 1024 for name in FUNCTIONS)
        counts = {**self.used, "Lambda GB-s": gb_seconds, "disk GB-s": seconds["poll"] * disk}
        return [
            (name, counts.get(name, 0) * times, counts.get(name, 0) * times * PRICES[name])
            for name in PRICES
        ]

    def work(self, memory: Mapping[str, int]) -> float:
        """Dollars for all but storage."""
        return float(sum(dollars for *_, dollars in self.rows(memory)))

    def storage(self) -> list[tuple[str, float, float, float]]:
        """What is kept: name, GB, hours and dollars."""
        return [
            (name, gb, hours, gb * hours / 730 * STORAGE_PRICES[where])
            for name, gb, hours, where in self.stored
        ]

    def dollars(self, memory: Mapping[str, int]) -> float:
        return self.work(memory) + sum(dollars for *_, dollars in self.storage())


def memories() -> dict[str, int]:
    return {name: memory_of(name) for name in FUNCTIONS}


def of_job(records: int, taken: Computing, events: Events = POLLS, seeds: range = SEEDS) -> Bill:
    """The mean bill of a job of records of 1 KB, of a model that is new, on a stack that was idle.

    The clean-up of what it staged is included; an idle stack's ticks until then are not.
    """
    found, stored, took, times = Found(), Counter[str](), 0.0, JOBS[records]
    for seed in seeds:
        with _idle_stack(seed, events, times) as world, billed(world, found):
            dropped_at = world.kernel.now
            line = json.dumps({"text": "w" * FULL_TEXT})
            world.upload("cost.jsonl", [line] * (records // times), model=MODEL)
            assert world.settle(36_000.0)
            took += world.kernel.now - dropped_at
            for key, version in world.s3.objects.items():
                if key.startswith("staging/"):
                    stored["staged"] += len(version.body) * times
            stored["items"] += sum(map(size_of, world.dynamodb.items.values()))
            batches = len(world.api.accepted)
            world.tick_seconds = CLEAN_AFTER_SECONDS / 2 + 60
            world.run(CLEAN_AFTER_SECONDS + 300)
            assert not [key for key in world.s3.objects if key.startswith("staging/")]
    seconds, gb = took / len(seeds), 1e9 * len(seeds)
    days = properties("SubmitLogs")["RetentionInDays"]
    kept = (
        ("staged objects", stored["staged"] / gb, seconds + CLEAN_AFTER_SECONDS, "S3"),
        ("the ledger's items", stored["items"] / gb, LIFE_SECONDS, "table"),
        ("logs", found.used["log bytes"] / gb, 86_400 * days, "logs"),
    )
    storage = tuple((name, size, each / 3_600, where) for name, size, each, where in kept)
    return _bill(found, len(seeds), taken, records, storage, seconds, batches)


def _bill(found: Found, times: float, taken: Computing, records: int = 0, *rest: Any) -> Bill:
    """What each of so many was billed on average; `rest` is that of `Bill`."""
    cold = {name: COLD_SECONDS * found.cold[name] for name in FUNCTIONS}
    return Bill(
        {name: count / times for name, count in found.used.items()},
        {name: (found.seconds[name] + cold[name]) / times for name in FUNCTIONS},
        {
            name: found.calls[name] / times * taken.call[name] + records * taken.record[name]
            for name in FUNCTIONS
        },
        *rest,
    )


def of_tick(taken: Computing, events: Events = POLLS) -> tuple[Bill, set[str]]:
    """The bill of a run that finds nothing to do, and the metrics that it tells."""
    found = Found()
    with _idle_stack(SEEDS[0], events, 1) as world, billed(world, found):
        world.run(60.0 * IDLE_TICKS)
    found.cold.clear()
    return _bill(found, found.used["Lambda runs"], taken), found.valued


@contextmanager
def _idle_stack(seed: int, events: Events, times: int) -> Iterator[World]:
    """A world at the template's defaults after its first tick, where a record is as so many."""
    settings = {
        "MAX_REQUESTS_PER_BATCH": int(default("MaxRequestsPerBatch")) // times,
        "API_CALLS_PER_MINUTE": default("ApiCallsPerMinute"),
        **events.settings(),
    }
    with (
        scaled(times),
        simulated(seed, None, events.behaviour(behaviour_of(LATENCY)), **settings) as world,
    ):
        as_slow_as_aws(world, times)
        world.run(65, lambda: world.functions["PollFunction"].invocations == 1)
        world.run(5)  # The next tick is as far away as it can be.
        yield world


def _standing(valued: set[str]) -> dict[str, float]:
    """What is billed for a month in which only these metrics have values."""
    kinds = [one["Type"] for one in template()["Resources"].values() if "Condition" not in one]
    alarms = kinds.count("AWS::CloudWatch::Alarm")
    metrics = f"metrics: {', '.join(sorted(valued))}"
    return {"secret": SECRET, f"{alarms} alarms": alarms * ALARM, metrics: len(valued) * METRIC}


def polled_queues() -> int:
    """How many queues Lambda's pollers ask for messages."""
    events = [
        event
        for name in FUNCTIONS
        for event in properties(f"{name.title()}Function")["Events"].values()
    ]
    return sum(event["Type"] == "SQS" for event in events)


def idle_rows(tick: Bill, valued: set[str]) -> list[tuple[str, str, float]]:
    """What a month of an idle stack is billed: name, count and dollars."""
    receives = polled_queues() * POLLERS * RECEIVES_A_MINUTE * MONTH_MINUTES
    rows = tick.rows(memories(), MONTH_MINUTES)
    return [
        *((name, f"{count:,.0f}", cost) for name, count, cost in rows if count),
        ("SQS requests of Lambda's pollers", f"{receives:,}", receives * PRICES["SQS requests"]),
        *((name, "", cost) for name, cost in _standing(valued).items()),
    ]

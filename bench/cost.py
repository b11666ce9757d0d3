"""`python -m bench.cost`: what AWS bills for a batch, for whole jobs and for an idle stack; writes `bench/cost.md`.

The calls of jobs of several sizes are counted (`bench.meter`). The cost of a batch is the difference between two jobs
divided by the difference of their batches, so that what happens once per job does not count. Processor time is measured
on full-size batches, without the share of moto and the local API.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.meter import (
    API_WAITS,
    CALL_CPU,
    IDLE_TICKS,
    MODEL,
    MONTH_MINUTES,
    STAGING_SECONDS,
    TLS_CPU,
    WAITS,
    Meter,
    measure,
)
from bench.share import memory_of, share_of
from dropbatch.core.records.plan import FIRST_BATCH_RECORDS, SplitPlan, max_records
from functions.poll.schedule.delete_staged import FIRST_SECONDS
from local.template import default, properties, template
from shared.ledger.item_keys import LIFE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

WRITTEN = Path(__file__).with_name("cost.md")
SIZES = (40, 120, 200)
"""Batches of the jobs that are counted."""
FULL_BATCHES, FULL_RECORDS, FULL_TEXT = 3, 5_000, 985
"""The job on which processor time and bytes are measured: the largest batches, of records of 1 KB."""
JOBS = (10, 1_000, 1_000_000)
"""Records of the jobs whose total cost is shown."""
SECRET, ALARM, DASHBOARD, METRIC = 0.40, 0.10, 3.00, 0.30
"""Dollars a month for each; an account has 10 alarms and 3 dashboards for free."""

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
POLLERS, RECEIVES_A_MINUTE = 5, 3
"""Pollers that Lambda runs for each queue of a function, and long polls of 20 s that each makes while it is empty."""
STORAGE_PRICES = {"S3": 0.023, "table": 0.25, "logs": 0.03}
"""Dollars for a GB and a month of 730 hours."""
JOB_HOURS = 1.0
"""Hours for which a job of a million records runs, assumed."""

FUNCTIONS = ("submit", "poll")


# ── the bill ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def per_batch(small: Mapping[str, float], large: Mapping[str, float], batches: int) -> dict[str, float]:
    """The difference between two jobs, per batch."""
    return {name: (large[name] - small[name]) / batches for name in large}


def lambda_seconds(used: Mapping[str, float], cpu: Mapping[str, float], function: str, memory: int) -> float:
    """Billed seconds of one function for one batch: waiting, and computing on its share of a processor."""
    return used[f"{function} wait"] + cpu[f"{function} CPU"] * max(1 / share_of(memory), 1.0)


def bill(
    used: Mapping[str, float], seconds: Mapping[str, float], cpu: Mapping[str, float], memory: Mapping[str, int]
) -> list[Any]:
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
# What Dropbatch costs on AWS

Written by `python -m bench.cost`; do not edit. Calls are counted on moto, with answers after a minute (median,
lognormal, sigma 0.5). The cost of a batch is computed from the difference between jobs of {sizes} batches.
DynamoDB units are computed from the sizes of the items, including the index. Prices are the list prices of
{prices}. X-Ray traces (the first 100,000 a month are free) are billed in addition. Storage has its
own section.

## One batch

A batch of {records:,} records of 1 KB, the largest by default.

{table}

## Whole jobs

Records of 1 KB, answered with vectors of 384 numbers. A job has its own costs in addition to those of its batches; they
are counted on a job of one batch. Batches have {growth_text}.

{jobs}

## Storage

What a job of a million records keeps, its upload and its results excepted. A GB is 10^9 bytes. The job is assumed to
run for an hour.

{storage}

## An idle stack

A month of one run per minute that finds nothing to do, counted on {ticks} such runs, and the resources that are billed
when idle. Lambda's pollers ask each of the {queues} queues {receives} times a minute; an account's first million
requests a month are free. CloudWatch bills the stack's own metrics ($0.30 each) only for hours in which they have
values. `Dashboard=yes` adds $3.00, unless the account has fewer than three dashboards.

{idle}

## Billed Lambda time

The waiting time of each call is assumed: DynamoDB {dynamodb:.0f} ms; S3 {s3:.0f} ms to the first byte and 80 MB a
second; SQS {sqs:.0f} ms; Workers AI {submit:.1f} s for a submit, {pending:.1f} s for a poll of a pending batch,
{finished:.1f} s for a poll with an answer. Parallel calls count once. The time that a tick waits for the next due item
is counted on the simulated clock, in the jobs of small batches, because a tick waits for all batches at once. Processor
time was measured on {full} batches of {records:,} records of 1 KB, whose answers had {reply:.1f} MB each.
TLS is not used here: {call_cpu:.0f} ms per call is added to the waiting time for it, and {tls_cpu:.1f} ms of processor
time for each MB that is moved. A function has its share of a processor: with less memory, computing takes longer and
waiting costs less.

{lambdas}

The whole bill of a million records, with other memory sizes, the same for both functions:

{sizes_table}

## Growth

Each cell is for one more batch. The S3 calls are the same in both columns; the rest follows the API calls, whose number
varies by chance in jobs as small as these. In the simulation of `bench/polling.md`, a job of 10,000 batches needs no
more calls per batch than one of 2,000, and `tests/unit/poll/results/test_result_files.py` checks that finishing a job
takes the same work per batch: the bill of 20,000 batches is 20 times that of 1,000.

{growth}
"""


def always(kind: str) -> int:
    """How many resources of a kind the stack has whatever its parameters are."""
    return sum(one["Type"] == kind and "Condition" not in one for one in template()["Resources"].values())


def standing(idle: Meter) -> dict[str, float]:
    """What is billed for a month in which nothing happens, by what it is billed for."""
    alarms, dashboards = always("AWS::CloudWatch::Alarm"), always("AWS::CloudWatch::Dashboard")
    billed = {"secret": SECRET, f"{alarms} alarms": alarms * ALARM, "dashboard": dashboards * DASHBOARD}
    billed["metrics: " + ", ".join(sorted(idle.valued))] = len(idle.valued) * METRIC
    return {name: dollars for name, dollars in billed.items() if dollars}


def grid(head: list[str], rows: list[list[str]]) -> str:
    """A table as Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def batches_of(records: int) -> int:
    """Number of batches of a job with `records` records of 1 KB, at the template's defaults."""
    most, most_bytes = int(default("MaxRequestsPerBatch")), int(default("MaxBatchBytes"))
    plan = SplitPlan(MODEL, most, most_bytes, "", first_requests=FIRST_BATCH_RECORDS)
    number = 0
    while records > 0:
        records -= min(max_records(plan, number), plan.max_bytes // 1_000)
        number += 1
    return number


@dataclass(frozen=True)
class Bill:
    """What is billed for something: counts, waiting and computing seconds by function."""

    used: Counter[str]
    wait: dict[str, float]
    cpu: dict[str, float]

    def rows(self, memory: dict[str, int]) -> list[Any]:
        """Rows of name, count and dollars."""
        seconds = {f"{name} wait": self.wait[name] for name in memory}
        return bill(self.used, seconds, {f"{name} CPU": self.cpu[name] for name in memory}, memory)

    def dollars(self, memory: dict[str, int]) -> float:
        """The sum."""
        return float(sum(dollars for *_, dollars in self.rows(memory)))

    def plus(self, other: Bill, times: float = 1.0) -> Bill:
        """This bill plus `times` times another."""
        used = Counter({name: self.used[name] + times * other.used[name] for name in {*self.used, *other.used}})
        wait = {name: self.wait[name] + times * other.wait[name] for name in FUNCTIONS}
        cpu = {name: self.cpu[name] + times * other.cpu[name] for name in FUNCTIONS}
        return Bill(used, wait, cpu)


def _bill(used: Mapping[str, float], seconds: Mapping[str, float], times: float = 1.0) -> Bill:
    return Bill(
        Counter({name: count * times for name, count in used.items()}),
        {name: sum(seconds.get(f"{name} {what}", 0.0) for what in ("calls", "sleep")) * times for name in FUNCTIONS},
        {name: seconds.get(f"{name} CPU", 0.0) * times for name in FUNCTIONS},
    )


@dataclass(frozen=True)
class Bills:
    """What was measured, as bills.

    Attributes:
        batch: one more batch of one small record.
        job: what a job of one batch costs in addition to its batch.
        record: computing and moving one record of 1 KB and its answer.
        tick: a run that finds nothing to do.
    """

    batch: Bill
    job: Bill
    record: Bill
    tick: Bill

    def of_job(self, records: int) -> Bill:
        """A whole job."""
        return self.job.plus(self.batch, batches_of(records)).plus(self.record, records)

    def of_batch(self, records: int) -> Bill:
        """A batch of `records` records."""
        return self.batch.plus(self.record, records)


def bills(one: Meter, small: Meter, large: Meter, full: Meter, idle: Meter) -> Bills:
    """The bills from jobs of one batch, of few and of many small batches, of full ones, and from idle runs."""
    more = SIZES[-1] - SIZES[0]
    batch = _bill(per_batch(small.used, large.used, more), per_batch(small.seconds, large.seconds, more))
    job = _bill(one.used, one.seconds).plus(batch, -1)
    # Full batches differ from small ones only in seconds: they have more bytes to process and to move.
    # A tick sleeps for all batches at once: its sleep in a job of three batches says nothing about a record.
    seconds = per_batch(small.seconds, large.seconds, more)

    def of_record(what: str) -> dict[str, float]:
        names = {name: f"{name} {what}" for name in FUNCTIONS}
        excess = {name: full.seconds[key] / FULL_BATCHES - seconds[key] for name, key in names.items()}
        return {name: max(one, 0.0) / FULL_RECORDS for name, one in excess.items()}

    record = Bill(Counter(), of_record("calls"), of_record("CPU"))
    return Bills(batch, job, record, _bill(idle.used, idle.seconds, 1 / IDLE_TICKS))


def storage(full: Meter, log_bytes: float) -> list[tuple[str, float, float, float]]:
    """What a job of a million records keeps: name, GB, hours and dollars.

    Args:
        full: of a job of full batches.
        log_bytes: bytes that a job of a million records logs.
    """
    times = 1_000_000 / (FULL_BATCHES * FULL_RECORDS) / 1e9
    kept = [
        ("request bodies", full.stored["late"] * times, JOB_HOURS + STAGING_SECONDS / 3_600, "S3"),
        ("replies, parts and segments", full.stored["early"] * times, JOB_HOURS + FIRST_SECONDS / 3_600, "S3"),
        ("the ledger's items", full.stored["items"] * times, LIFE_SECONDS / 3_600, "table"),
        ("logs", log_bytes / 1e9, 24.0 * properties("SubmitLogs")["RetentionInDays"], "logs"),
    ]
    return [(name, gb, hours, gb * hours / 730 * STORAGE_PRICES[where]) for name, gb, hours, where in kept]


def report(meters: dict[int, Meter], one: Meter, full: Meter, idle: Meter) -> str:
    """The whole report as text."""
    small, middle, large = SIZES
    found = bills(one, meters[small], meters[large], full, idle)
    memory = {name: memory_of(name) for name in FUNCTIONS}
    whole = found.of_batch(FULL_RECORDS)
    lambdas = [
        [
            name,
            f"{memory[name]:,} MB",
            f"{whole.wait[name]:.2f} s",
            f"{whole.cpu[name]:.3f} s",
            f"{whole.wait[name] + whole.cpu[name] * max(1 / share_of(memory[name]), 1.0):.2f} s",
        ]
        for name in memory
    ]
    million = found.of_job(1_000_000)
    sizes = [
        [f"{size:,} MB", f"${million.dollars(dict.fromkeys(memory, size)):.4f}"]
        for size in (256, 512, 768, 1_024, 1_769)
    ]
    first = per_batch(meters[small].used, meters[middle].used, middle - small)
    second = per_batch(meters[middle].used, meters[large].used, large - middle)
    counted = [name for name in PRICES if name in found.batch.used] + ["API calls"]
    growth = [[name, f"{first[name]:.2f}", f"{second[name]:.2f}"] for name in counted]
    jobs = [
        [f"{records:,}", f"{batches_of(records):,}", f"{job.used['API calls']:,.0f}", f"${job.dollars(memory):.6f}"]
        for records in JOBS
        for job in (found.of_job(records),)
    ]
    stored = storage(full, million.used["log bytes"])
    stored_sum = sum(dollars for *_, dollars in stored)
    month = Bill(Counter(), dict.fromkeys(FUNCTIONS, 0.0), dict.fromkeys(FUNCTIONS, 0.0)).plus(
        found.tick, MONTH_MINUTES
    )
    always_billed = standing(idle)
    queues = sum(
        event["Type"] == "SQS"
        for name in FUNCTIONS
        for event in properties(f"{name.title()}Function")["Events"].values()
    )
    receives = queues * POLLERS * RECEIVES_A_MINUTE * MONTH_MINUTES
    asked = receives * PRICES["SQS requests"]
    idle_sum = month.dollars(memory) + sum(always_billed.values()) + asked
    return _TEXT.format(
        sizes=f"{small} and of {large}",
        prices=PRICES_OF,
        table=grid(
            ["for one batch", "count", "price of a million", "dollars"],
            [
                *(
                    [name, f"{count:,.2f}", f"${PRICES[name] * 1e6:g}", f"{cost:.7f}"]
                    for name, count, cost in whole.rows(memory)
                ),
                ["", "", "", f"**{whole.dollars(memory):.7f}**"],
            ],
        ),
        growth_text=f"{FIRST_BATCH_RECORDS} records at first and up to {int(default('MaxRequestsPerBatch')):,} later",
        jobs=grid(["records", "batches", "calls of the API", "dollars"], jobs),
        storage=grid(
            ["a million records", "GB", "kept for", "dollars"],
            [
                *([name, f"{gb:.4f}", f"{hours:,.0f} h", f"{cost:.5f}"] for name, gb, hours, cost in stored),
                ["storage", "", "", f"{stored_sum:.5f}"],
                ["storage and work", "", "", f"**{stored_sum + million.dollars(memory):.5f}**"],
            ],
        ),
        ticks=IDLE_TICKS,
        queues=queues,
        receives=POLLERS * RECEIVES_A_MINUTE,
        idle=grid(
            ["a month", "count", "dollars"],
            [
                *([name, f"{count:,.0f}", f"{cost:.3f}"] for name, count, cost in month.rows(memory) if count),
                ["SQS requests of Lambda's pollers", f"{receives:,}", f"{asked:.2f}"],
                *([name, "", f"{cost:.2f}"] for name, cost in always_billed.items()),
                ["", "", f"**{idle_sum:.2f}**"],
            ],
        ),
        full=FULL_BATCHES,
        records=FULL_RECORDS,
        reply=full.used["reply bytes"] / FULL_BATCHES / 1e6,
        lambdas=grid(["function", "memory", "waiting", "computing on a whole processor", "billed"], lambdas),
        sizes_table=grid(["memory", "a million records"], sizes),
        growth=grid(
            ["", f"from {small} to {middle} batches", f"from {middle} to {large} batches"],
            growth,
        ),
        call_cpu=CALL_CPU * 1e3,
        tls_cpu=TLS_CPU * 1e9,
        **{name: wait * 1e3 for name, wait in WAITS.items()},
        **API_WAITS,
    )


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__.splitlines()[0])
    parser.add_argument("--operations", action="store_true", help="print the calls of a batch by name; write nothing")
    operations = parser.parse_args().operations
    meters = {size: measure(size, 1, 20, 60.0) for size in (SIZES[::2] if operations else SIZES)}
    if operations:
        small, large = (meters[size].operations for size in SIZES[::2])
        for name, count in sorted(per_batch(small, large, SIZES[2] - SIZES[0]).items()):
            print(f"{name:24} {count:.2f}")
        return
    one, idle = measure(1, 1, 20, 60.0), measure(0, 1, 0, 60.0)
    full = measure(FULL_BATCHES, FULL_RECORDS, FULL_TEXT, 60.0)
    text = report(meters, one, full, idle)
    print(text)
    WRITTEN.write_text(text)


if __name__ == "__main__":
    main()

"""`python -m bench.cost_page`: writes what AWS bills for whole jobs and an idle stack.

To `bench/cost.md`, and the figures by which people decide to docs/limits.md and README.md.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from bench.cost import (
    COLD_SECONDS,
    EVENTS,
    IDLE_TICKS,
    JOBS,
    MILLION,
    POLLERS,
    PRICES,
    PRICES_OF,
    RECEIVES_A_MINUTE,
    SEEDS,
    Bill,
    idle_rows,
    memories,
    of_job,
    of_tick,
    polled_queues,
)
from bench.meter import API_WAITS, CALL_CPU, TLS_CPU, WAITS, computing
from bench.timing import grid, written_by
from dropbatch.core.plan import FIRST_BATCH_RECORDS
from local.template import default

ROOT = Path(__file__).parents[1]
WRITTEN, LIMITS, README = ROOT / "bench/cost.md", ROOT / "docs/limits.md", ROOT / "README.md"
Bills = dict[int, tuple[Bill, Bill]]
"""By records of the job: with polls alone, and with completion events."""

_TEXT = """\
# What Dropbatch costs on AWS

{written}
Both functions run in a simulated world at the
template's defaults, on a model that is new, on a stack that was idle. Answers come after a minute
(median), as vectors of 384 numbers; records have 1 KB. Each figure is the mean of {seeds} worlds.
In jobs of 100,000 records and more, one record stands for {scale}, and the sizes by which the
functions divide their work are as much smaller. Prices are the list prices of {prices}; X-Ray
traces are billed in addition.

## A million records

In {batches} batches: {first} records at first, up to {most:,} later. With polls alone such a job
took {minutes:.0f} minutes. *Events*: with completion events, without Cloudflare's bill for them.

{million}

## Storage

What the same job keeps, its upload and its results excepted. A GB is 10^9 bytes.

{storage}

## Whole jobs

With storage, clean-up, and the ticks while the job runs.

{jobs}

## An idle stack

A month of one run per minute that finds nothing to do, counted on {ticks} such runs. Lambda's
pollers ask each of the {queues} queues {receives} times a minute; an account's first million
requests a month are free. CloudWatch bills the stack's own metrics ($0.30 each) only for hours in
which they have values. `Dashboard=yes` adds $3.00.

{idle}

## Billed Lambda time

Calls are assumed to take: DynamoDB {dynamodb:.0f} ms; S3 {s3:.0f} ms to the first byte and 80 MB
a second; SQS {sqs:.0f} ms; a write half as long again; Workers AI {submit:.1f} s for a submit,
{pending:.1f} s for a poll of a pending batch, {finished:.1f} s for a poll with an answer.
{call_cpu:.0f} ms for TLS is added to each, and {tls_cpu:.1f} ms of processor time for each MB
that is moved; the start of a process is {cold:.1f} s. Processor time was measured on moto, for a
call and for a record. With less memory, computing takes longer and waiting costs less. For a
million records:

{lambdas}
"""


def _million_rows(polls: Bill, events: Bill) -> list[list[str]]:
    memory = memories()
    rows = [
        [name, f"${PRICES[name] * 1e6:g}", f"{count:,.0f}", f"{cost:.5f}"]
        for name, count, cost in polls.rows(memory)
    ]
    for row, (_, count, cost) in zip(rows, events.rows(memory), strict=True):
        row += [f"{count:,.0f}", f"{cost:.5f}"]
    kept = [f"{sum(cost for *_, cost in bill.storage()):.5f}" for bill in (polls, events)]
    whole = [f"**{bill.dollars(memory):.5f}**" for bill in (polls, events)]
    for name, (first, second) in (("storage", kept), ("storage and work", whole)):
        rows.append([name, "", "", first, "", second])
    return rows


def _job_rows(both: Bills) -> Iterator[list[str]]:
    for records, bills in both.items():
        row = [f"{records:,}", f"{bills[0].batches:,}"]
        for bill in bills:
            row += [f"{bill.used['API calls']:,.0f}", f"{bill.dollars(memories()):.6f}"]
        yield row


def _idle_rows(idle: list[tuple[str, str, float]]) -> Iterator[list[str]]:
    for name, count, cost in idle:
        yield [name, count, f"{cost:.2f}" if cost >= 0.1 else f"{cost:.3f}"]
    yield ["", "", f"**{sum(cost for *_, cost in idle):.2f}**"]


def _lambda_rows(bill: Bill) -> Iterator[list[str]]:
    for name, memory in memories().items():
        seconds = bill.wait[name], bill.cpu[name], bill.seconds_of(name, memory)
        yield [name, f"{memory:,} MB", *(f"{one:.0f} s" for one in seconds)]


def report(both: Bills, idle: list[tuple[str, str, float]]) -> str:
    million, with_events = both[MILLION]
    stored = [
        [name, f"{gb:.4f}", f"{hours:,.0f} h", f"{cost:.5f}"]
        for name, gb, hours, cost in million.storage()
    ]
    ways = ["polls alone", "dollars", "events", "dollars"]
    jobs = ["records", "batches", "calls of the API", "dollars", "with events: calls", "dollars"]
    times = ["function", "memory", "waiting", "computing on a whole processor", "billed"]
    return _TEXT.format(
        written=written_by("python -m bench.cost_page"),
        seeds=len(SEEDS),
        scale=JOBS[MILLION],
        prices=PRICES_OF,
        batches=million.batches,
        first=FIRST_BATCH_RECORDS,
        most=int(default("MaxRequestsPerBatch")),
        minutes=million.seconds / 60,
        million=grid(["", "price of a million", *ways], _million_rows(million, with_events)),
        storage=grid(["", "GB", "kept for", "dollars"], stored),
        jobs=grid(jobs, list(_job_rows(both))),
        ticks=IDLE_TICKS,
        queues=polled_queues(),
        receives=POLLERS * RECEIVES_A_MINUTE,
        idle=grid(["a month", "count", "dollars"], list(_idle_rows(idle))),
        cold=COLD_SECONDS,
        lambdas=grid(times, list(_lambda_rows(million))),
        call_cpu=CALL_CPU * 1e3,
        tls_cpu=TLS_CPU * 1e9,
        **{name: wait * 1e3 for name, wait in WAITS.items()},
        **API_WAITS,
    )


def tell(both: Bills, month: float) -> None:
    """Write the figures where people decide by them: docs/limits.md and README.md."""
    memory = memories()
    job, with_events = (bill.dollars(memory) for bill in both[MILLION])
    rows = {
        rf"\| {records:,} \| .*": f"| {records:,} | {bill.batches} | "
        f"{bill.used['API calls']:,.0f} | ${bill.dollars(memory):.6f} |"
        for records, (bill, _) in both.items()
    }
    figures = {
        LIMITS: rows
        | {
            r"such a job costs \$[\d.]+\d": f"such a job costs ${job:.4f}",
            r"\$[\d.]+ with completion events": f"${with_events:.4f} with completion events",
            r"\*\*\$[\d.]+\*\* a month": f"**${month:.2f}** a month",
        },
        README: {
            r"\[\$[\d.]+ a month\]": f"[${month:.2f} a month]",
            r"\$[\d.]+ more for a million": f"${job:.4f} more for a million",
        },
    }
    for page, patterns in figures.items():
        text = page.read_text()
        for pattern, figure in patterns.items():
            text, count = re.subn(pattern, figure, text)
            assert count == 1, f"{page.name}: {pattern}"
        page.write_text(text)


def main() -> None:
    taken = computing()
    both = {records: (of_job(records, taken), of_job(records, taken, EVENTS)) for records in JOBS}
    idle = idle_rows(*of_tick(taken))
    WRITTEN.write_text(report(both, idle))
    tell(both, sum(cost for *_, cost in idle))


if __name__ == "__main__":
    main()

"""`python -m bench.cost_page`: writes what AWS bills for whole jobs and an idle stack.

To `bench/cost.md`, and the figures by which people decide to docs/limits.md and README.md.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from bench.cost import (
    EVENTS,
    JOBS,
    MILLION,
    POLLERS,
    PRICES,
    RECEIVES_A_MINUTE,
    Bill,
    idle_rows,
    memories,
    of_job,
    of_tick,
    polled_queues,
)
from bench.meter import API_WAITS, WAITS, computing
from bench.timing import grid, write_page
from dropbatch.core.plan import FIRST_BATCH_RECORDS
from local.template import default

ROOT = Path(__file__).parents[1]
WRITTEN, LIMITS, README = ROOT / "bench/cost.md", ROOT / "docs/limits.md", ROOT / "README.md"
Bills = dict[int, tuple[Bill, Bill]]
"""By records of the job: with polls alone, and with completion events."""


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


def write(both: Bills, idle: list[tuple[str, str, float]]) -> None:
    """Write the tables of the page."""
    million, with_events = both[MILLION]
    most = int(default("MaxRequestsPerBatch"))
    sizes = f"{FIRST_BATCH_RECORDS} records at first, up to {most:,} later"
    took = f"With polls alone such a job took {million.seconds / 60:.0f} minutes."
    ways = ["price of a million", "polls alone", "dollars", "events", "dollars"]
    stored = [
        [name, f"{gb:.4f}", f"{hours:,.0f} h", f"{cost:.5f}"]
        for name, gb, hours, cost in million.storage()
    ]
    jobs = ["records", "batches", "calls of the API", "dollars", "with events: calls", "dollars"]
    receives = f"{POLLERS * RECEIVES_A_MINUTE} times a minute"
    asked = f"Lambda's pollers ask each of the {polled_queues()} queues {receives}."
    months = grid(["a month", "count", "dollars"], list(_idle_rows(idle)))
    assumed = [[name, f"{wait * 1e3:,.0f} ms"] for name, wait in (WAITS | API_WAITS).items()]
    times = ["function", "memory", "waiting", "computing on a whole processor", "billed"]
    table = grid(["", *ways], _million_rows(million, with_events))
    write_page(
        WRITTEN,
        "python -m bench.cost_page",
        million=f"In {million.batches} batches: {sizes}. {took}\n\n{table}",
        storage=grid(["", "GB", "kept for", "dollars"], stored),
        jobs=grid(jobs, list(_job_rows(both))),
        idle=f"{asked}\n\n{months}",
        assumed=grid(["a call of", "takes"], assumed),
        lambdas=grid(times, list(_lambda_rows(million))),
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
    write(both, idle)
    tell(both, sum(cost for *_, cost in idle))


if __name__ == "__main__":
    main()

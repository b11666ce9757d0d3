"""Counts polls on the local stack, with real processes, queues and ticks.

`python -m bench.polling.on_stack`.

With completion events and without. Jobs follow each other immediately, the first on a model that is
new. `bench.polling.simulated` shows the figures in `bench/polling.md`, beside those of its
simulation; they are kept in `bench/polling/on_stack.json`.
"""

from __future__ import annotations

import json
import statistics
from datetime import datetime
from pathlib import Path
from typing import Any

from local import aws
from tests.support.aws.stack import MODEL, as_lines, requests, running_stack

FIGURES = Path(__file__).with_suffix(".json")
HOME = aws.Home(aws.ROOT / ".local/bench-polling")
JOBS, BATCHES, RECORDS = 5, 40, 10
SOONEST, LATEST = 5.0, 90.0
"""Seconds that a batch takes, spread evenly."""
MAX_SECONDS = 600.0


WAYS = {"local stack": "no", "local stack, completion events": "yes"}
"""Rows of the table, and `CompletionEvents`."""


def measure(events: str) -> list[list[float]]:
    """Run the jobs; of each, calls per batch, and seconds from ready to collected.

    Median and 95th percentile.
    """
    middle = (SOONEST + LATEST) / 2
    found = []
    HOME.state.mkdir(parents=True, exist_ok=True)
    with running_stack(HOME, f"MaxRequestsPerBatch={RECORDS} CompletionEvents={events}") as stack:
        latency = {
            "latency": middle,
            "latency_kind": "uniform",
            "latency_spread": (LATEST - middle) / middle,
        }
        stack.local("behaviour", "PUT", latency)
        for number in range(JOBS):
            path = f"{number}.jsonl"
            stack.drop(path, as_lines(requests(BATCHES * RECORDS, path)), model=MODEL)
            _, manifest = stack.wait(path, MAX_SECONDS)
            ready = {batch["request_id"]: batch["completes_at"] for batch in stack.bill()}
            found.append(figures(manifest["batches"], ready))
            print(f"job {number + 1}: {cell(found[-1])}", flush=True)
    return found


def figures(batches: list[dict[str, Any]], ready: dict[str, float]) -> list[float]:
    """The three figures of a job.

    Args:
        batches: of its manifest.
        ready: Unix seconds at which the API had finished each `request_id`.
    """
    assert len(batches) == BATCHES
    calls = statistics.fmean(batch["polls"] + batch["attempts"] for batch in batches)
    late = sorted(
        datetime.fromisoformat(batch["completed_at"]).timestamp() - ready[batch["request_id"]]
        for batch in batches
    )
    return [calls, statistics.median(late), late[int(0.95 * (len(late) - 1))]]


def cell(figures: list[float]) -> str:
    """A job's figures as the tables of `bench/polling.md` have them."""
    return f"{figures[0]:.2f} / {figures[1]:.0f} / {figures[2]:.0f}"


if __name__ == "__main__":
    made = {
        way: [[round(one, 3) for one in job] for job in measure(events)]
        for way, events in WAYS.items()
    }
    FIGURES.write_text(json.dumps(made) + "\n")

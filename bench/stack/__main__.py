"""Measures the deployed stack as a user sees it.

`python -m bench.stack small`, `python -m bench.stack large`.

It runs on the local stack, made from `template.yaml`, with real queues, real function processes and
an HTTP API. `small` drops small files, one after another, and measures the time until their batch
is submitted. `large` drops one large file and checks every line of its result. `--kill-every` kills
one process of the submit function at that interval. `compare` runs a file through Dropbatch and
`bench/stack/plain_script.py`. Each run adds rows to its table in `bench/stack.md`. This is not part
of `make bench`: it takes minutes, and memory for the local AWS, which keeps objects in memory
(about four times the upload).
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from bench.stack.measured import (
    HOME,
    KEY,
    LOOK_SECONDS,
    MAX_WAIT_SECONDS,
    MODEL,
    Watch,
    check,
    record,
    upload,
)
from bench.stack.versus_script import compare, rounds
from tests.support.aws.stack import running_stack

if TYPE_CHECKING:
    from tests.support.aws.stack import Stack

REPORT = Path(__file__).parents[1] / "stack.md"
WARMING = 3
"""Small uploads before the measured ones: the functions' processes start with the first."""
MARKER = "<!-- runs of {} -->\n"


@dataclass(frozen=True)
class Outcome:
    """The figures of one run."""

    megabytes: int
    records: int
    batches: int
    seconds: float
    wrong: int
    codes: dict[str, int]
    kills: int
    unknowable: int
    paid_twice: int
    peak_submit: float
    peak_poll: float


# ── small uploads ─────────────────────────────────────────────────────────────────────────────────


def small(drops: int) -> str:
    """Drop small files one after another; return the report's line."""
    delays, whole = [], []
    with running_stack(HOME, "") as stack:
        for number in range(WARMING + drops):
            path = f"{MODEL}/small-{number}.jsonl"
            began = time.time()
            stack.drop(
                path,
                b"".join(msgspec.json.encode(record(number * 10 + n)) + b"\n" for n in range(10)),
            )
            _, manifest = stack.wait(path, every=LOOK_SECONDS)
            if number >= WARMING:
                delays.append(stack.bill()[-1]["time"] - began)
                whole.append(time.time() - began)
            assert manifest["counts"]["succeeded"] == 10, manifest
    cells = (
        f"{drops}",
        *(
            f"{median(times):.2f} ({min(times):.2f} to {max(times):.2f})"
            for times in (delays, whole)
        ),
    )
    return "| " + " | ".join(cells) + " |\n"


# ── a large upload ────────────────────────────────────────────────────────────────────────────────


def run(megabytes: int, kill_every: float, parameters: str) -> Outcome:
    """Run one upload from the drop to the last checked line."""
    with running_stack(HOME, parameters) as stack:
        return _run(stack, megabytes, kill_every)


def _run(stack: Stack, megabytes: int, kill_every: float) -> Outcome:
    watch = Watch(stack.poll_function, kill_every)
    watcher = threading.Thread(target=watch.run)
    try:
        records = upload(stack, megabytes * 1_000_000)
        watcher.start()
        began = time.monotonic()
        folder, manifest = stack.wait(KEY, MAX_WAIT_SECONDS, LOOK_SECONDS)
        seconds = time.monotonic() - began
        watch.over.set()
        print(f"finished after {seconds:.0f} s; checking every line", flush=True)
        wrong, codes = check(stack, folder, manifest, records)
        accepted = stack.bill()
    finally:
        watch.over.set()
        if watcher.ident:
            watcher.join()
    bills = Counter(one["sha256"] for one in accepted)
    return Outcome(
        megabytes,
        records,
        len(bills),
        seconds,
        wrong,
        dict(codes),
        watch.killed,
        sum(batch["unknowable_submits"] for batch in manifest["batches"]),
        sum(bills.values()) - len(bills),
        watch.peaks.get("submit", 0) / 1000,
        watch.peaks.get("poll", 0) / 1000,
    )


def row(outcome: Outcome, parameters: str) -> str:
    """The run as a row of the report's table."""
    wrong = "incomplete" if outcome.wrong < 0 else f"{outcome.wrong}"
    codes = ", ".join(f"{count:,} {code}" for code, count in outcome.codes.items()) or "0"
    cells = (
        f"{outcome.megabytes:,}",
        f"{outcome.records:,}",
        f"{outcome.batches:,}",
        parameters,
        f"{outcome.seconds:,.0f}",
        f"{outcome.kills}",
        wrong,
        codes,
        f"{outcome.unknowable}",
        f"{outcome.paid_twice}",
        f"{outcome.peak_submit:.0f}",
        f"{outcome.peak_poll:.0f}",
    )
    return "| " + " | ".join(cells) + " |\n"


def main() -> int:
    """Run once and add the run to the report; return 0 if every line is right."""
    parser = argparse.ArgumentParser(prog="python -m bench.stack")
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_small = kinds.add_parser("small", help="small files: time until they are submitted")
    of_small.add_argument("--drops", type=int, default=20)
    of_large = kinds.add_parser("large", help="a large file: check every line, measure memory")
    of_large.add_argument("--megabytes", type=int, default=2_000)
    of_large.add_argument(
        "--kill-every", type=float, default=0.0, help="seconds between two kills; 0: none"
    )
    of_large.add_argument("--parameters", default="")
    of_comparison = kinds.add_parser(
        "compare", help="the same work done by Dropbatch and by a plain script"
    )
    of_comparison.add_argument("--megabytes", type=int, default=100)
    of_comparison.add_argument(
        "--undisturbed", action="store_true", help="without the runs that are killed"
    )
    of_rounds = kinds.add_parser(
        "rounds", help="both undisturbed, taking turns: the ratio of their times"
    )
    of_rounds.add_argument("--megabytes", type=int, default=50)
    of_rounds.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    if chosen.kind == "small":
        line, wrong = small(chosen.drops), 0
    elif chosen.kind == "compare":
        line, wrong = (
            compare(chosen.megabytes, kills=(False,) if chosen.undisturbed else (False, True)),
            0,
        )
    elif chosen.kind == "rounds":
        line, wrong = rounds(chosen.megabytes, chosen.rounds), 0
    else:
        outcome = run(chosen.megabytes, chosen.kill_every, chosen.parameters)
        line, wrong = row(outcome, chosen.parameters), outcome.wrong
    print(line)
    marker = MARKER.format(chosen.kind)
    REPORT.write_text(REPORT.read_text().replace(marker, line + marker))
    return int(wrong != 0)


if __name__ == "__main__":
    sys.exit(main())

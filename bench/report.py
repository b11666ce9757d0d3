"""Writes the measurements as `bench/README.md`; every number in the text comes from a run."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.timing import Spread

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Speed:
    """A step on one kind of input.

    CPU seconds per GB, those of its floor, their ratio, and the most that it may be.
    """

    kind: str
    per_gb: Spread
    floor: Spread
    times_floor: Spread
    most: float

    def line(self) -> str:
        """One line of progress."""
        return f"{self.kind}: {self.per_gb.text()} s/GB, {self.times_floor.text()} times its floor"


@dataclass(frozen=True, slots=True)
class Growth:
    """A step in a fresh process.

    Peak resident memory before and after it, in MB, and CPU seconds per GB.

    Attributes:
        anonymous: memory not backed by a file while the answers are in memory; only for collect.
    """

    step: str
    size: int
    before: Spread
    peak: Spread
    anonymous: Spread | None
    per_gb: Spread

    def line(self) -> str:
        """One line of progress."""
        return (
            f"{self.step} of {self.size // MB:,} MB: peak {self.peak.text('.0f', ' MB')}, "
            f"{self.per_gb.text()} s/GB"
        )


@dataclass(frozen=True, slots=True)
class Table:
    """All measurements of one run."""

    rounds: int
    upload: int
    reply: int
    split: list[Speed]
    collect: list[Speed]
    growth: list[Growth]
    imports: list[tuple[str, str, Spread, Spread]]
    processes: int


_ALL = """\
Written by `make bench`; do not edit. Every figure is CPU time (user and system) or memory, never
wall time. Steps that are compared take turns in one process, one round each, after a warm-up
round; ratios are taken within a round. A cell shows the median, with the minimum and the maximum
in brackets."""

_PAGES = """\
| question | page |
| --- | --- |
| What does it cost on AWS? | [cost.md](cost.md) |
| How many API calls does a batch take, and how soon is it collected? | [polling.md](polling.md) |
| What do Cloudflare's completion events change? | [events.md](events.md) |
| How large may an upload be? How many jobs? | *Growth* below; [simulation.md](simulation.md) |"""

_NOISE = """\
Noise of this run: the slowest round of a floor took {least:.2f} to {largest:.2f} times as long as
its fastest."""

_SPLIT = """\
`dropbatch.core.read.cut.cut` gets 8 MiB blocks of a local file of {megabytes} MB, and what it
stages (body and index) is written to another file, at the template's limits: 9,500,000 bytes, and
500 to 5,000 records, more in later batches. The cost of the S3 client is not included. *Floor*:
read the blocks, check every line with a reader of msgspec that skips values, write the same
bytes. Without a check it would be no floor: to copy the bytes takes a third of a split on one
machine and more than half on another."""

_COLLECT = """\
A finished poll's reply to a batch of 500 records (the first ones of a job), of 5,000 (the later
ones, by default) and of as many as the model may have, items shuffled, as a memory-mapped file,
is parsed (`shared.workers_ai.replies.parse_reply`) and collected
(`functions.poll.collect.collect`) into the spooled part, without S3 and DynamoDB: results are
spliced, never decoded. A round collects a small reply many times, {megabytes} MB in all. *Floor*:
locate the items and their results with msgspec, order them by id, write the same lines. It would
take a repeated, missing, foreign, contradicting, failed or unreadable answer for a good one."""

_GROWTH = """\
Each row is measured in three fresh processes. Memory is peak resident memory, in MB. Uploads have
1 KB records, and what is staged is discarded; replies have embeddings of 384 floats. The reply to
collect is a memory-mapped file. It is read in one pass, by a reader that returns only at its end,
so all its pages count as resident until then; the kernel reclaims them when memory is short. *Not
of files*: memory that the kernel cannot reclaim, when the part is complete."""

_IMPORTS = """\
CPU time in ms, each measured in {processes} fresh processes. Without byte code, the function's
own package is compiled at import; Python's library and boto3 come compiled with the Lambda
runtime. *Services*: what the first call adds, which is boto3, its clients and the HTTP client."""

MOST_TIMES_FLOOR, MOST_TIMES_FLOOR_OF_FEW = 1.8, 3.0
"""The second is of replies of 500 answers.

Where what is done once for a batch is as much as the rest: half a ms.
"""


def readme(table: Table) -> str:
    """The whole file as text."""
    noise = [speed.floor.largest / speed.floor.least for speed in (*table.split, *table.collect)]
    sections = [
        "# Measurements",
        (
            "What a user decides by has a page of its own. This page is about the two steps "
            "that take processor time."
        ),
        _PAGES,
        _ALL,
        _machine(),
        _NOISE.format(least=min(noise), largest=max(noise)),
        "## Targets",
        _targets(table),
        "## Split",
        _SPLIT.format(megabytes=table.upload // MB),
        _speeds("upload", table.split),
        "## Collect",
        _COLLECT.format(megabytes=table.reply // MB),
        _speeds("reply", table.collect),
        "## Growth",
        _GROWTH,
        _grid(
            (
                "step",
                "input",
                "CPU, s/GB",
                "after imports, MB",
                "peak, MB",
                "peak less imports",
                "not of files, MB",
            ),
            [
                (
                    one.step,
                    f"{one.size // MB:,} MB",
                    one.per_gb.text(),
                    one.before.text(".0f"),
                    one.peak.text(".0f"),
                    f"{one.peak.middle - one.before.middle:.0f}",
                    one.anonymous.text(".0f") if one.anonymous else "-",
                )
                for one in table.growth
            ],
        ),
        "## Imports",
        _IMPORTS.format(processes=table.processes),
        _grid(
            ("handler", "byte code", "imports, ms", "services, ms"),
            [
                (f"`{handler}`", compiled, one.text(".0f"), two.text(".0f"))
                for handler, compiled, one, two in table.imports
            ],
        ),
    ]
    return "\n\n".join(sections) + "\n"


def _speeds(kind: str, speeds: list[Speed]) -> str:
    rows = [(speed.kind, speed.per_gb.text(), speed.times_floor.text()) for speed in speeds]
    return _grid((kind, "s/GB", "times floor"), rows)


def _targets(table: Table) -> str:
    """The targets and what was measured."""
    rows = [
        (
            f"{step}, {one.kind}: times its floor",
            f"at most {one.most}",
            one.times_floor.text(),
            one.times_floor.middle <= one.most,
        )
        for step, found in (("split", table.split), ("collect", table.collect))
        for one in found
    ]
    peaks = [one.peak.middle for one in table.growth if one.step == "split"]
    least, most = min(peaks), max(peaks)
    grown = f"{most / least:.2f} times, {most:.0f} MB"
    rows.append(
        (
            "split, peak memory by size",
            "within 10 %, under 200 MB",
            grown,
            most < 1.1 * least and most < 200,
        )
    )
    slowest = max(one.middle for _, compiled, one, _ in table.imports if compiled == "yes")
    rows.append(
        ("imports of the slower handler", "under 400 ms", f"{slowest:.0f} ms", slowest < 400)
    )
    return _grid(
        ("what", "target", "measured", ""),
        [
            (what, target, found, "met" if good else "**missed**")
            for what, target, found, good in rows
        ],
    )


def _grid(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machine() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    processor = found[1] if found else platform.processor() or "unknown processor"
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("msgspec", "boto3", "aws-lambda-powertools", "httpx")
    )
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {processor}, {os.cpu_count()} processors, "
        f"{platform.system()} {platform.machine()}, "
        f"{platform.python_implementation()} {platform.python_version()}, {versions}."
    )

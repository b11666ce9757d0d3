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
wall time. Steps that are compared take turns in one process. A cell shows the median, with the
minimum and the maximum in brackets."""

_PAGES = """\
| question | page |
| --- | --- |
| What does it cost on AWS? | [cost.md](cost.md) |
| How many API calls does a batch take? How soon is it collected? | [polling.md](polling.md) |
| What do Cloudflare's completion events change? | [events.md](events.md) |
| How large may an upload be? How many jobs? | *Growth* below |"""

_NOISE = """\
Noise of this run: the slowest round of a floor took {least:.2f} to {largest:.2f} times as long as
its fastest."""

_SPLIT = """\
`dropbatch.core.read.cut.cut` gets 8 MiB blocks of a local file of {megabytes} MB, and what it
stages is written to another file, at the template's limits; without S3. *Floor*: read the blocks,
check every line with a reader of msgspec that skips values, write the same bytes."""

_COLLECT = """\
A reply to a batch, items shuffled, as a memory-mapped file, is parsed
(`shared.workers_ai.replies.parse_reply`) and collected (`functions.poll.collect.collect`) into
the part, without S3 and DynamoDB, {megabytes} MB in all. *Floor*: locate the items and their
results with msgspec, order them by id, write the same lines; it would take a repeated, missing,
foreign or failed answer for a good one."""

_GROWTH = """\
Each row is measured in three fresh processes. Memory is peak resident memory, in MB. The reply to
collect is a memory-mapped file, whose pages the kernel reclaims when memory is short. *Not of
files*: memory that it cannot reclaim, when the part is complete."""

_IMPORTS = """\
CPU time in ms, in {processes} fresh processes each. Without byte code, the function's own package
is compiled at import. *Services*: what the first call adds: boto3, its clients, the HTTP client."""

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
            "What a user decides by has a page of its own; here are the two steps that take "
            "processor time."
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
    rows = [
        (
            speed.kind,
            speed.per_gb.text(),
            speed.times_floor.text(),
            f"{speed.most} {_verdict(good=speed.times_floor.middle <= speed.most)}",
        )
        for speed in speeds
    ]
    return _grid((kind, "s/GB", "times floor", "at most"), rows)


def _verdict(*, good: bool) -> str:
    return "met" if good else "**missed**"


def _targets(table: Table) -> str:
    """The targets and what was measured."""
    peaks = [one.peak.middle for one in table.growth if one.step == "split"]
    least, most = min(peaks), max(peaks)
    grown = f"{most / least:.2f} times, {most:.0f} MB"
    is_flat = most < 1.1 * least and most < 200
    slowest = max(one.middle for _, compiled, one, _ in table.imports if compiled == "yes")
    rows = [
        ("split, peak memory by size", "within 10 %, under 200 MB", grown, is_flat),
        ("imports of the slower handler", "under 400 ms", f"{slowest:.0f} ms", slowest < 400),
    ]
    return _grid(
        ("what", "target", "measured", ""),
        [(what, target, found, _verdict(good=good)) for what, target, found, good in rows],
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

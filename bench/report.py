"""What was measured, as `bench/README.md`. Knows no step; every number in the text comes from a run."""

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
    from bench.timing import Spread

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Speed:
    """A step on one kind of input: CPU seconds per GB of each way, ours against the floors, plain against ours."""

    kind: str
    per_gb: dict[str, Spread]
    ratios: dict[str, Spread]
    faster: Spread | None

    def line(self) -> str:
        """For whoever watches."""
        parts = [f"{way} {spread.middle:.2f}" for way, spread in self.per_gb.items()]
        return f"{self.kind}: {', '.join(parts)} s/GB"


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak resident memory of a step in a fresh process, in MB, before it began and after it."""

    step: str
    size: int
    before: Spread
    peak: Spread

    def line(self) -> str:
        """For whoever watches."""
        return f"{self.step} of {self.size // MB:,} MB: peak {self.peak.text('.0f', ' MB')}"


@dataclass(frozen=True, slots=True)
class Table:
    """Everything one run found."""

    rounds: int
    upload: int
    reply: int
    split: list[Speed]
    collect: list[Speed]
    memory: list[Memory]
    imports: list[tuple[str, str, Spread, Spread]]
    processes: int
    allocator: tuple[Spread, Spread, Spread]
    s3: dict[str, Spread]


_ALL = """\
Written by `make bench`; do not edit. Every figure is CPU time (user and system) or memory, never wall time. Steps that
are compared took turns in one process, a round each, after a round that was thrown away; a ratio is taken within a
round. A cell holds the median, and in brackets the least and the largest."""

_NOISE = """\
Noise of this run: between the quickest and the slowest round of one floor lay a factor of {least:.2f} to
{largest:.2f}."""

_SPLIT = """\
`functions.submit.cut.cut`, fed with 8 MiB blocks of a local file of {megabytes} MB, and what it stages (body and
sidecar) written to another, at the template's limits of 500 records and 9,500,000 bytes. What the S3 client costs comes
on top on every side and stands below. *Floor*: read the blocks, find the newlines (`split`, which leaves the lines),
write the same bytes. *Lowest floor*: the newlines only counted; nothing that tells records apart can come near it.
*Plain*: `json.loads` of each line, lists, `json.dumps` of the payload, the same limits."""

_COLLECT = """\
`functions.poll.collect.collect` of a reply of {megabytes} MB, items shuffled, from a mapped file to the spooled part
with its SHA-256; no S3, no DynamoDB. *Floor*: read and write the same bytes. *With SHA-256*: the same, hashed as a part
must be. *Plain*: `json.load` of the reply, a dict by id, `json.dumps` of each record's line in order, SHA-256."""

_MEMORY = """\
A fresh process for each, three times; resident memory at its highest, in MB. Uploads are of 1 KB records, replies of
embeddings of 384 floats. A collect's reply is a mapped file: its pages count as resident, and the kernel takes them
back when memory is short."""

_IMPORTS = """\
A fresh process for each, {processes} times, ms of CPU. Without byte code means that the function's own package is
compiled anew; Python's library and boto3 come compiled with the Lambda runtime. *Services*: what the first call adds:
boto3, its clients, the HTTP client."""

_OTHERS = """\
`MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_` as `template.yaml` sets them, against glibc as it comes: split of
1 KB records, its output dropped, in processes that take turns. boto3's own cost: ranged reads of 8 MiB and puts of
0.5 MB against a stub in another process, over plain HTTP, where it hashes each body that it sends; over HTTPS TLS takes
that place."""

_LATER = """\
A comparison with public tools that do the same step: none is measured here. API calls per batch and the connector's
delay are counted on the whole path, not here."""

_NONE = "-"


def readme(table: Table) -> str:
    """The whole file."""
    floors = [
        spread.largest / spread.least
        for speed in (*table.split, *table.collect)
        for way, spread in speed.per_gb.items()
        if way == "floor"
    ]
    sections = [
        "# Measurements",
        _ALL,
        _machine(),
        _NOISE.format(least=min(floors), largest=max(floors)),
        "## Targets",
        _targets(table),
        "## Split",
        _SPLIT.format(megabytes=table.upload // MB),
        _speeds("upload", table.split, "lowest", "times lowest floor"),
        "## Collect",
        _COLLECT.format(megabytes=table.reply // MB),
        _speeds("reply", table.collect, "hashed", "times floor with SHA-256"),
        "## Peak memory",
        _MEMORY,
        _grid(
            ("step", "input", "after imports, MB", "peak, MB", "peak less imports, MB"),
            [
                (
                    one.step,
                    f"{one.size // MB:,} MB",
                    one.before.text(".0f"),
                    one.peak.text(".0f"),
                    f"{one.peak.middle - one.before.middle:.0f}",
                )
                for one in table.memory
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
        "## The allocator's settings, and the S3 client",
        _OTHERS,
        _grid(
            ("what", "s/GB"),
            [
                ("split, allocator as in the template", table.allocator[0].text()),
                ("split, allocator as it comes", table.allocator[1].text()),
                ("the second against the first, times", table.allocator[2].text()),
                ("boto3, reading an upload", table.s3["read"].text()),
                ("boto3, writing staged objects", table.s3["write"].text()),
            ],
        ),
        "## What comes after",
        _LATER,
    ]
    return "\n\n".join(sections) + "\n"


def _speeds(kind: str, speeds: list[Speed], other: str, words: str) -> str:
    return _grid(
        (kind, "s/GB", "times floor", words, "plain, s/GB", "times faster than plain"),
        [
            (
                speed.kind,
                speed.per_gb["ours"].text(),
                speed.ratios["floor"].text(),
                speed.ratios[other].text(),
                speed.per_gb["plain"].text(".1f") if speed.faster else _NONE,
                speed.faster.text(".1f") if speed.faster else _NONE,
            )
            for speed in speeds
        ],
    )


def _targets(table: Table) -> str:
    split = {speed.kind: speed for speed in table.split}
    collect = {speed.kind: speed for speed in table.collect}
    rows = []
    for step, speeds, kind, times in (
        ("split", split, "1 KB records", 5),
        ("split", split, "1 KB of chat messages", 5),
        ("split", split, "85-byte records", 5),
        ("collect", collect, "embeddings of 384 floats", 20),
        ("collect", collect, "embeddings of 1,024 floats", 20),
    ):
        floor, plain = speeds[kind].ratios["floor"], speeds[kind].faster
        assert plain
        rows += [
            (f"{step}, {kind}: times its floor", "at most 2", floor.text(), floor.middle <= 2),
            (
                f"{step}, {kind}: times faster than plain",
                f"at least {times}",
                plain.text(".1f"),
                plain.middle >= times,
            ),
        ]
    peaks = [one.peak.middle for one in table.memory if one.step == "split"]
    least, most = min(peaks), max(peaks)
    grown = f"{most / least:.2f} times, {most:.0f} MB"
    rows.append(("split, peak memory by size", "within 10 %, under 200 MB", grown, most < 1.1 * least and most < 200))
    slowest = max(one.middle for _, compiled, one, _ in table.imports if compiled == "yes")
    rows.append(("imports of the slower handler", "under 400 ms", f"{slowest:.0f} ms", slowest < 400))
    return _grid(
        ("what", "target", "measured", ""),
        [(what, target, found, "met" if good else "**missed**") for what, target, found, good in rows],
    )


def _grid(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _machine() -> str:
    try:
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    processor = found[1] if found else platform.processor() or "unknown processor"
    versions = ", ".join(f"{name} {version(name)}" for name in ("msgspec", "boto3", "aws-lambda-powertools", "httpx"))
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {processor}, {os.cpu_count()} processors, "
        f"{platform.system()} {platform.machine()}, "
        f"{platform.python_implementation()} {platform.python_version()}, {versions}."
    )

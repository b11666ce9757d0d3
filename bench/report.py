"""The measurements as `bench/README.md`; every number in the text comes from a run."""

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
    from collections.abc import Callable

    from bench.timing import Spread

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Speed:
    """A step on one kind of input.

    Attributes:
        kind: of input.
        per_gb: CPU seconds per GB of each way: `ours`, `floor` and others.
        floors: each way's time as a multiple of the floor's.
        faster: each way's time as a multiple of ours.
    """

    kind: str
    per_gb: dict[str, Spread]
    floors: dict[str, Spread]
    faster: dict[str, Spread]

    def line(self) -> str:
        """One line of progress."""
        parts = [f"{way} {spread.middle:.2f}" for way, spread in self.per_gb.items()]
        return f"{self.kind}: {', '.join(parts)} s/GB"


@dataclass(frozen=True, slots=True)
class Growth:
    """A step in a fresh process: resident memory at its highest before and after it, in MB, and CPU seconds per GB.

    Attributes:
        anonymous: memory that is no file's page while the answers live; only of collect.
    """

    step: str
    size: int
    before: Spread
    peak: Spread
    anonymous: Spread | None
    per_gb: Spread

    def line(self) -> str:
        """One line of progress."""
        return f"{self.step} of {self.size // MB:,} MB: peak {self.peak.text('.0f', ' MB')}, {self.per_gb.text()} s/GB"


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
    allocator: tuple[Spread, Spread, Spread]
    s3: dict[str, Spread]


_ALL = """\
Written by `make bench`; do not edit. Every figure is CPU time (user and system) or memory, never wall time. Steps that
are compared take turns in one process, a round each, after a warm-up round; a ratio is taken within a
round. A cell holds the median, and in brackets the least and the largest."""

_NOISE = """\
Noise of this run: the slowest round of one floor took longer than the fastest by a factor of {least:.2f} to
{largest:.2f}."""

_SPLIT = """\
`functions.submit.records.cut.cut`, fed with 8 MiB blocks of a local file of {megabytes} MB, and what it stages (body
and sidecar) written to another, at the template's limits: 9,500,000 bytes, and 500 to 5,000 records, more in later
batches. The cost of the S3 client is not included; it is below. *Floor*: read the blocks, find the
newlines (`split`, which leaves the lines), write the same bytes. *JSON alone*: read the blocks, split them, decode
each line with msgspec and drop it, write nothing. *Plain*: `json.loads` of each line, lists, `json.dumps` of the
payload, the same limits. *filesplit*: PyPI's package of that name, as many lines per file; it reads none of them
and writes no body and no sidecar."""

_COLLECT = """\
A finished poll's reply of {megabytes} MB, items shuffled, as a mapped file: recognized
(`shared.workers_ai.replies.parse_reply`) and collected (`functions.poll.collect.collect`) into the spooled part; no
S3, no DynamoDB. *Floor*: read and write the same bytes. *JSON alone*: the reply read to its end by msgspec and
dropped. *Plain*: `json.load` of the reply, a dict by id, `json.dumps` of each record's line in order."""

_GROWTH = """\
A fresh process for each, three times. Memory is what is resident at its highest, in MB. Uploads are of 1 KB records,
what is staged is dropped; replies are of embeddings of 384 floats. A collect's reply is a mapped file, read in one pass
by a reader that returns at its end, so all its pages count as resident until then; the kernel takes them
back when memory is short. *Not of files*: what it cannot take back, when the part is complete."""

_IMPORTS = """\
A fresh process for each, {processes} times, ms of CPU. Without byte code means that the function's own package is
compiled; Python's library and boto3 are compiled in the Lambda runtime. *Services*: what the first call adds:
boto3, its clients, the HTTP client."""

_OTHERS = """\
`MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_` as `template.yaml` sets them, against glibc's defaults: split of
1 KB records, its output dropped, in processes that take turns. The cost of boto3 itself: ranged reads of 8 MiB and
puts of 0.5 MB against a stub in another process, over plain HTTP, where it hashes each body that it sends; over HTTPS
there is TLS instead."""

_LATER = """\
Public tools: none was found on PyPI that cuts a request file under a record and a byte limit, checks its records and
writes request bodies, or joins a shuffled reply to its records. Looked at: gpt-batch-manager (splits by an estimate of
tokens), json-file-split (into a number of files), bespokelabs-curator, openai-batch and openbatch (build requests from
Python objects and send them), filesplit (lines alone; measured above). API calls per batch
([polling.md](polling.md)) and the connector's delay are counted on the whole path, not here.
Other formats are measured beside native records in [formats.md](formats.md)."""

_NONE = "-"

_REASONS = {
    ("split", "floor"): """\
*Split, times its floor.* Reading the JSON alone takes {json_of_floor} floors. Each line is decoded by itself, so that
its validity depends on its own bytes alone, and into values, since the reader checks numbers and UTF-8 only in values.
It would need a reader that checks everything and creates nothing. orjson was tried and is not faster.""",
    ("split", "plain"): """\
*Split, times faster than plain.* The floor itself is only {plain_of_floor} times faster than plain, and reading the
JSON alone {plain_of_json} times. It would need the same reader, and lines that need not be separate objects.""",
    ("collect", "floor"): """\
*Collect, times its floor.* msgspec takes {json_of_floor} floors to find where the numbers end, and a reply must be read
to its end before any state says that it was received. It would need a reader that scans
numbers several at a time.""",
    ("collect", "plain"): """\
*Collect, times faster than plain.* Reading the JSON alone is {plain_of_json} times faster than plain, that and the
floor together {plain_of_both} times. The rest searches each result for line breaks and for bytes that are not text, and
copies it into its line. It would need the same faster reader.""",
}
"""Why a target is missed, by step and baseline; the numbers are the range over the kinds that miss it."""


def readme(table: Table) -> str:
    """The whole file."""
    floors = [
        spread.largest / spread.least for speed in (*table.split, *table.collect) for spread in (speed.per_gb["floor"],)
    ]
    sections = [
        "# Measurements",
        _ALL,
        _machine(),
        _NOISE.format(least=min(floors), largest=max(floors)),
        "## Targets",
        *_targets(table),
        "## Split",
        _SPLIT.format(megabytes=table.upload // MB),
        _speeds("upload", table.split, "filesplit"),
        "## Collect",
        _COLLECT.format(megabytes=table.reply // MB),
        _speeds("reply", table.collect),
        "## Growth",
        _GROWTH,
        _grid(
            ("step", "input", "CPU, s/GB", "after imports, MB", "peak, MB", "peak less imports", "not of files, MB"),
            [
                (
                    one.step,
                    f"{one.size // MB:,} MB",
                    one.per_gb.text(),
                    one.before.text(".0f"),
                    one.peak.text(".0f"),
                    f"{one.peak.middle - one.before.middle:.0f}",
                    one.anonymous.text(".0f") if one.anonymous else _NONE,
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
        "## The allocator's settings, and the S3 client",
        _OTHERS,
        _grid(
            ("what", "s/GB"),
            [
                ("split, allocator as in the template", table.allocator[0].text()),
                ("split, glibc's default allocator", table.allocator[1].text()),
                ("the second against the first, times", table.allocator[2].text()),
                ("boto3, reading an upload", table.s3["read"].text()),
                ("boto3, writing staged objects", table.s3["write"].text()),
            ],
        ),
        "## What is not here",
        _LATER,
    ]
    return "\n\n".join(sections) + "\n"


def _speeds(kind: str, speeds: list[Speed], *others: str) -> str:
    head = (kind, "s/GB", "times floor", "JSON alone, times floor", "plain, s/GB", "times faster than plain")
    return _grid(
        (*head, *(f"times faster than {other}" for other in others)),
        [
            (
                speed.kind,
                speed.per_gb["ours"].text(),
                speed.floors["ours"].text(),
                _cell(speed.floors, "json"),
                _cell(speed.per_gb, "plain", ".1f"),
                *(_cell(speed.faster, way, ".1f") for way in ("plain", *others)),
            )
            for speed in speeds
        ],
    )


def _cell(spreads: dict[str, Spread], way: str, form: str = ".2f") -> str:
    return spreads[way].text(form) if way in spreads else _NONE


def _targets(table: Table) -> list[str]:
    """The targets, met or missed, and the reasons for those missed."""
    rows, missed = [], dict[tuple[str, str], list[Speed]]()
    for step, speeds, times in (("split", table.split, 5), ("collect", table.collect, 20)):
        for speed in speeds:
            if "plain" not in speed.faster or not _has_target(step, speed.kind):
                continue
            ours, plain = speed.floors["ours"], speed.faster["plain"]
            what = f"{step}, {speed.kind}"
            rows += [
                (f"{what}: times its floor", "at most 2", ours.text(), ours.middle <= 2),
                (f"{what}: times faster than plain", f"at least {times}", plain.text(".1f"), plain.middle >= times),
            ]
            if ours.middle > 2:
                missed.setdefault((step, "floor"), []).append(speed)
            if plain.middle < times:
                missed.setdefault((step, "plain"), []).append(speed)
    peaks = [one.peak.middle for one in table.growth if one.step == "split"]
    least, most = min(peaks), max(peaks)
    grown = f"{most / least:.2f} times, {most:.0f} MB"
    rows.append(("split, peak memory by size", "within 10 %, under 200 MB", grown, most < 1.1 * least and most < 200))
    slowest = max(one.middle for _, compiled, one, _ in table.imports if compiled == "yes")
    rows.append(("imports of the slower handler", "under 400 ms", f"{slowest:.0f} ms", slowest < 400))
    grid = _grid(
        ("what", "target", "measured", ""),
        [(what, target, found, "met" if good else "**missed**") for what, target, found, good in rows],
    )
    if not missed:
        return [grid]
    reasons = [_REASONS[what].format(**_reasoned(speeds)) for what, speeds in missed.items()]
    return [grid, "Why the targets are missed, and what it would take:", "\n\n".join(f"- {one}" for one in reasons)]


def _reasoned(speeds: list[Speed]) -> dict[str, str]:
    """The numbers in the reasons: the least and the largest median of the kinds that miss a target."""

    def across(value: Callable[[Speed], float]) -> str:
        values = sorted(map(value, speeds))
        least, most = f"{values[0]:.1f}", f"{values[-1]:.1f}"
        return least if least == most else f"{least} to {most}"

    return {
        "json_of_floor": across(lambda one: one.floors["json"].middle),
        "plain_of_floor": across(lambda one: one.floors["plain"].middle),
        "plain_of_json": across(lambda one: one.floors["plain"].middle / one.floors["json"].middle),
        "plain_of_both": across(lambda one: one.floors["plain"].middle / (one.floors["json"].middle + 1)),
    }


def _has_target(step: str, kind: str) -> bool:
    return step == "split" or kind.startswith("embeddings")


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

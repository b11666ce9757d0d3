"""Data of the report page, gathered in constant memory: batches over time, groups of failures.

Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import log10
from typing import TYPE_CHECKING

import msgspec

from dropbatch.core.formats.base import NULL, begins, compact

if TYPE_CHECKING:
    from collections.abc import Iterable

CURVE_STEPS = 120
"""Columns of the chart of batches over time."""
MAX_GROUPS = 50
"""Groups of failures; further ones are counted together."""
MAX_EXAMPLES, MAX_LINES = 3, 8
"""Examples and line numbers of one group."""
MAX_EXAMPLE_CHARACTERS = 300
MAX_GROUP_CHARACTERS = 500
BINS_A_DECADE = 3
"""Bars of the histogram between 1 and 10 seconds, between 10 and 100, and so on."""


class _Error(msgspec.Struct):
    code: str
    message: str


class _Failed(msgspec.Struct):
    """A line of errors.jsonl; the request stays as it is.

    It may hold numbers that cannot be read.
    """

    error: _Error
    line: int | None = None
    request: msgspec.Raw = NULL


_decode = msgspec.json.Decoder(_Failed).decode
_decode_text = msgspec.json.Decoder(str).decode


@dataclass
class Timeline:
    """How many batches were submitted and collected while the job ran.

    Attributes:
        begin: Unix seconds of the job's creation.
        end: Unix seconds of its end.
        submitted: batches that were first accepted in each column of time.
        collected: batches whose answers were stored in each column of time.
        seconds_to_answer: batches by bar of the histogram.
        complete: whether all batches are counted.
    """

    begin: float
    end: float
    submitted: list[int] = field(default_factory=lambda: [0] * CURVE_STEPS)
    collected: list[int] = field(default_factory=lambda: [0] * CURVE_STEPS)
    seconds_to_answer: Counter[int] = field(default_factory=Counter)
    complete: bool = True

    def add(self, submitted: float | None, collected: float | None) -> None:
        """Add one batch, by its times in Unix seconds."""
        for at, columns in ((submitted, self.submitted), (collected, self.collected)):
            if at is not None:
                columns[self._column(at)] += 1
        if submitted is not None and collected is not None:
            self.seconds_to_answer[bin_of(collected - submitted)] += 1

    def _column(self, at: float) -> int:
        length = max(self.end - self.begin, 1e-9)
        return min(max(int((at - self.begin) / length * CURVE_STEPS), 0), CURVE_STEPS - 1)


def bin_of(seconds: float) -> int:
    """The bar of the histogram for a number of seconds; bar 0 is up to one second."""
    return 0 if seconds <= 1 else 1 + int(log10(seconds) * BINS_A_DECADE)


def upper_edge(number: int) -> float:
    """The upper limit of a bar, in seconds."""
    return 1.0 if number == 0 else 10 ** (number / BINS_A_DECADE)


@dataclass
class Group:
    """Failures of one code and one message.

    Attributes:
        records: how many.
        lines: the first line numbers of the upload.
        examples: the first requests as JSON, shortened.
    """

    records: int = 0
    lines: list[int] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)


@dataclass
class Failures:
    """Failed records by code and message.

    Attributes:
        groups: by code and message, the first ones found.
        others: records of further groups.
        complete: whether all failures were read.
    """

    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    others: int = 0
    complete: bool = True

    def add(self, line: bytes) -> None:
        """Add a line of errors.jsonl."""
        failed = _decode(line)
        key = (failed.error.code, general_message(failed.error.message))
        if key not in self.groups and len(self.groups) >= MAX_GROUPS:
            self.others += 1
            return
        group = self.groups.setdefault(key, Group())
        group.records += 1
        if failed.line is not None and len(group.lines) < MAX_LINES:
            group.lines.append(failed.line)
        if len(group.examples) < MAX_EXAMPLES:
            group.examples.append(_example(failed.request))


def general_message(message: str) -> str:
    """A message without the line number, which differs from record to record."""
    head, separator, rest = message.partition(": ")
    general = rest if separator and head.startswith("Line ") and head[5:].isdigit() else message
    return general[:MAX_GROUP_CHARACTERS]


def _example(request: msgspec.Raw) -> str:
    text = (
        _decode_text(request)
        if begins(request, b'"')
        else compact(request).decode(errors="replace")
    )
    return text if len(text) <= MAX_EXAMPLE_CHARACTERS else f"{text[:MAX_EXAMPLE_CHARACTERS]}…"


def failures_in(blocks: Iterable[bytes], *, complete: bool) -> Failures:
    """Group the failures at the beginning of errors.jsonl.

    Args:
        blocks: its bytes.
        complete: whether these are all of them; otherwise the last line may be incomplete, and is
            left out.
    """
    found = Failures(complete=complete)
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            found.add(line)
    if rest and complete:
        found.add(rest)
    return found

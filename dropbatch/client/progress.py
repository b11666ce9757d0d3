"""Progress of jobs: lines rewritten on a terminal or in a notebook, plain lines elsewhere.

A job's line wraps where it is too long: nothing that it says is left out.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
import threading
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple, TextIO

from dropbatch.core.names import FINAL_JOB_STATES, JOB_ID

PLAIN_EVERY_SECONDS = 30.0
"""Seconds between two plain lines of a job if only its counts changed."""
MIN_RATE_SECONDS = 3.0
"""Seconds of watching before a rate is shown."""
MAX_LINES = 4
"""Lines of what a job waits for."""
GAP = "  "
SHORT_ID = 8
"""Letters at the end of a job's id that name it where a line is narrow."""
BAR_WIDTH = 16
NOTEBOOK_SIZE = (100, 30)
"""Columns and lines in a notebook's cell."""
TOTAL = "all jobs"
"""The name under which many jobs are shown together."""


class Watched(NamedTuple):
    """A job's time and counts when it was first shown. Its rate is measured from these."""

    at: float
    records: int
    fraction: float


@dataclass
class Progress:
    """Shows one or more jobs.

    Attributes:
        notebook: replaces what a notebook's cell shows; then nothing is written.
        on_terminal: whether lines may be rewritten.
        plain_seconds: elsewhere, seconds between two lines of a job whose state stays the same.
    """

    out: TextIO = field(default_factory=lambda: sys.stderr)
    notebook: Callable[[str], None] | None = None
    on_terminal: bool | None = None
    plain_seconds: float = PLAIN_EVERY_SECONDS
    began: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108
    _statuses: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _first: dict[str, Watched] = field(default_factory=dict)
    _printed: dict[str, tuple[str, float]] = field(default_factory=dict)
    _lines: int = 0

    def __post_init__(self) -> None:
        if self.on_terminal is None:
            self.on_terminal = not self.notebook and self.out.isatty()

    def show(
        self, statuses: Mapping[str, Mapping[str, Any]], total: Mapping[str, Any] | None = None
    ) -> None:
        """Show the contents of status.json by name; `total`: of many, of which these are some."""
        self._statuses = {TOTAL: total, **statuses} if total else dict(statuses)
        now = time.monotonic()
        for name, status in self._statuses.items():
            watched = Watched(now, _done(status), status.get("fraction_done") or 0.0)
            self._first.setdefault(name, watched)
        if self.on_terminal or self.notebook:
            self.redraw()
        else:
            self._print_changes(now)

    def redraw(self) -> None:
        """Draw the lines again with the current time; nothing where they cannot be rewritten."""
        if self.notebook:
            self.notebook("\n".join(self._fitting(*NOTEBOOK_SIZE)))
        if not self.on_terminal:
            return
        size = self._size()
        lines = self._fitting(size.columns - 1, size.lines - 1)
        if self._lines:
            self.out.write(f"\x1b[{self._lines}F")
        self.out.write("".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self.out.flush()
        self._lines = len(lines)

    def _fitting(self, width: int, height: int) -> list[str]:
        """The lines of all jobs; if they do not fit, of those that are not over first."""
        described = {name: self._describe(name, width) for name in self._statuses}
        if sum(map(len, described.values())) <= height:
            return list(chain.from_iterable(described.values()))
        is_over = {
            name: status.get("state") in FINAL_JOB_STATES for name, status in self._statuses.items()
        }
        ordered = sorted(described, key=is_over.__getitem__)
        return list(chain.from_iterable(map(described.__getitem__, ordered)))[:height]

    def _size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self.out.fileno())
        except OSError:
            return shutil.get_terminal_size()
        return size if size.columns and size.lines else shutil.get_terminal_size()

    def _print_changes(self, now: float) -> None:
        """Print jobs whose state or reason to wait has changed, others every `plain_seconds`."""
        for name in [TOTAL] if TOTAL in self._statuses else self._statuses:
            status = self._statuses[name]
            state = status.get("fraction_done") == 1 if name == TOTAL else status.get("state")
            key = f"{state} {(status.get('waiting_for') or {}).get('code')}"
            before, at = self._printed.get(name, ("", 0.0))
            if key != before or now - at >= self.plain_seconds:
                self._printed[name] = key, now
                self.out.write(GAP.join(self._describe(name, None)) + "\n")
                self.out.flush()

    def _describe(self, name: str, width: int | None) -> list[str]:
        now = time.monotonic()
        return describe(name, self._statuses[name], width, now - self.began, now, self._first[name])


def describe(
    name: str,
    status: Mapping[str, Any],
    width: int | None = None,
    elapsed: float | None = None,
    now: float = 0.0,
    first: Watched | None = None,
) -> list[str]:
    """Describe a job in a line, and what it waits for below it. A narrow one has no bar.

    `width`: columns at which lines wrap; `first`: when it was first shown, from which the rate is.
    """
    state = printable(str(status.get("state", "?")))
    short = name[-SHORT_ID:] if JOB_ID.fullmatch(name) else printable(name)
    bar, records = _bar(status), _records(status)
    records += [] if elapsed is None else [duration(elapsed)]
    heads = (
        [printable(name), f"{state:<11}", *bar, *records],
        [short, f"{state:<11}", *bar, *records],
        [short, state, *records],
    )
    fitting = (head for head in heads if width is None or columns_of(GAP.join(head)) <= width)
    parts = next(fitting, heads[-1])
    if first is not None and status.get("state") not in FINAL_JOB_STATES:
        parts += _speed(status, now, first)
    parts += [*_reading(status), *_pending(status)]
    lines = _filled(parts, width)
    if waiting := status.get("waiting_for"):
        lines += _wrapped(printable(f"waiting: {waiting['code']}: {waiting['message']}"), width)
    return lines


def _filled(parts: list[str], width: int | None) -> list[str]:
    if width is None:
        return [GAP.join(parts).rstrip()]
    lines = [shortened(parts[0], width)]
    for part in parts[1:]:
        longer = f"{lines[-1]}{GAP}{part}"
        if columns_of(longer.rstrip()) <= width:
            lines[-1] = longer
        else:
            lines.append(cut(GAP + part, width))
    return [line.rstrip() for line in lines]


def _wrapped(text: str, width: int | None) -> list[str]:
    if width is None:
        return [GAP + text]
    indents: dict[str, Any] = {"initial_indent": GAP, "subsequent_indent": GAP * 2}
    lines = textwrap.wrap(text, max(width, 20), max_lines=MAX_LINES, placeholder=" …", **indents)
    return [cut(one, width) for one in lines]


def _bar(status: Mapping[str, Any]) -> list[str]:
    fraction = status.get("fraction_done")
    if fraction is None:
        return []
    filled = int(BAR_WIDTH * fraction)
    return [f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {int(fraction * 100):>3}%"]


def _done(status: Mapping[str, Any]) -> int:
    counts = status.get("counts") or {}
    return int(counts.get("succeeded", 0) + counts.get("failed", 0))


def _records(status: Mapping[str, Any]) -> list[str]:
    counts = status.get("counts") or {}
    total, failed = counts.get("total"), counts.get("failed")
    of = "" if total is None else f"{_done(status):,} of "
    records = counted(_done(status) if total is None else total, "record")
    cut_off = status.get("incomplete")
    parts = [f"{failed:,} failed" if failed else "", f"{cut_off:,} cut off" if cut_off else ""]
    return [of + records, *filter(None, parts)]


def _pending(status: Mapping[str, Any]) -> list[str]:
    pending = (status.get("pending") or {}).get("batches")
    return [f"{counted(pending, 'batch', 'es')} pending"] if pending else []


def _reading(status: Mapping[str, Any]) -> list[str]:
    splitting = status.get("splitting") or {}
    read, size = splitting.get("bytes_read"), splitting.get("bytes")
    return [f"{min(read / size, 1):.0%} of the upload read"] if read is not None and size else []


def _speed(status: Mapping[str, Any], now: float, first: Watched) -> list[str]:
    seconds, done = now - first.at, _done(status) - first.records
    if seconds < MIN_RATE_SECONDS or done <= 0:
        return []
    rate = f"{done / seconds:,.0f}/s" if done >= seconds else f"{60 * done / seconds:,.0f}/min"
    fraction = status.get("fraction_done") or 0.0
    if not first.fraction < fraction < 1:
        return [rate]
    left = seconds * (1 - fraction) / (fraction - first.fraction)
    return [f"about {duration(left)} left", rate]


def counted(number: int, thing: str, ending: str = "s") -> str:
    """So many things: `1 record`, `2,000 records`."""
    return f"{number:,} {thing}{'' if number == 1 else ending}"


def duration(seconds: float) -> str:
    """Format seconds: `42 s`, `7 min`, `3 h 20 min`, `2 d 4 h`."""
    whole = round(seconds)
    if whole < 100:  # noqa: PLR2004 - "95 s" says more than "2 min"
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 100:  # noqa: PLR2004 - as above
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    if hours < 48:  # noqa: PLR2004 - as above
        return f"{hours} h {rest} min"
    return f"{hours // 24} d {hours % 24} h"


def shown_to_user() -> Progress | None:
    """Progress in a notebook or on a terminal; None elsewhere, and in other threads."""
    if threading.current_thread() is not threading.main_thread():
        return None
    if update := _notebook():
        return Progress(notebook=update)
    return Progress() if sys.stderr.isatty() else None


def _notebook() -> Callable[[str], None] | None:
    """A function that replaces the text below the notebook's cell; None if this is no notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if not hasattr(shell, "kernel"):
        return None
    display = import_module("IPython.display").display
    shown = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: shown.update({"text/plain": text}, raw=True)


_COMMANDS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, line separators, what changes the direction of writing, half characters."""


def printable(text: str) -> str:
    r"""A text in which what would command a terminal is written as Python writes it: `\x1b`."""
    return text if text.isprintable() else _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes: letters of East Asia two, marks none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(one: str) -> int:
    if unicodedata.combining(one) or unicodedata.category(one) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(one) in {"W", "F"} else 1


def cut(text: str, width: int) -> str:
    """The beginning of a text that takes no more columns."""
    if len(text) <= width and columns_of(text) <= width:
        return text
    used = 0
    for at, one in enumerate(text):
        used += columns_of(one)
        if used > width:
            return text[:at]
    return text


def shortened(text: str, width: int) -> str:
    """A text that takes no more columns; of a longer one, its end, which tells paths apart."""
    if columns_of(text) <= width:
        return text
    return f"…{cut(text[::-1], width - 1)[::-1]}" if width > 0 else ""

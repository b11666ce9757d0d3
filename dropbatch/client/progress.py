"""Progress of jobs: lines that are rewritten on a terminal or in a notebook, plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

from dropbatch.core.keys import FINAL_JOB_STATES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PLAIN_EVERY_SECONDS = 30.0
"""Seconds between two plain lines of a job if only its counts changed."""
MIN_RATE_SECONDS = 3.0
"""Seconds of watching before a rate is shown."""
NARROW_COLUMNS = 72
"""On a narrower terminal a job is named by the end of its id, and has no bar."""

NOTEBOOK_SIZE = (100, 30)
"""Columns and lines in a notebook's cell."""


@dataclass(frozen=True)
class Watched:
    """A job's time and counts when it was first shown. Its rate is measured from these."""

    at: float
    records: int
    fraction: float


@dataclass
class Progress:
    """Shows one or more jobs.

    Attributes:
        out: where to write.
        notebook: replaces what a notebook's cell shows; then nothing is written.
        on_terminal: whether lines may be rewritten.
        plain_seconds: elsewhere, seconds between two lines of a job whose state stays the same.
    """

    out: TextIO = field(default_factory=lambda: sys.stderr)
    notebook: Callable[[str], None] | None = None
    on_terminal: bool | None = None
    plain_seconds: float = PLAIN_EVERY_SECONDS
    began: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108 - tests move the clock
    _statuses: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _first: dict[str, Watched] = field(default_factory=dict)
    _printed: dict[str, tuple[str, float]] = field(default_factory=dict)
    _lines: int = 0

    def __post_init__(self) -> None:
        """Find out whether this is a terminal."""
        if self.on_terminal is None:
            self.on_terminal = not self.notebook and self.out.isatty()

    def show(self, statuses: Mapping[str, Mapping[str, Any]]) -> None:
        """Show jobs as they are now.

        Args:
            statuses: contents of status.json, by name.
        """
        self._statuses = dict(statuses)
        now = time.monotonic()
        for name, status in statuses.items():
            self._first.setdefault(name, Watched(now, _done(status), status.get("fraction_done") or 0.0))
        if self.on_terminal or self.notebook:
            self.redraw()
        else:
            self._print_changes(now)

    def redraw(self) -> None:
        """Draw the lines again with the current time; do nothing where lines cannot be rewritten."""
        if self.notebook:
            self.notebook("\n".join(self._fitting(*NOTEBOOK_SIZE)))
        if not self.on_terminal:
            return
        size = self._size()
        width = size.columns - 1
        lines = self._fitting(width, size.lines - 1)
        if self._lines:
            self.out.write(f"\x1b[{self._lines}F")
        self.out.write("".join(f"{line[:width]}\x1b[K\n" for line in lines) + "\x1b[J")
        self.out.flush()
        self._lines = len(lines)

    def _fitting(self, width: int, height: int) -> list[str]:
        """The lines of all jobs; if they do not fit, of those that are not over, and what became of the others."""
        described = {name: self._describe(name, width) for name in self._statuses}
        lines = [line for one in described.values() for line in one]
        if len(lines) <= height:
            return lines
        lines = []
        left = Counter(str(status.get("state")) for status in self._statuses.values())
        for name in sorted(described, key=lambda one: self._statuses[one].get("state") in FINAL_JOB_STATES):
            if len(lines) + len(described[name]) < height:
                lines += described[name]
                left[str(self._statuses[name].get("state"))] -= 1
        rest = ", ".join(f"{count:,} {state}" for state, count in left.items() if count)
        return [*lines, f"and {left.total():,} more: {rest}"]

    def _size(self) -> os.terminal_size:
        """Return the size of the terminal that is written to; standard output may be another one, or a pipe."""
        try:
            size = os.get_terminal_size(self.out.fileno())
        except OSError:
            return shutil.get_terminal_size()
        return size if size.columns and size.lines else shutil.get_terminal_size()

    def _print_changes(self, now: float) -> None:
        """Print jobs whose state or reason to wait has changed, and the others every `plain_seconds`."""
        for name, status in self._statuses.items():
            key = f"{status.get('state')} {(status.get('waiting_for') or {}).get('code')}"
            before, at = self._printed.get(name, ("", 0.0))
            if key != before or now - at >= self.plain_seconds:
                self._printed[name] = key, now
                self.out.write("  ".join(self._describe(name, None)) + "\n")
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
    """Describe a job in one line, and what it waits for in a second one.

    Args:
        name: of the job.
        status: content of its status.json.
        width: columns of the terminal; parts that do not fit are left out. None: no limit.
        elapsed: seconds to show; None: none.
        now: monotonic time.
        first: when it was first shown; None: no rate.
    """
    narrow = width is not None and width < NARROW_COLUMNS
    parts = [f"{status.get('state', '?'):<11}"]
    fraction = status.get("fraction_done")
    if fraction is not None:
        parts.append(f"{int(fraction * 100):>3}%" if narrow else f"{_bar(fraction)} {int(fraction * 100):>3}%")
    parts.append(_records(status))
    if elapsed is not None:
        parts.append(duration(elapsed))
    if first is not None and status.get("state") not in FINAL_JOB_STATES:
        parts += _speed(status, now, first)
    parts += [*_failed(status), *_reading(status), *_pending(status)]
    line = name.rpartition("-")[2] if narrow else name
    for part in parts:
        if width is None or len(line) + 2 + len(part) <= width:
            line += f"  {part}"
    waiting = status.get("waiting_for")
    return [line.rstrip()] if not waiting else [line.rstrip(), f"  waiting: {waiting['code']}: {waiting['message']}"]


def _done(status: Mapping[str, Any]) -> int:
    counts = status.get("counts") or {}
    return int(counts.get("succeeded", 0) + counts.get("failed", 0))


def _records(status: Mapping[str, Any]) -> str:
    total, done = (status.get("counts") or {}).get("total"), _done(status)
    return f"{done:,} of {total:,} records" if total is not None else f"{done:,} records"


def _failed(status: Mapping[str, Any]) -> list[str]:
    failed = (status.get("counts") or {}).get("failed")
    return [f"{failed:,} failed"] if failed else []


def _pending(status: Mapping[str, Any]) -> list[str]:
    pending = (status.get("pending") or {}).get("batches")
    return [f"{pending:,} {'batch' if pending == 1 else 'batches'} pending"] if pending else []


def _bar(fraction: float, width: int = 16) -> str:
    filled = int(width * fraction)
    return f"[{'#' * filled}{'.' * (width - filled)}]"


def _reading(status: Mapping[str, Any]) -> list[str]:
    splitting = status.get("splitting") or {}
    read, size = splitting.get("bytes_read"), splitting.get("bytes")
    return [f"{min(read / size, 1):.0%} of the upload read"] if read is not None and size else []


def _speed(status: Mapping[str, Any], now: float, first: Watched) -> list[str]:
    """The time left, and records a second since the job was first shown."""
    seconds, done = now - first.at, _done(status) - first.records
    if seconds < MIN_RATE_SECONDS or done <= 0:
        return []
    rate = f"{done / seconds:,.0f}/s" if done >= seconds else f"{60 * done / seconds:,.0f}/min"
    fraction = status.get("fraction_done") or 0.0
    if first.fraction < fraction < 1:
        return [f"about {duration(seconds * (1 - fraction) / (fraction - first.fraction))} left", rate]
    return [rate]


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
    """Progress in a notebook or on a terminal; None without one, and in threads, which would share it."""
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

"""Progress of jobs.

Lines that are rewritten on a terminal or in a notebook, plain lines elsewhere.
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
from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from dropbatch.core.names import FINAL_JOB_STATES, JOB_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


PLAIN_EVERY_SECONDS = 30.0
"""Seconds between two plain lines of a job if only its counts changed."""
MIN_RATE_SECONDS = 3.0
"""Seconds of watching before a rate is shown."""
SHORT_NAME = 24
"""Columns of a path where there is no room; a job's id is then the end of it."""
MAX_LINES = 4
"""Lines of what a job waits for."""
GAP = "  "
FIRST_TO_GO = 9

NOTEBOOK_SIZE = (100, 30)
"""Columns and lines in a notebook's cell."""
TOTAL = "all jobs"
"""The name under which many jobs are shown together."""


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

    def show(
        self, statuses: Mapping[str, Mapping[str, Any]], total: Mapping[str, Any] | None = None
    ) -> None:
        """Show jobs as they are now.

        Args:
            statuses: contents of status.json, by name.
            total: of many jobs, of which `statuses` are some: shown above them; where lines cannot
                be rewritten, alone.
        """
        self._statuses = {TOTAL: total, **statuses} if total else dict(statuses)
        statuses = self._statuses
        now = time.monotonic()
        for name, status in statuses.items():
            self._first.setdefault(
                name, Watched(now, _done(status), status.get("fraction_done") or 0.0)
            )
        if self.on_terminal or self.notebook:
            self.redraw()
        else:
            self._print_changes(now)

    def redraw(self) -> None:
        """Draw the lines again with the current time.

        Do nothing where lines cannot be rewritten.
        """
        if self.notebook:
            self.notebook("\n".join(self._fitting(*NOTEBOOK_SIZE)))
        if not self.on_terminal:
            return
        size = self._size()
        width = size.columns - 1
        lines = self._fitting(width, size.lines - 1)
        if self._lines:
            self.out.write(f"\x1b[{self._lines}F")
        self.out.write("".join(f"{cut(line, width)}\x1b[K\n" for line in lines) + "\x1b[J")
        self.out.flush()
        self._lines = len(lines)

    def _fitting(self, width: int, height: int) -> list[str]:
        """The lines of all jobs.

        If they do not fit, of those that are not over, and what became of the others.
        """
        described = {name: self._describe(name, width) for name in self._statuses}
        lines = [line for one in described.values() for line in one]
        if len(lines) <= height:
            return lines
        if TOTAL in self._statuses:  # It says what the others are.
            return self._first_that_fit(described, self._statuses, height + 1)[0]
        by_state = sorted(
            described, key=lambda one: self._statuses[one].get("state") in FINAL_JOB_STATES
        )
        lines, others = self._first_that_fit(described, by_state, height)
        left = Counter(str(self._statuses[name].get("state")) for name in others)
        rest = ", ".join(f"{count:,} {state}" for state, count in left.items() if count)
        return [*lines, f"and {left.total():,} more: {rest}"]

    @staticmethod
    def _first_that_fit(
        described: Mapping[str, list[str]], names: Iterable[str], height: int
    ) -> tuple[list[str], list[str]]:
        """The lines of jobs for which there is room, and the names of the others."""
        lines, others = list[str](), list[str]()
        for name in names:
            if len(lines) + len(described[name]) < height:
                lines += described[name]
            else:
                others.append(name)
        return lines, others

    def _size(self) -> os.terminal_size:
        """Return the size of the terminal that is written to.

        Standard output may be another one, or a pipe.
        """
        try:
            size = os.get_terminal_size(self.out.fileno())
        except OSError:
            return shutil.get_terminal_size()
        return size if size.columns and size.lines else shutil.get_terminal_size()

    def _print_changes(self, now: float) -> None:
        """Print jobs whose state or reason to wait has changed.

        And the others every `plain_seconds`.
        """
        shown = self._statuses if TOTAL not in self._statuses else {TOTAL: self._statuses[TOTAL]}
        for name, status in shown.items():
            state = status.get("fraction_done") == 1 if name == TOTAL else status.get("state")
            key = f"{state} {(status.get('waiting_for') or {}).get('code')}"
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
    """Describe a job in a line, and what it waits for below it.

    Args:
        name: of the job.
        status: content of its status.json.
        width: columns of the terminal; parts that do not fit are left out, but neither state,
            records nor failures.
            None: no limit.
        elapsed: seconds to show; None: none.
        now: monotonic time.
        first: when it was first shown; None: no rate.
    """
    must = _must(name, status, short=False)
    if width is not None and columns_of(GAP.join(must)) > width:
        must = _must(name, status, short=True)
    fraction, more = status.get("fraction_done"), list[Part]()
    if fraction is not None:
        percent = f"{int(fraction * 100):>3}%"
        more.append(Part(FIRST_TO_GO, f"{_bar(fraction)} {percent}", percent))
    if elapsed is not None:
        more.append(Part(1, duration(elapsed)))
    if first is not None and status.get("state") not in FINAL_JOB_STATES:
        more += [Part(2 + at, one) for at, one in enumerate(_speed(status, now, first))]
    more += [Part(4, one) for one in (*_reading(status), *_pending(status))]
    lines = _fit(must, more, width)
    if waiting := status.get("waiting_for"):
        lines += _wrapped(printable(f"waiting: {waiting['code']}: {waiting['message']}"), width)
    return lines


def _must(name: str, status: Mapping[str, Any], *, short: bool) -> list[str]:
    """What is shown at any width: name, state, records, failures."""
    named = printable(name)
    if short:
        named = name.rpartition("-")[2] if JOB_ID.fullmatch(name) else shortened(named, SHORT_NAME)
    return [
        named,
        f"{printable(str(status.get('state', '?'))):<11}",
        _records(status, short=short),
        *_failed(status),
    ]


class Part(NamedTuple):
    """A part of a line that may be left out.

    Attributes:
        order: how soon it is left out, the highest first.
        text: the part.
        instead: what is shown without it, if there is room; it comes before the records.
    """

    order: int
    text: str
    instead: str = ""


def _fit(must: list[str], more: list[Part], width: int | None) -> list[str]:
    """Parts as one line, in which those that matter least are left out.

    As several if what must be there needs them.

    Args:
        must: what is never left out.
        more: what may be.
        width: columns.
    """
    kept = sorted(more, key=lambda one: one.order)
    if width is None or columns_of(GAP.join(must).rstrip()) <= width:
        while width is not None and columns_of(_line(must, kept, more)) > width:
            gone = kept.pop()
            if gone.instead:
                kept.insert(0, Part(0, gone.instead))
        return [_line(must, kept, more)]
    lines = [cut(must[0], width)]
    optional = [(one.instead or one.text).strip() for one in kept[-1:] + kept[:-1]]
    for at, part in enumerate([*map(str.rstrip, must[1:]), *optional], 1):
        if columns_of(lines[-1]) + len(GAP) + columns_of(part) <= width:
            lines[-1] += GAP + part
        elif at < len(must):
            lines.append(cut(GAP + part, width))
    return lines


def _line(must: list[str], kept: list[Part], more: list[Part]) -> str:
    """Name, state, percentage, records; then what is kept of the others, in its own order."""
    first = [one.text for one in kept if one.instead or one.order == 0]
    others = [one.text for one in more if one in kept and not one.instead]
    return GAP.join([*must[:2], *first, *must[2:], *others]).rstrip()


def _wrapped(text: str, width: int | None) -> list[str]:
    """What a job waits for, in a few lines."""
    if width is None:
        return [GAP + text]
    indents = {"initial_indent": GAP, "subsequent_indent": GAP * 2}
    lines = textwrap.wrap(text, max(width, 20), max_lines=MAX_LINES, placeholder=" …", **indents)  # type: ignore[arg-type]
    return [cut(one, width) for one in lines]


def _done(status: Mapping[str, Any]) -> int:
    counts = status.get("counts") or {}
    return int(counts.get("succeeded", 0) + counts.get("failed", 0))


def _records(status: Mapping[str, Any], *, short: bool) -> str:
    total, done = (status.get("counts") or {}).get("total"), _done(status)
    if total is None:
        return f"{done:,} records"
    return f"{done:,}/{total:,}" if short else f"{done:,} of {total:,} records"


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
        return [
            f"about {duration(seconds * (1 - fraction) / (fraction - first.fraction))} left",
            rate,
        ]
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
    """Progress in a notebook or on a terminal.

    None without one, and in threads, which would share it.
    """
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
"""Control characters, line separators, what changes the direction of writing.

And what is no character.
"""


def printable(text: str) -> str:
    r"""A text, in which characters that would command a terminal are written as Python writes them: `\x1b`."""
    return text if text.isprintable() else _COMMANDS.sub(lambda found: ascii(found[0])[1:-1], text)


def columns_of(text: str) -> int:
    """How many columns of a terminal a text takes.

    Letters of East Asia take two, combining marks none.
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) or unicodedata.category(one) == "Cf" else 1 + _is_wide(one)
        for one in text
    )


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in {"W", "F"}


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

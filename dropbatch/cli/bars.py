"""Progress bars of uploads and downloads: shown on a terminal, nowhere else."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import click

from dropbatch.client.progress import cut, printable, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

MIN_BAR_BYTES = 8 << 20
"""Smaller uploads have no bar."""
REDRAW_SECONDS = 0.1


@contextmanager
def bytes_bar(label: str, size: int) -> Iterator[Callable[[int], None]]:
    """Show a bar; yield a function that counts bytes and may be called from several threads."""
    if not sys.stderr.isatty() or size < MIN_BAR_BYTES:
        yield lambda _: None
        return
    lock = Lock()
    with _bar(label, size) as bar:

        def advance(count: int) -> None:
            with lock:
                bar.update(count)

        yield advance


def _bar(label: str, size: int) -> Any:  # noqa: ANN401 - click does not name its class
    """A bar that fits the terminal."""
    columns = shutil.get_terminal_size().columns
    shown = shortened(printable(label), columns // 2)
    # Beside it, click shows the label, brackets, the share and the time left.
    return click.progressbar(
        length=size, label=shown, width=max(min(36, columns - len(shown) - 22), 4), file=sys.stderr
    )


class StatusLine:
    """One line on a terminal that says what a command does; it is removed when that is done."""

    def __init__(self, *, shown: bool = True) -> None:
        self._on = shown and sys.stderr.isatty()
        self._text, self._at = "", 0.0
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._write("")
            self._on = False

    def show(self, text: str) -> None:
        """Show a text instead of the last one.

        May be called from several threads, however often.
        """
        with self._lock:
            self._text = text
            if time.monotonic() - self._at >= REDRAW_SECONDS:
                self._at = time.monotonic()
                self._write(text)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the line while something else is printed."""
        with self._lock:
            self._write("")
            yield
            self._write(self._text)

    def _write(self, text: str) -> None:
        if self._on:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r{cut(printable(text), width)}\x1b[K")
            sys.stderr.flush()


class FilesBar:
    """A bar for one file after another."""

    def __init__(self) -> None:
        self._name, self._held = "", 0
        self._bar: Any = None

    def show(self, name: str, held: int, size: int) -> None:
        """Show how many bytes of a file are on this machine."""
        if not sys.stderr.isatty():
            return
        if name != self._name:
            self.close()
            self._name, self._held = name, 0
            self._bar = _bar(name, max(size, 1)).__enter__()
        self._bar.update(held - self._held)
        self._held = held

    def close(self) -> None:
        """End the last bar's line."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None

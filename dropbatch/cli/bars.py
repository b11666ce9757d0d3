"""Progress bars of uploads and downloads: shown on a terminal, nowhere else."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIN_BAR_BYTES = 8 << 20
"""Smaller uploads have no bar."""


@contextmanager
def bytes_bar(label: str, size: int) -> Iterator[Callable[[int], None]]:
    """Show a bar; yield a function that counts bytes and may be called from several threads."""
    if not sys.stderr.isatty() or size < MIN_BAR_BYTES:
        yield lambda _: None
        return
    lock = Lock()
    with click.progressbar(length=size, label=label, file=sys.stderr) as bar:

        def advance(count: int) -> None:
            with lock:
                bar.update(count)

        yield advance


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
            self._bar = click.progressbar(length=max(size, 1), label=name, file=sys.stderr).__enter__()
        self._bar.update(held - self._held)
        self._held = held

    def close(self) -> None:
        """End the last bar's line."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None

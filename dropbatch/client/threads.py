"""Calls that are made at the same time.

On threads for which an interrupted program does not wait.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


In = TypeVar("In")
Out = TypeVar("Out")


def at_once(
    function: Callable[[In], Out], items: Iterable[In], most: int
) -> Iterator[tuple[In, Out]]:
    """Call a function for each item.

    Yield each item with its result, in the order in which the calls end.

    An item is taken when a thread is free for it, so that memory does not grow with them. An
    executor's threads would be waited for when the program ends: a connection that stalls holds one
    for minutes.

    Args:
        function: called from several threads.
        items: what it is called with.
        most: how many calls are made at the same time.

    Raises:
        Exception: what a call has raised, or the items; the calls that are under way have ended.
    """
    calls = Calls(function)
    try:
        for item in items:
            if calls.under_way == most:
                yield calls.result()
            calls.begin(item)
        while calls.under_way:
            yield calls.result()
    except Exception:
        calls.drain()
        raise
    finally:
        calls.end()


class Calls(Generic[In, Out]):
    """Calls of a function that are made at the same time.

    Attributes:
        under_way: how many have begun whose results were not taken.
    """

    def __init__(self, function: Callable[[In], Out]) -> None:
        """Start nothing yet."""
        self._function = function
        self._asked: SimpleQueue[tuple[In] | None] = SimpleQueue()
        self._ended: SimpleQueue[tuple[In, list[Out], Exception | None]] = SimpleQueue()
        self._threads = 0
        self.under_way = 0

    def begin(self, item: In) -> None:
        """Begin a call."""
        self.start(item)
        self.under_way += 1

    def start(self, item: In) -> None:
        """Let a thread make a call: one that has none, or a new one."""
        if self._threads == self.under_way:
            Thread(target=self._work, daemon=True).start()
            self._threads += 1
        self._asked.put((item,))

    def make(self, item: In) -> None:
        """Make a call."""
        try:
            self._ended.put((item, [self._function(item)], None))
        except Exception as error:  # noqa: BLE001 - raised by the caller's thread
            self._ended.put((item, [], error))

    def result(self) -> tuple[In, Out]:
        """Wait for the next call that ends.

        Return its item and result, or raise what it has raised.
        """
        item, found, error = self._ended.get()
        self.under_way -= 1
        if error is not None:
            raise error
        return item, found[0]

    def drain(self) -> None:
        """Wait for all calls."""
        while self.under_way:
            self._ended.get()
            self.under_way -= 1

    def end(self) -> None:
        """End the threads once they have nothing to do."""
        for _ in range(self._threads):
            self._asked.put(None)

    def _work(self) -> None:
        while (one := self._asked.get()) is not None:
            self.make(one[0])

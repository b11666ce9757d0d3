"""Calls that are made at the same time, on threads for which an interrupted program does not wait."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

In = TypeVar("In")
Out = TypeVar("Out")


def at_once(function: Callable[[In], Out], items: Iterable[In], most: int) -> Iterator[tuple[In, Out]]:
    """Call a function for each item; yield each item with its result, in the order in which the calls end.

    An item is taken when a thread is free for it, so that memory does not grow with them. An executor's threads would
    be waited for when the program ends: a connection that stalls holds one for minutes.

    Args:
        function: called from several threads.
        items: what it is called with.
        most: how many calls are made at the same time.

    Raises:
        Exception: what a call has raised, or the items; the calls that are under way have ended.
    """
    calls = _Calls(function)
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


class _Calls(Generic[In, Out]):
    def __init__(self, function: Callable[[In], Out]) -> None:
        self._function = function
        self._asked: SimpleQueue[tuple[In] | None] = SimpleQueue()
        self._ended: SimpleQueue[tuple[In, list[Out], Exception | None]] = SimpleQueue()
        self._threads = 0
        self.under_way = 0

    def begin(self, item: In) -> None:
        if self._threads == self.under_way:
            Thread(target=self._work, daemon=True).start()
            self._threads += 1
        self._asked.put((item,))
        self.under_way += 1

    def result(self) -> tuple[In, Out]:
        item, found, error = self._ended.get()
        self.under_way -= 1
        if error is not None:
            raise error
        return item, found[0]

    def drain(self) -> None:
        while self.under_way:
            self._ended.get()
            self.under_way -= 1

    def end(self) -> None:
        for _ in range(self._threads):
            self._asked.put(None)

    def _work(self) -> None:
        while (one := self._asked.get()) is not None:
            try:
                self._ended.put((one[0], [self._function(one[0])], None))
            except Exception as error:  # noqa: BLE001 - raised by the caller's thread
                self._ended.put((one[0], [], error))

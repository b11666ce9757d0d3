"""Calls at the same time, on threads for which an interrupted program does not wait."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


def at_once(
    function: Callable[[In], Out], items: Iterable[In], most: int = 16
) -> Iterator[tuple[In, Out]]:
    """Call a function for each item on `most` threads; yield each with its result as calls end.

    An item is taken when its call can begin. An executor's threads would be waited for when the
    program ends: a connection that stalls holds one for minutes.
    """
    ended: SimpleQueue[tuple[In, list[Out], Exception | None]] = SimpleQueue()
    under_way = 0

    def call(item: In) -> None:
        try:
            ended.put((item, [function(item)], None))
        except Exception as error:  # noqa: BLE001 - raised by the caller's thread
            ended.put((item, [], error))

    def result() -> tuple[In, Out]:
        nonlocal under_way
        item, found, error = ended.get()
        under_way -= 1
        if error is not None:
            raise error
        return item, found[0]

    try:
        for item in items:
            if under_way == most:
                yield result()
            under_way += 1
            begin(call, item)
        while under_way:
            yield result()
    except Exception:
        while under_way:
            ended.get()
            under_way -= 1
        raise


def begin(call: Callable[[In], None], item: In) -> None:
    """Begin a call on a thread of its own."""
    Thread(target=call, args=(item,), daemon=True).start()

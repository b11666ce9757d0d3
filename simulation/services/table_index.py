"""The index `due` of the simulated table: sparse, in order of `due_at`, and a little behind the table."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from sortedcontainers import SortedList

if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_ENTRIES = SortedList()


def shown(work: str, due_at: float, pk: str, sk: str) -> dict[str, Any]:
    """An entry of the index in wire form."""
    at = str(int(due_at)) if due_at.is_integer() else repr(due_at)
    return {"pk": {"S": pk}, "sk": {"S": sk}, "work": {"S": work}, "due_at": {"N": at}}


class Index:
    """The sparse index: by kind of work, in order of `due_at`. It shows a write only some time later."""

    def __init__(self) -> None:
        """Begin empty."""
        self.entries: dict[str, SortedList] = {}
        self._shown: dict[tuple[str, str], tuple[str, float]] = {}
        self._coming: list[tuple[float, int, tuple[str, str], tuple[str, float] | None]] = []
        self._order = count()
        self._latest: dict[tuple[str, str], int] = {}
        self._pending: Counter[tuple[str, str]] = Counter()

    def note(self, key: tuple[str, str], item: dict[str, Any] | None, shown_at: float) -> None:
        """A write, which the index shows from `shown_at` on."""
        entry = None
        if item is not None and "work" in item and "due_at" in item:
            entry = (item["work"]["S"], float(item["due_at"]["N"]))
        number = next(self._order)
        self._pending[key] += 1
        heappush(self._coming, (shown_at, number, key, entry))

    def query(self, work: str, now: float, after: tuple[float, str, str] | None) -> Iterator[tuple[float, str, str]]:
        """Entries of one kind: due time and key, in order."""
        while self._coming and self._coming[0][0] <= now:
            _, number, key, entry = heappop(self._coming)
            is_old = number < self._latest.get(key, -1)
            self._pending[key] -= 1
            if self._pending[key]:
                self._latest[key] = max(number, self._latest.get(key, -1))
            else:
                del self._pending[key]
                self._latest.pop(key, None)
            if is_old:
                continue  # A later write is shown already.
            if (old := self._shown.pop(key, None)) is not None:
                self.entries[old[0]].remove((old[1], *key))
            if entry is not None:
                self._shown[key] = entry
                if (entries := self.entries.get(entry[0])) is None:
                    entries = self.entries[entry[0]] = SortedList()
                entries.add((entry[1], *key))
        found = self.entries.get(work, _NO_ENTRIES)
        return found.irange(after, inclusive=(False, True))  # type: ignore[no-any-return]

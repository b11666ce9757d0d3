"""A table's keys, and its index: sparse, in order of a number, a little behind the table."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from typing import Any, Self

from sortedcontainers import SortedList

from simulation.services.expressions import NotSimulatedError


@dataclass(frozen=True, slots=True)
class TableIndex:
    """A global secondary index that has the keys alone, in order of a number."""

    name: str
    partition_key: str
    sort_key: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose keys are strings; `sort_key` is empty if it has none. No item expires."""

    name: str
    partition_key: str
    sort_key: str = ""
    index: TableIndex | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the attributes that are an item's key."""
        return (self.partition_key, self.sort_key) if self.sort_key else (self.partition_key,)

    @classmethod
    def described(cls, name: str, properties: Mapping[str, Any]) -> Self:
        """A table as the properties of `AWS::DynamoDB::Table` in a template describe it."""
        index = None
        for one in properties.get("GlobalSecondaryIndexes", []):
            if index or one["Projection"] != {"ProjectionType": "KEYS_ONLY"}:
                raise NotSimulatedError(f"the index {one}")
            index = TableIndex(one["IndexName"], *_names(one["KeySchema"]))
        partition_key, sort_key = _names(properties["KeySchema"])
        return cls(name, partition_key, sort_key, index)


def keyed(table: Table) -> Callable[[Mapping[str, Any]], tuple[str, str]]:
    """How to get the key of a table's item, or a key in wire form, as two strings."""
    partition_key, sort_key = table.partition_key, table.sort_key
    if sort_key:
        return lambda item: (item[partition_key]["S"], item[sort_key]["S"])
    return lambda item: (item[partition_key]["S"], "")


def _names(schema: Iterable[Mapping[str, str]]) -> tuple[str, str]:
    """Names of the partition key and of the sort key, empty if there is none."""
    names = {one["KeyType"]: one["AttributeName"] for one in schema}
    return names["HASH"], names.get("RANGE", "")


_NO_ENTRIES = SortedList()


class Index:
    """The sparse index: by its partition key, in order of its sort key."""

    def __init__(self, table: Table) -> None:
        self._keys = table.keys
        self._partition_key, self._sort_key = (
            (table.index.partition_key, table.index.sort_key) if table.index else ("", "")
        )
        self.entries: dict[str, SortedList] = {}
        self._shown: dict[tuple[str, str], tuple[str, float]] = {}
        self._coming: list[tuple[float, int, tuple[str, str], tuple[str, float] | None]] = []
        self._order = count()
        self._newest: dict[tuple[str, str], int] = {}

    def note(self, key: tuple[str, str], item: dict[str, Any] | None, shown_at: float) -> None:
        """A write, which the index shows from `shown_at` on."""
        entry = None
        if item is not None and self._partition_key in item and self._sort_key in item:
            entry = (item[self._partition_key]["S"], float(item[self._sort_key]["N"]))
        heappush(self._coming, (shown_at, next(self._order), key, entry))

    def shown(self, partition: str, number: float, *key: str) -> dict[str, Any]:
        """An entry in wire form."""
        text = str(int(number)) if number.is_integer() else repr(number)
        found = {self._partition_key: {"S": partition}, self._sort_key: {"N": text}}
        # A table without a sort key has an empty one.
        for name, value in zip(self._keys, key, strict=False):
            found[name] = {"S": value}
        return found

    def position(self, key: dict[str, Any]) -> float:
        """The number in an entry in wire form."""
        return float(key[self._sort_key]["N"])

    def query(
        self, partition: str, now: float, after: tuple[float, str, str] | None
    ) -> Iterator[tuple[float, str, str]]:
        """Entries of one partition: number and key, in order."""
        while self._coming and self._coming[0][0] <= now:
            _, number, key, entry = heappop(self._coming)
            if number < self._newest.get(key, 0):
                continue  # A later write is shown already.
            self._newest[key] = number
            if (old := self._shown.pop(key, None)) is not None:
                self.entries[old[0]].remove((old[1], *key))
            if entry is not None:
                self._shown[key] = entry
                if (entries := self.entries.get(entry[0])) is None:
                    entries = self.entries[entry[0]] = SortedList()
                entries.add((entry[1], *key))
        found = self.entries.get(partition, _NO_ENTRIES)
        return found.irange(after, inclusive=(False, True))  # type: ignore[no-any-return]

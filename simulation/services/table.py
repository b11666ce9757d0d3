"""The description of a table: its keys, its index and its time to live."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

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
        """A table as the properties of `AWS::DynamoDB::Table` in a template describe it.

        Raises:
            NotSimulatedError: its indexes are not as those that are simulated.
        """
        index = None
        match properties.get("GlobalSecondaryIndexes", []):
            case []:
                pass
            case [
                {
                    "IndexName": index_name,
                    "Projection": {"ProjectionType": "KEYS_ONLY"},
                    "KeySchema": schema,
                }
            ]:
                index = TableIndex(index_name, *_names(schema))
            case others:
                raise NotSimulatedError(f"indexes {others}")
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

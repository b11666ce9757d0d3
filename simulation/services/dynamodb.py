"""DynamoDB in memory: one table, perhaps with an index, behind the calls of boto3's client.

The index is eventually consistent; pages end early; writes may be applied and yet answered late.
What is not simulated raises.

In one thing it is simpler: a page of the table counts 300 bytes an item, and one of the index 60
and its key, which is about what these have.
"""

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import msgspec
from sortedcontainers import SortedDict

from simulation.services import expressions
from simulation.services.calls import Calls, reads, writes
from simulation.services.errors import ConditionalCheckFailedError, refused
from simulation.services.expressions import NotSimulatedError
from simulation.services.table import Index, Table, keyed

Wire = dict[str, Any]
Key = tuple[str, str]

MAX_ITEM_BYTES = 400 << 10
LARGE_VALUE_BYTES = 8 << 10
"""No update makes an item larger than it may be unless one of its values is at least this large."""
MAX_KEYS = 100
"""Keys of one batch read."""
BATCH_READ = {"Keys", "ConsistentRead", "ProjectionExpression", "ExpressionAttributeNames"}
"""What such a read may say."""
_NO_ITEMS = SortedDict()


def size_of(item: Wire) -> int:
    """Bytes that an item counts, as DynamoDB documents it."""
    return sum(len(name) + _size(wire) for name, wire in item.items())


def _size(wire: Wire) -> int:
    ((kind, value),) = wire.items()
    match kind:
        case "S":
            return len(value.encode())
        case "N":
            return len(value) // 2 + 2
        case "L":
            return 3 + sum(1 + _size(member) for member in value)
        case "M":
            return 3 + sum(1 + len(name) + _size(member) for name, member in value.items())
        case "SS":
            return sum(len(member) for member in value)
        case _:
            return 1


def may_have(wires: Wire, most: int) -> bool:
    """Whether values may have more bytes than that: a quick look."""
    return len(msgspec.json.encode(wires)) > most


def _projected(items: list[Wire], text: str, names: dict[str, str]) -> list[Wire]:
    return [expressions.projected(item, text, names) for item in items]


class DynamoDB:
    """A client for the one table.

    Attributes:
        items: every item by its key, in wire form; a write replaces it, nothing changes it.
    """

    exceptions = SimpleNamespace(ConditionalCheckFailedException=ConditionalCheckFailedError)

    def __init__(self, calls: Calls, table: Table) -> None:
        self.calls = calls
        self.described = table
        self.table = table.name
        self.key_of = keyed(table)
        """The key of an item, or a key in wire form, as two strings."""
        self.items: dict[Key, Wire] = {}
        self.index = Index(table)
        self._partitions: dict[str, SortedDict] = {}
        self.watchers: list[Callable[[Key, Wire | None, Wire | None], None]] = []
        """Called with each write: its key, the item before it, and the item after it."""
        self.unwatched: set[str | Key] = set()
        """Keys, and partition keys, of which no watcher and no reader is told."""
        self.named: Collection[str] = ()
        """Attributes that the present update names, in its condition or in what it changes."""
        self.refusals: set[str] = set()
        """Conditions that did not hold: of which write, and which parts of them."""
        self.readers: list[Callable[[Key, Wire | None], None]] = []
        """Called with the key and the item that a call has read."""
        self.lookers: list[Callable[[list[Key], bool], None]] = []
        """Called with the keys of each read of many items, when it reads."""
        self.missed: list[Callable[[Key], None]] = []
        """Called with the key of an item that a call looked for and that does not exist."""

    # ── the operations ────────────────────────────────────────────────────────────────────────────

    @reads("dynamodb.get_item")
    def get_item(self, *, TableName: str, Key: Wire, ConsistentRead: bool = False) -> Wire:
        """Read one item; it is read consistently, whatever was asked for."""
        del ConsistentRead
        self._check(TableName)
        item = self._read(self.key_of(Key))
        return {} if item is None else {"Item": item}

    @reads("dynamodb.batch_get_item")
    def batch_get_item(self, *, RequestItems: dict[str, Any]) -> Wire:
        """Read several items; some keys may come back unprocessed."""
        ((table, asked),) = RequestItems.items()
        keys: list[Wire] = asked["Keys"]
        wanted = asked.get("ProjectionExpression", "")
        names = asked.get("ExpressionAttributeNames", {})
        if not 0 < len(keys) <= MAX_KEYS or not asked.keys() <= BATCH_READ:
            raise NotSimulatedError(f"batch_get_item {sorted(asked)} of {len(keys)} keys")
        self._check(table)
        if len({self.key_of(key) for key in keys}) < len(keys):
            raise refused("ValidationException", "BatchGetItem")
        left = [key for key in keys if self.calls.happens("unprocessed")]
        read = [self._read(self.key_of(key)) for key in keys if key not in left]
        found = [item for item in read if item is not None]
        for look in self.lookers:
            look([self.key_of(key) for key in keys], not left)
        found = _projected(found, wanted, names) if wanted else found
        rest = {"UnprocessedKeys": {table: {**asked, "Keys": left}}} if left else {}
        return {"Responses": {table: found}, **rest}

    @writes("dynamodb.put_item")
    def put_item(
        self,
        *,
        TableName: str,
        Item: Wire,
        ConditionExpression: str = "",
        ExpressionAttributeNames: dict[str, str] | None = None,
        ExpressionAttributeValues: Wire | None = None,
    ) -> Wire:
        item = {name: expressions.normal(wire) for name, wire in Item.items()}
        self._check(TableName)
        if may_have(item, MAX_ITEM_BYTES) and size_of(item) > MAX_ITEM_BYTES:
            raise refused("ValidationException", "PutItem")
        asked = ConditionExpression, ExpressionAttributeNames or {}, ExpressionAttributeValues or {}
        self._test(f"PutItem {self.key_of(item)[1]}", self.key_of(item), *asked)
        self._store(self.key_of(item), item)
        return {}

    @writes("dynamodb.update_item")
    def update_item(
        self,
        *,
        TableName: str,
        Key: Wire,
        UpdateExpression: str,
        ConditionExpression: str = "",
        ExpressionAttributeNames: dict[str, str] | None = None,
        ExpressionAttributeValues: Wire | None = None,
        ReturnValues: str = "NONE",
    ) -> Wire:
        if ReturnValues not in {"NONE", "ALL_NEW", "UPDATED_NEW"}:
            raise NotSimulatedError(f"ReturnValues {ReturnValues}")
        self._check(TableName)
        key = self.key_of(Key)
        names, values = ExpressionAttributeNames or {}, ExpressionAttributeValues or {}
        largest = max(map(_size, values.values())) if may_have(values, LARGE_VALUE_BYTES) else 0
        if largest > MAX_ITEM_BYTES:
            raise refused("ValidationException", "UpdateItem")
        self._test(f"UpdateItem {UpdateExpression}", key, ConditionExpression, names, values)
        new = expressions.updated(self.items.get(key, Key), UpdateExpression, names, values)
        if largest > LARGE_VALUE_BYTES and size_of(new) > MAX_ITEM_BYTES:
            raise refused("ValidationException", "UpdateItem")
        self.named = names.values()
        self._store(key, new)
        changed = (
            new if ReturnValues == "ALL_NEW" else expressions.changed(new, UpdateExpression, names)
        )
        return {} if ReturnValues == "NONE" else {"Attributes": changed}

    @writes("dynamodb.delete_item")
    def delete_item(
        self,
        *,
        TableName: str,
        Key: Wire,
        ConditionExpression: str = "",
        ExpressionAttributeNames: dict[str, str] | None = None,
        ExpressionAttributeValues: Wire | None = None,
    ) -> Wire:
        self._check(TableName)
        key = self.key_of(Key)
        asked = ConditionExpression, ExpressionAttributeNames or {}, ExpressionAttributeValues or {}
        self._test("DeleteItem", key, *asked)
        self._store(key, None)
        return {}

    @reads("dynamodb.query")
    def query(  # noqa: PLR0913 - AWS has that many arguments
        self,
        *,
        TableName: str,
        KeyConditionExpression: str,
        ExpressionAttributeValues: Wire,
        ExpressionAttributeNames: dict[str, str] | None = None,
        IndexName: str = "",
        Limit: int | None = None,
        Select: str = "",
        ProjectionExpression: str = "",
        ScanIndexForward: bool = True,
        ConsistentRead: bool = False,
        ExclusiveStartKey: Wire | None = None,
    ) -> Wire:
        if Limit is not None and Limit < 1:
            raise refused("ValidationException", "Query")
        names = ExpressionAttributeNames or {}
        self._check(TableName)
        asked = KeyConditionExpression, names, ExpressionAttributeValues
        if IndexName:
            if self.described.index is None or IndexName != self.described.index.name:
                raise refused("ValidationException", "Query")
            if ConsistentRead or not ScanIndexForward:
                raise NotSimulatedError("a consistent or backward read of the index")
            answer = self._query_index(asked, Limit, ExclusiveStartKey, counts=bool(Select))
        elif not ConsistentRead or Select not in {"", "SPECIFIC_ATTRIBUTES"}:
            raise NotSimulatedError("an inconsistent query of the table, or one that counts")
        else:
            answer = self._query_table(asked, Limit, ExclusiveStartKey, forward=ScanIndexForward)
        if ProjectionExpression and "Items" in answer:
            answer["Items"] = _projected(answer["Items"], ProjectionExpression, names)
        return answer

    # ── how ───────────────────────────────────────────────────────────────────────────────────────

    def _query_index(
        self,
        asked: tuple[str, dict[str, str], Wire],
        limit: int | None,
        position: Wire | None,
        *,
        counts: bool,
    ) -> Wire:
        text, names, values = asked
        assert self.described.index is not None
        named = expressions.key_condition(text)
        if (
            named["prefix"]
            or named["low"]
            or names.get(named["name"], named["name"]) != self.described.index.partition_key
        ):
            raise NotSimulatedError(text)
        partition = values[named["partition"]]["S"]
        after = (self.index.position(position), *self.key_of(position)) if position else None
        most = self.calls.awkward.page_bytes
        page: list[Wire] = []
        number = size = 0
        rest: Wire = {}
        for entry in self.index.query(partition, self.calls.now(), after):
            number += 1
            size += 60 + len(entry[1]) + len(entry[2])
            if not counts:
                page.append(self.index.shown(partition, *entry))
            if number == limit or size >= most:
                # Perhaps nothing is behind it.
                rest = {"LastEvaluatedKey": self.index.shown(partition, *entry)}
                break
        return {"Count": number, **({} if counts else {"Items": page}), **rest}

    def _query_table(
        self,
        asked: tuple[str, dict[str, str], Wire],
        limit: int | None,
        position: Wire | None,
        *,
        forward: bool,
    ) -> Wire:
        text, names, values = asked
        named = expressions.key_condition(text)
        partition: SortedDict = self._partitions.get(values[named["partition"]]["S"], _NO_ITEMS)
        first: Wire = values.get(named["low"]) or values.get(named["prefix"]) or {"S": ""}
        last: Wire = values.get(named["high"]) or {"S": first["S"] + "\U0010ffff"}
        low, high = first["S"], last["S"]
        behind = self.key_of(position)[1] if position else None
        if behind is not None:
            low, high = (behind, high) if forward else (low, behind)
        holds = expressions.condition(text)
        page: list[Wire] = []
        size = 0
        for sk in partition.irange(low, high, reverse=not forward):
            item = partition[sk]
            if sk == behind or not holds(item, names, values):
                continue
            page.append(item)
            size += 300
            self._read(self.key_of(item))
            if len(page) == limit or size >= self.calls.awkward.page_bytes:
                last_key = {name: item[name] for name in self.described.keys}
                return {"Items": page, "Count": len(page), "LastEvaluatedKey": last_key}
        return {"Items": page, "Count": len(page)}

    def _read(self, key: Key) -> Wire | None:
        item = self.items.get(key)
        if item is None:
            for miss in self.missed:
                miss(key)
            return None
        for read in self.readers if self._is_watched(key) else ():
            read(key, item)
        return item

    def _check(self, table: str) -> None:
        if table != self.table:
            raise refused("ResourceNotFoundException", "DynamoDB")

    def _test(
        self, operation: str, key: Key, text: str, names: dict[str, str], values: Wire
    ) -> None:
        item = self.items.get(key, {})
        if not text or expressions.condition(text)(item, names, values):
            return
        for read in self.readers:
            read(key, None)
        clauses = [text] if "BETWEEN" in text else text.split(" AND ")
        failed = [one for one in clauses if not expressions.condition(one)(item, names, values)]
        retries = self.calls.retries
        if not retries:  # Otherwise it finds what it has written itself.
            self.refusals.add(f"{operation} if {' and '.join(failed)}")
        name = operation.partition(" ")[0]
        raise refused("ConditionalCheckFailedException", name, retries=retries)

    def _store(self, key: Key, item: Wire | None) -> None:
        old = self.items.get(key)
        if item is None:
            if old is None:
                return
            del self.items[key]
            del self._partitions[key[0]][key[1]]
            if not self._partitions[key[0]]:
                del self._partitions[key[0]]
        else:
            self.items[key] = item
            if (partition := self._partitions.get(key[0])) is None:
                partition = self._partitions[key[0]] = SortedDict()
            partition[key[1]] = item
        lag = self.calls.awkward.index_lag_seconds
        shown_at = self.calls.now() + (self.calls.random.uniform(0, lag) if lag else 0.0)
        self.index.note(key, item, shown_at)
        for watch in self.watchers if self._is_watched(key) else ():
            watch(key, old, item)

    def _is_watched(self, key: Key) -> bool:
        return key not in self.unwatched and key[0] not in self.unwatched

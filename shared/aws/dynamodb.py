"""DynamoDB: one table, and the one way to write to it: a conditional write to one item.

Knows nothing about jobs.

A write returns the item as it is afterwards, or None if the item was not as the caller expected.
The SDK sends a write again if it got no answer; a write that finds its own first delivery counts as
successful.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar

from shared.aws.attribute_values import attribute, defaults_of, plain, read
from shared.aws.client_errors import storage_errors

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")

OnWrite: TypeAlias = "Callable[[Mapping[str, Any], Collection[str]], None]"
"""Gets an item as it was written, in wire form, and the attributes that the write named."""

ABSENT = object()
"""As an expected value: the attribute must not exist."""


@dataclass(frozen=True, slots=True)
class AtMost:
    """As an expected value: the attribute must be absent, or compare with `value` by `operator`."""

    operator: str
    value: float


@dataclass(frozen=True, slots=True)
class SameMembers:
    """As an expected value: these members of a map are as they were in the data class, if any."""

    seen: object | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Placeholders:
    """What stands for the names and values in the expressions of one write."""

    names: dict[str, str] = field(default_factory=lambda: {"#pk": "pk"})
    values: dict[str, Any] = field(default_factory=dict)

    def name(self, path: str) -> str:
        """An attribute, or a member of one."""
        parts = {f"#{part}": part for part in path.split(".")}
        self.names.update(parts)
        return ".".join(parts)

    def compared(self, path: str, operator: str, value: object, prefix: str) -> str:
        """An attribute, an operator, and a value, which may have another in a condition."""
        given = f":{prefix}{path.replace('.', '_')}"
        self.values[given] = attribute(value)
        return f"{self.name(path)} {operator} {given}"

    def condition(self, path: str, wanted: object, default: object) -> str:
        """What must hold of an attribute; one that is absent has its default."""
        lacks = f"attribute_not_exists({self.name(path)})"
        if wanted is ABSENT:
            return lacks
        if isinstance(wanted, AtMost):
            return f"({lacks} OR {self.compared(path, wanted.operator, wanted.value, 'if_')})"
        same = self.compared(path, "=", wanted, "if_")
        return f"({lacks} OR {same})" if wanted == default else same


class ConditionFailedError(Exception):
    """The item was not as expected; the SDK may have sent the write again, and found its first."""

    def __init__(self, *, sent_again: bool) -> None:
        super().__init__()
        self.sent_again = sent_again


class Table:
    """One table."""

    def __init__(self, client: DynamoDBClient, table: str, on_write: OnWrite | None = None) -> None:
        self.client = client
        self.table = table
        self.on_write = on_write or (lambda _item, _changed: None)

    def get(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """An item in wire form, read consistently; None if it does not exist."""
        return self.call("get_item", Key=key, ConsistentRead=True).get("Item")

    def pages(self, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Pages of a query, one call each, as far as its caller reads on."""
        position: dict[str, Any] = {}
        while True:
            page = self.call("query", **arguments, **position)
            yield page
            if "LastEvaluatedKey" not in page:
                return
            position = {"ExclusiveStartKey": page["LastEvaluatedKey"]}

    def create(self, item: dict[str, Any]) -> bool:
        """Write a new item, given in wire form with its key; whether none with this key existed."""
        try:
            self.call("put_item", Item=item, ConditionExpression="attribute_not_exists(pk)")
        except ConditionFailedError as error:
            return error.sent_again and _holds(self.get({"pk": item["pk"], "sk": item["sk"]}), item)
        self.on_write(item, item)
        return True

    def update(
        self,
        key: dict[str, Any],
        expected: Mapping[str, object],
        changes: Mapping[str, object],
        kind: type[T],
        remove: Sequence[str] = (),
    ) -> T | None:
        """Change an item with one conditional write; return it, or None if it was different.

        Expected is a value (one that is absent has the default of `kind`), `ABSENT`, `AtMost`, or
        `SameMembers`. A change to None, or to the default of `kind`, removes an attribute.
        """
        use, defaults = _Placeholders(), defaults_of(kind)
        conditions = [use.condition(*one) for one in _compared(expected, defaults)]
        written = {
            of: new
            for of, new in changes.items()
            if new is not None and new != defaults.get(of, ABSENT)
        }
        removed = [*remove, *(of for of in changes if of not in written)]
        clauses = []
        if removed:
            clauses.append("REMOVE " + ", ".join(map(use.name, removed)))
        if settings := [use.compared(of, "=", new, "to_") for of, new in written.items()]:
            clauses.append("SET " + ", ".join(settings))
        try:
            answer = self.call(
                "update_item",
                Key=key,
                UpdateExpression=" ".join(clauses),
                ConditionExpression=" AND ".join(["attribute_exists(#pk)", *conditions]),
                ExpressionAttributeNames=use.names,
                **({"ExpressionAttributeValues": use.values} if use.values else {}),
                ReturnValues="ALL_NEW",
            )
        except ConditionFailedError as error:
            return self._changed_already(key, written, removed, kind) if error.sent_again else None
        self.on_write(answer["Attributes"], {*changes, *removed})
        return read(answer["Attributes"], kind)

    def change_if(
        self,
        key: dict[str, Any],
        update: str,
        condition: str,
        values: Mapping[str, object],
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Change an item by expressions with `:values` and `#names`; whether the condition held."""
        given: dict[str, Any] = {"ConditionExpression": condition} if condition else {}
        if values:
            wired = {f":{name}": attribute(value) for name, value in values.items()}
            given["ExpressionAttributeValues"] = wired
        if names:
            given["ExpressionAttributeNames"] = {f"#{short}": of for short, of in names.items()}
        try:
            self.call("update_item", Key=key, UpdateExpression=update, **given)
        except ConditionFailedError:
            return False
        return True

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation on this table; raises `ConditionFailedError` or `StorageError`."""
        return call_dynamodb(self.client, operation, TableName=self.table, **arguments)

    def _changed_already(
        self,
        key: dict[str, Any],
        written: Mapping[str, object],
        removed: Sequence[str],
        kind: type[T],
    ) -> T | None:
        """The item, if it is as the write that was sent twice would leave it."""
        item = self.get(key)
        wanted = {of: attribute(new) for of, new in written.items()}
        if wanted and _holds(item, wanted) and not any(of in item for of in removed):
            return read(item, kind)
        return None


def _compared(
    expected: Mapping[str, object], defaults: Mapping[str, object]
) -> Iterator[tuple[str, object, object]]:
    """The attributes and members that a condition compares: path, expected value, and default."""
    for of, wanted in expected.items():
        if not isinstance(wanted, SameMembers):
            members = {of: (wanted, defaults.get(of, ABSENT))}
        elif wanted.seen is None:
            members = {of: (ABSENT, ABSENT)}
        else:
            inner = defaults_of(type(wanted.seen))
            members = {
                f"{of}.{name}": (getattr(wanted.seen, name), inner[name]) for name in wanted.names
            }
        for path, (value, default) in members.items():
            if value is not ABSENT and not isinstance(value, str | int | float | AtMost):
                raise TypeError(
                    f"{path} would be compared as a whole, and never be equal to "
                    "that of another version"
                )
            yield path, value, default


def _holds(
    item: Mapping[str, Any] | None, wanted: Mapping[str, Any]
) -> TypeGuard[Mapping[str, Any]]:
    """Whether an item holds what a write put there: a claim's times distinguish it."""
    return item is not None and all(
        of in item and _has(plain(item[of]), plain(wire)) for of, wire in wanted.items()
    )


def _has(held: object, wanted: object) -> bool:
    """Whether a value is the wanted one; a map may have further members."""
    if isinstance(held, dict) and isinstance(wanted, dict):
        return all(name in held and _has(held[name], value) for name, value in wanted.items())
    if isinstance(held, list) and isinstance(wanted, list):
        return len(held) == len(wanted) and all(map(_has, held, wanted))
    return held == wanted


def call_dynamodb(client: DynamoDBClient, operation: str, **arguments: Any) -> dict[str, Any]:
    """Call DynamoDB; raises `ConditionFailedError` or `StorageError`."""
    with storage_errors(f"DynamoDB {operation}"):
        try:
            answer: dict[str, Any] = getattr(client, operation)(**arguments)
        except client.exceptions.ConditionalCheckFailedException as error:
            sent_again = error.response["ResponseMetadata"].get("RetryAttempts", 0) > 0
            raise ConditionFailedError(sent_again=sent_again) from error
        return answer

"""Converts data classes to DynamoDB's attribute values and back. Knows the wire form, but not its meaning.

boto3's own serializer accepts no floats and returns only `Decimal`; times here are floats, all other numbers int.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from shared.errors import UnreadableItemError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


def attribute(value: object) -> dict[str, Any]:
    """One value in DynamoDB's wire form. Members of maps that are None are left out.

    Raises:
        TypeError: for a type the ledger does not use.
    """
    match value:
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": str(value)}
        case int() | float():
            return {"N": repr(value)}
        case list() | tuple():
            return {"L": [attribute(member) for member in value]}
        case dict():
            return {"M": {name: attribute(member) for name, member in value.items() if member is not None}}
    if is_dataclass(value):
        return {"M": attributes(value)}
    raise TypeError(f"no attribute form for {type(value).__name__}")


def attributes(value: object) -> dict[str, Any]:
    """The members of a data class in wire form; those that are None are left out."""
    members = ((field.name, getattr(value, field.name)) for field in fields(value))  # type: ignore[arg-type]
    return {name: attribute(member) for name, member in members if member is not None}


def plain(wire: Mapping[str, Any]) -> Any:  # noqa: ANN401 - whatever the item holds
    """One attribute value as a plain Python value."""
    ((kind, value),) = wire.items()
    return _PLAIN[kind](value) if kind in _PLAIN else value


def _number(text: str) -> float:
    return int(text) if text.isdigit() or text[1:].isdigit() else float(text)


def _members(wires: Mapping[str, Any]) -> dict[str, Any]:
    """The members of an item or a map as plain values."""
    return {
        name: _PLAIN[kind](value) if kind in _PLAIN else value
        for name, wire in wires.items()
        for kind, value in wire.items()
    }


_PLAIN: Mapping[str, Callable[[Any], Any]] = {"N": _number, "L": lambda wires: list(map(plain, wires)), "M": _members}
"""How the values of each kind are read; those of other kinds are as they are."""


def read(item: Mapping[str, Any], kind: type[T]) -> T:
    """Build a data class from an item; attributes that the class does not have are ignored.

    Raises:
        UnreadableItemError: the item does not match its schema.
    """
    try:
        return msgspec.convert(_members(item), kind)
    except msgspec.ValidationError as error:
        raise UnreadableItemError(f"item {item.get('pk')} {item.get('sk')}: {error}") from error

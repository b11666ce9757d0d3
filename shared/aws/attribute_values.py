"""Converts data classes to DynamoDB's attribute values and back.

Knows the wire form, but not its meaning.

boto3's own serializer accepts no floats and returns only `Decimal`; times here are floats, all
other numbers int.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

import msgspec

from shared.errors import UnreadableItemError

T = TypeVar("T")

LARGEST_NUMBER, SMALLEST_NUMBER = 10**38 - 1, 1e-130
"""DynamoDB refuses a number beyond these, which may come from outside."""


def attribute(value: object) -> dict[str, Any]:
    """One value in DynamoDB's wire form. Members of maps that are None are left out."""
    match value:
        case bool():
            return {"BOOL": value}
        case str():
            return {"S": str(value)}
        case int():
            # Also of an HTTPStatus, whose text is its name.
            return {"N": str(_storable(int(value)))}
        case float():
            return {"N": repr(_storable(value))}
        case list() | tuple():
            return {"L": [attribute(member) for member in value]}
        case dict():
            return {
                "M": {
                    name: attribute(member) for name, member in value.items() if member is not None
                }
            }
    if is_dataclass(value):
        return {"M": attributes(value)}
    raise TypeError(f"no attribute form for {type(value).__name__}")


def _storable(value: float) -> float:
    """The nearest number of at most 38 digits, and not too near to 0."""
    if 0 < abs(value) < SMALLEST_NUMBER:
        return 0.0
    return max(-LARGEST_NUMBER, min(value, LARGEST_NUMBER))


def attributes(value: object) -> dict[str, Any]:
    """A data class's members in wire form, but those that are None or have their default."""
    defaults = defaults_of(type(value))
    members = ((name, getattr(value, name), default) for name, default in defaults.items())
    return {
        name: attribute(member)
        for name, member, default in members
        if member is not None and member != default
    }


def defaults_of(kind: type) -> Mapping[str, object]:
    """What each member of a data class is when an item lacks it; `MISSING` if every item has it."""
    if kind not in _DEFAULTS:
        _DEFAULTS[kind] = {
            one.name: one.default if one.default_factory is MISSING else one.default_factory()
            for one in fields(kind)
        }
    return _DEFAULTS[kind]


_DEFAULTS: dict[type, Mapping[str, object]] = {}


def plain(wire: Mapping[str, Any]) -> Any:
    """One attribute value as a plain Python value."""
    ((kind, value),) = wire.items()
    match kind:
        case "N":
            return int(value) if value.lstrip("-").isdigit() else float(value)
        case "L":
            return [plain(member) for member in value]
        case "M":
            return {name: plain(member) for name, member in value.items()}
        case _:
            return value


def read(item: Mapping[str, Any], kind: type[T]) -> T:
    """Build a data class from an item, whose other attributes are ignored."""
    try:
        return msgspec.convert({name: plain(wire) for name, wire in item.items()}, kind)
    except msgspec.ValidationError as error:
        raise UnreadableItemError(f"item {item.get('pk')} {item.get('sk')}: {error}") from error

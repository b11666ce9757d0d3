"""Makes moto's DynamoDB faster in this process. What it stores and replies stays the same.

moto looks for each of the ten kinds of a value under a dozen spellings, makes objects only to measure their sizes,
copies each value with `copy.deepcopy`, and lists a class's methods at each call; botocore builds its user agent for
each request. Without that a moto test takes less than half the time.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from botocore.useragent import UserAgentString
from moto.core import responses
from moto.core.serialize import BaseJSONSerializer
from moto.dynamodb.models.dynamo_type import DynamoType, Item

_serialize_structure = BaseJSONSerializer._serialize_type_structure
_size_of_any_kind = DynamoType.size


def install() -> None:
    """Use it from now on, in this process."""
    BaseJSONSerializer._serialize_type_structure = _serialize
    DynamoType.size = _size
    DynamoType.__deepcopy__ = _copy
    Item.size = lambda item: sum(_bytes(name) + _size(value) for name, value in item.attrs.items())
    responses.method_names_from_class = cache(responses.method_names_from_class)
    UserAgentString.to_string = lambda _: "tests"


def _serialize(self: Any, serialized: dict[str, Any], value: Any, shape: Any, key: str) -> None:
    if shape.name == "AttributeValue" and value is not None:
        serialized[key] = _wire_form(value)
    else:
        _serialize_structure(self, serialized, value, shape, key)


def _wire_form(value: Any) -> dict[str, Any]:
    ((kind, content),) = (value if isinstance(value, dict) else value.to_json()).items()
    match kind:
        case "M":
            return {"M": {name: _wire_form(member) for name, member in content.items()}}
        case "L":
            return {"L": [_wire_form(member) for member in content]}
        case _:
            return {kind: content}


def _size(value: Any) -> int:
    if not isinstance(value, DynamoType):
        value = DynamoType(value)
    match value.type:
        case "S":
            return _bytes(value.value)
        case "N":
            return len(str(value.value))
        case "L":
            return sum(map(_size, value.value))
        case "M":
            return sum(_bytes(name) + _size(member) for name, member in value.value.items())
        case _:
            return _size_of_any_kind(value)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _copy(value: DynamoType, _memo: object = None) -> DynamoType:
    copied = DynamoType.__new__(DynamoType)
    copied.type = value.type
    copied.value = _copy_of(value.value)
    return copied


def _copy_of(content: Any) -> Any:
    if isinstance(content, DynamoType):
        return _copy(content)
    if isinstance(content, list):
        return [_copy_of(member) for member in content]
    if isinstance(content, dict):
        return {name: _copy_of(member) for name, member in content.items()}
    return content

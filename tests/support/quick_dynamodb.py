"""Makes moto's DynamoDB quick: attribute values go into its replies as they are.

moto looks for each of the ten kinds of a value under a dozen spellings. That takes half the time of a moto test.
The wire form is the same.
"""

from __future__ import annotations

from typing import Any

from moto.core.serialize import BaseJSONSerializer

_serialize_structure = BaseJSONSerializer._serialize_type_structure


def install() -> None:
    """Use it from now on, in this process."""
    BaseJSONSerializer._serialize_type_structure = _serialize


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

"""Items as other versions of Dropbatch write them.

An earlier one stores what this one leaves out, a later one more.
"""

from __future__ import annotations

from dataclasses import MISSING, is_dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from shared.aws.attribute_values import attribute, defaults_of
from shared.models import Batch, Job
from shared.pacing.breaker import Pause, Rate, StackControl

if TYPE_CHECKING:
    from collections.abc import Mapping

Wire = dict[str, Any]

CONTROL_ITEMS: tuple[tuple[str, type], ...] = (
    ("PAUSE", Pause),
    ("STACK", StackControl),
)
"""Beginnings of the sort keys of control items, and what they are read as."""


class Version(StrEnum):
    """What another version does with the members of an item and of each map in it."""

    EARLIER = "earlier"  # It stores those that have their default too.
    LATER = "later"  # It stores one that this version does not know.


def item_by(version: Version, item: Mapping[str, Any]) -> Wire:
    """A whole item, in wire form with its key, as another version writes it."""
    kind = kind_of(item["pk"]["S"], item["sk"]["S"])
    return dict(item) if kind is None else members_by(version, kind, item)


def kind_of(pk: str, sk: str) -> type | None:
    """The data class that an item is read as; None for one that is read by name."""
    if pk.startswith("JOB#"):
        return Job if sk == "META" else Batch
    if sk == "RATE":
        return Rate
    return next((kind for begin, kind in CONTROL_ITEMS if sk.startswith(begin)), None)


def members_by(version: Version, kind: type, members: Mapping[str, Any]) -> Wire:
    """The members of a map, in wire form, as another version writes them."""
    found = {name: value_by(version, kind, name, wire) for name, wire in members.items()}
    if version is Version.LATER:
        return found | {"later": {"S": "something"}}
    return _every_default(kind) | found


def value_by(version: Version, kind: type, name: str, wire: Wire) -> Wire:
    """The value of one member of a data class as another version writes it; only maps differ."""
    inner = _classes(kind).get(name)
    if inner is None:
        return wire
    if "L" in wire:
        return {"L": [{"M": members_by(version, inner, one["M"])} for one in wire["L"]]}
    return {"M": members_by(version, inner, wire["M"])}


@cache
def _every_default(kind: type) -> Wire:
    """The members that have a default, with it."""
    defaults = {
        name: one
        for name, one in defaults_of(kind).items()
        if one is not None and one is not MISSING
    }
    classes = _classes(kind)
    return {
        name: {"M": _every_default(classes[name])} if is_dataclass(one) else attribute(one)
        for name, one in defaults.items()
    }


@cache
def _classes(kind: type) -> dict[str, type]:
    """The members of a data class that are data classes, or lists of them."""
    hints = {name: (hint, *get_args(hint)) for name, hint in get_type_hints(kind).items()}
    found = {
        name: next((one for one in kinds if is_dataclass(one)), None)
        for name, kinds in hints.items()
    }
    return {name: one for name, one in found.items() if isinstance(one, type)}


class OtherVersion:
    """A client of the table that a function of another version has."""

    def __init__(self, client: Any, version: Version) -> None:
        """Change what is written through the client."""
        self._client = client
        self._version = version

    def __getattr__(self, name: str) -> Any:
        """All but what is changed here."""
        return getattr(self._client, name)

    def put_item(self, **given: Any) -> Any:
        """Write a whole item."""
        return self._client.put_item(**given | {"Item": item_by(self._version, given["Item"])})

    def update_item(self, **given: Any) -> Any:
        """Change some attributes: those that `shared.aws.dynamodb.Table.update` sets."""
        kind = kind_of(given["Key"]["pk"]["S"], given["Key"]["sk"]["S"])
        values = {
            name: value_by(self._version, kind, name.removeprefix(":to_"), wire)
            if kind and name.startswith(":to_")
            else wire
            for name, wire in given.get("ExpressionAttributeValues", {}).items()
        }
        return self._client.update_item(
            **given | ({"ExpressionAttributeValues": values} if values else {})
        )

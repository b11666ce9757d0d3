"""What Cloudflare publishes of each model's requests.

Read from `published.json` as types of msgspec. Pure.

A type is written as one of:

- `"string"`, `"string+"` (not empty), `"string <pattern>"`, `"boolean"`, `"object"`, `"null"`,
  `"any"`;
- `"false"`: this value alone; its decoder needs `check_false`;
- `"integer"`, `"number"`, `"number 0..5"`: with its range;
- `"=a|b"`: one of these words;
- `{"list": type, "least": 1, "most": 4}`;
- `{"members": {"name!": type}}`: an object, `!` for a required member; others may be there too;
- `{"by": "role", "kinds": {"user": members}}`: an object whose member `role` says which members it
  has;
- an array of types: any one of them;
- `"never"`: no value at all.
"""

from __future__ import annotations

import functools
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec

Members = dict[str, Any]
NEVER = "never"


class Alternative(NamedTuple):
    """One of the forms that a model's requests may have.

    Attributes:
        required: members that a request of this form has.
        members: the types of its members as they are written, with `!` for those that are required.
        is_published: whether it is in the published schema, or only observed.
    """

    required: frozenset[str]
    members: Members
    is_published: bool

    @property
    def known(self) -> frozenset[str]:
        """All members that the schema names."""
        return frozenset(name.removesuffix("!") for name in self.members)


@cache
def content() -> dict[str, Any]:
    """The whole file."""
    found: dict[str, Any] = msgspec.json.decode(
        Path(__file__).with_name("published.json").read_bytes()
    )
    return found


@cache
def alternatives(schema: str) -> tuple[Alternative, ...]:
    """The forms of a schema's requests; the name is one of those in the file."""
    written, groups = content()["schemas"][schema]["alternatives"], content()["groups"]
    return tuple(_alternative(one, groups) for one in written)


def _alternative(written: dict[str, Any], groups: dict[str, Members]) -> Alternative:
    members = {
        name: kind for group in written.get("use", ()) for name, kind in groups[group].items()
    }
    members |= written["members"]
    required = frozenset(name[:-1] for name in members if name.endswith("!"))
    return Alternative(required, members, not written.get("unpublished", False))


def not_empty(written: Any) -> Any:  # noqa: ANN401 # As `type_of`.
    """The type without empty arrays."""
    if isinstance(written, list):
        return [not_empty(one) for one in written]
    return {"least": 1} | written if isinstance(written, dict) and "list" in written else written


def with_efforts(members: Members, efforts: tuple[str, ...] | None) -> Members:
    """The members of a form, with the efforts that a model takes, none at all, or any (None)."""
    words = "any" if efforts is None else f"={'|'.join(efforts)}" if efforts else "null"
    if "reasoning" in members:
        return members | {
            "reasoning": {"members": members["reasoning"]["members"] | {"effort": words}}
        }
    return (
        members
        if efforts is None
        else members | {"reasoning_effort": [words, "null"] if efforts else words}
    )


def struct_of(members: Members, base: type[msgspec.Struct] | None = None, **tag: str) -> Any:  # noqa: ANN401 # A type.
    """The type of an object with these members."""
    fields: list[Any] = [
        (name[:-1], type_of(kind)) for name, kind in members.items() if name.endswith("!")
    ]
    fields += [
        (name, type_of(kind) | msgspec.UnsetType, msgspec.UNSET)
        for name, kind in members.items()
        if not name.endswith("!")
    ]
    bases = (base,) if base else None
    return msgspec.defstruct("Request", fields, bases=bases, kw_only=True, gc=False, **tag)  # type: ignore[arg-type]


def type_of(written: Any) -> Any:  # noqa: ANN401 # Types are values of no one type.
    """The type that a schema writes in this way."""
    if isinstance(written, list):
        return Union[tuple(type_of(one) for one in written)]  # noqa: UP007 # Made at run time.
    if isinstance(written, dict):
        return _composite(written)
    kind, _, rest = written.partition(" ")
    if written.startswith("="):
        return Literal[tuple(written[1:].split("|"))]
    if kind == "string" and rest:
        return Annotated[str, msgspec.Meta(pattern=rest)]
    if rest:
        least, most = (_NUMBERS[kind](bound) for bound in rest.split(".."))
        return Annotated[_PLAIN[kind], msgspec.Meta(ge=least, le=most)]
    return _PLAIN[kind]


class _False:
    """What stands for the value false."""


def check_false(kind: type[_False], found: object) -> _False:
    """The `dec_hook` of decoders of types with `"false"`.

    Raises:
        ValueError: it is another value.
    """
    if found is False:
        return kind()
    raise ValueError("another value")


def _composite(written: dict[str, Any]) -> Any:  # noqa: ANN401
    if "list" in written:
        bounds = msgspec.Meta(min_length=written.get("least"), max_length=written.get("most"))
        return Annotated[list[type_of(written["list"])], bounds]  # type: ignore[misc]
    if "by" in written:
        kinds = [
            struct_of(kind, tag_field=written["by"], tag=name)
            for name, kind in written["kinds"].items()
        ]
        return functools.reduce(lambda one, other: one | other, kinds)
    return struct_of(written["members"])


_NUMBERS: dict[str, type[int | float]] = {"integer": int, "number": float}
_PLAIN: dict[str, Any] = {
    "string": str,
    "string+": Annotated[str, msgspec.Meta(min_length=1)],
    "boolean": bool,
    "false": _False,
    "integer": int,
    "number": float,
    "object": dict[str, Any],
    "null": None,
    "any": Any,
    NEVER: Annotated[str, msgspec.Meta(min_length=1, max_length=0)],
}

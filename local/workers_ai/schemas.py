"""The published schemas of requests, from `schemas.json`, as types that msgspec judges values by.

A type is written as one of:

- `"string"`, `"string+"` (not empty), `"string <pattern>"`, `"boolean"`, `"object"`, `"null"`, `"any"`;
- `"integer"`, `"number"`, `"number 0..5"`: with its range;
- `"=a|b"`: one of these words;
- `{"list": type, "least": 1, "most": 4}`;
- `{"members": {"name!": type}}`: an object, `!` for a required member; others may be there too;
- `{"by": "role", "kinds": {"user": members}}`: an object whose member `role` says which members it has;
- an array of types: any one of them.
"""

import functools
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec

Members = dict[str, Any]


class Alternative(NamedTuple):
    """One of the forms that a model's requests may have.

    Attributes:
        required: members that a request of this form has.
        known: all members that the schema names.
        form: the type that judges it.
        is_published: whether it is in the published schema, or only observed.
    """

    required: frozenset[str]
    known: frozenset[str]
    form: Any
    is_published: bool


@cache
def alternatives(model: str) -> tuple[Alternative, ...]:
    """The forms of a model's requests in a batch.

    Raises:
        LookupError: no schema lists the model.
    """
    content = _content()
    for schema in content["schemas"].values():
        if model in schema["models"]:
            return tuple(_alternative(one, content["groups"]) for one in schema["alternatives"])
    raise LookupError(model)


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = msgspec.json.decode(Path(__file__).with_name("schemas.json").read_bytes())
    return content


def _alternative(written: dict[str, Any], groups: dict[str, Members]) -> Alternative:
    members = {name: kind for group in written.get("use", ()) for name, kind in groups[group].items()}
    members |= written["members"]
    required = frozenset(name[:-1] for name in members if name.endswith("!"))
    known = frozenset(name.removesuffix("!") for name in members)
    return Alternative(required, known, _struct(members), not written.get("unpublished", False))


def _struct(members: Members, **tag: str) -> Any:  # noqa: ANN401 # A type made at run time.
    fields: list[Any] = [(name[:-1], type_of(kind)) for name, kind in members.items() if name.endswith("!")]
    fields += [
        (name, type_of(kind) | msgspec.UnsetType, msgspec.UNSET)
        for name, kind in members.items()
        if not name.endswith("!")
    ]
    return msgspec.defstruct("Request", fields, **tag)  # type: ignore[arg-type]


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


def _composite(written: dict[str, Any]) -> Any:  # noqa: ANN401
    if "list" in written:
        bounds = msgspec.Meta(min_length=written.get("least"), max_length=written.get("most"))
        return Annotated[list[type_of(written["list"])], bounds]  # type: ignore[misc]
    if "by" in written:
        kinds = [_struct(kind, tag_field=written["by"], tag=name) for name, kind in written["kinds"].items()]
        return functools.reduce(lambda one, other: one | other, kinds)
    return _struct(written["members"])


_NUMBERS: dict[str, type[int] | type[float]] = {"integer": int, "number": float}
_PLAIN: dict[str, Any] = {
    "string": str,
    "string+": Annotated[str, msgspec.Meta(min_length=1)],
    "boolean": bool,
    "integer": int,
    "number": float,
    "object": dict[str, Any],
    "null": None,
    "any": Any,
}

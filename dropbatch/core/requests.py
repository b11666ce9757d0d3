"""What Cloudflare publishes of each model's requests.

Read from `requests.json` as types of msgspec. Pure.

A type is written as one of:

- `"string"`, `"string+"` (not empty), `"string <pattern>"`, `"boolean"`, `"object"`, `"null"`,
  `"any"`;
- `"false"`: this value alone; its decoder needs `check_false`;
- `"integer"`, `"number"`, `"number 0..5"`, `"integer 0.."`: with its range;
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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union

import msgspec

if TYPE_CHECKING:
    from dropbatch.core.models import Model


Members = dict[str, Any]
NO_VALUE = "never"


class Alternative(NamedTuple):
    """A form of a model's requests: its members' types as written."""

    required: frozenset[str]
    members: Members

    @property
    def known(self) -> frozenset[str]:
        """All members that the schema names."""
        return frozenset(name.removesuffix("!") for name in self.members)


@cache
def content() -> dict[str, Any]:
    """The whole file."""
    found: dict[str, Any] = msgspec.json.decode(
        Path(__file__).with_name("requests.json").read_bytes()
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
    return Alternative(required, members)


def not_empty(written: Any) -> Any:  # As `type_of`.
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


def struct_of(members: Members, base: type[msgspec.Struct] | None = None, **tag: str) -> Any:
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
    more: dict[str, Any] = {"bases": bases, "kw_only": True, "gc": False, **tag}
    return msgspec.defstruct("Request", fields, **more)


def type_of(written: Any) -> Any:  # Types are values of no one type.
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
        least, most = (_NUMBERS[kind](bound) if bound else None for bound in rest.split(".."))
        return Annotated[_PLAIN[kind], msgspec.Meta(ge=least, le=most)]
    return _PLAIN[kind]


class _False:
    """What stands for the value false."""


def check_false(kind: type[_False], found: object) -> _False:
    """The `dec_hook` of decoders of types with `"false"`."""
    if found is False:
        return kind()
    raise ValueError("another value")


def _composite(written: dict[str, Any]) -> Any:
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
    NO_VALUE: Annotated[str, msgspec.Meta(min_length=1, max_length=0)],
}


# ── what a model takes, for requests that are made ────────────────────────────────────────────────


class Limits(NamedTuple):
    """What a member may be: a number in a range, perhaps a whole one, or one of some words.

    Without any word, it must be left out. Aliases are strings that are sent as another one.
    """

    least: float | None = None
    most: float | None = None
    whole: bool = False
    words: tuple[str, ...] | None = None
    aliases: Mapping[str, str] = MappingProxyType({})

    def accepts(self, value: object) -> bool:
        """Whether a value is within the limits."""
        if self.words is not None:
            return value in self.words
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return (self.least is None or value >= self.least) and (
            self.most is None or value <= self.most
        )

    def text(self) -> str:
        """The limits in words, after "It must be"."""
        if self.words is not None:
            return f"one of {', '.join(self.words)}" if self.words else "left out"
        kind = "an integer" if self.whole else "a number"
        if self.most is None:
            return kind if self.least is None else f"{kind} of {self.least} or more"
        return f"{kind} from {self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class Schema:
    """What a model takes, so that requests can be made to fit it.

    Attributes:
        members: names of the members that its schema knows.
        limits: those whose values have limits.
        strings: those that take text.
        developer: whether messages may have the role `developer`.
        full_tools: whether each function of `tools` must have a description and parameters.
        named_schema: whether `response_format.json_schema` must have a name.
        call_ids: pattern that ids of tool calls must match; empty for any.
        stops: maximum number of `stop` sequences; 0 for no limit.
        texts: maximum number of texts in an embeddings request; 0 for no limit.
    """

    members: frozenset[str] = frozenset()
    limits: Mapping[str, Limits] = field(default_factory=dict)
    strings: frozenset[str] = frozenset()
    developer: bool = True
    full_tools: bool = False
    named_schema: bool = False
    call_ids: str = ""
    stops: int = 0
    texts: int = 0


@cache
def schema_named(name: str) -> Schema:
    """What a published schema says; of one that is not published, nothing is known."""
    if name not in content()["schemas"]:
        return Schema()
    kinds: Members = {}
    for one in alternatives(name):
        kinds |= {member.removesuffix("!"): kind for member, kind in one.members.items()}
    messages, tool = _elements(kinds.get("messages")), _elements(kinds.get("tools"))
    function = tool.get("members", {}).get("function", {}).get("members", {})
    formats = kinds.get("response_format", {}).get("kinds", {})
    limits = {name: _limits(kind) for name, kind in kinds.items()}
    return Schema(
        members=frozenset(kinds),
        limits={name: found for name, found in limits.items() if found},
        strings=frozenset(name for name, kind in kinds.items() if _takes_text(kind)),
        developer=not messages or "developer" in messages.get("kinds", {}),
        full_tools="description!" in function,
        named_schema="json_schema!" in formats.get("json_schema", {}),
        call_ids=messages.get("members", {}).get("tool_call_id", "").removeprefix("string "),
        stops=_most(kinds.get("stop")),
        texts=_most(kinds.get("text")),
    )


def _elements(kind: Any) -> dict[str, Any]:  # As `type_of`.
    """The type of an array's elements; empty for any other type."""
    found: dict[str, Any] = kind.get("list", {}) if isinstance(kind, dict) else {}
    return found


def _limits(kind: Any) -> Limits | None:
    """The limits of a number, or of a word, that may also be null; None for any other type."""
    kinds = [one for one in kind if one != "null"] if isinstance(kind, list) else [kind]
    if len(kinds) != 1 or not isinstance(kinds[0], str):
        return None
    (word,) = kinds
    if word.startswith("="):
        return Limits(words=tuple(word[1:].split("|")))
    name, _, bounds = word.partition(" ")
    if name not in _NUMBERS:
        return None
    written = bounds.split("..") if bounds else ("", "")
    least, most = (msgspec.json.decode(one) if one else None for one in written)
    return Limits(least, most, whole=name == "integer")


def _takes_text(kind: Any) -> bool:  # As `type_of`.
    kinds = kind if isinstance(kind, list) else [kind]
    words = [one for one in kinds if isinstance(one, str)]
    return any(one == "any" or one.startswith(("string", "=")) for one in words)


def _most(kind: Any) -> int:
    """The most elements that an array may have; 0 if nothing limits them."""
    kinds = kind if isinstance(kind, list) else [kind]
    return max((one.get("most", 0) for one in kinds if isinstance(one, dict)), default=0)


def schema_of(model: Model) -> Schema:
    """What the requests of a model take: what its schema says, and its own efforts."""
    schema = schema_named(model.schema)
    if model.efforts is None:
        return schema
    member = "reasoning.effort" if model.shape == "input" else "reasoning_effort"
    efforts = Limits(words=model.efforts.values, aliases=model.efforts.aliases)
    return replace(schema, limits={**schema.limits, member: efforts})

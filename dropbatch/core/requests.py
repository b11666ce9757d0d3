"""What Cloudflare publishes of each model's requests.

Read from `requests.json` as types of msgspec. Pure.

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
import re
from collections import deque
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Union

import msgspec

from dropbatch.core.formats.base import RecordFault
from dropbatch.core.formats.conversion.members import STREAM, only_values
from dropbatch.core.formats.schemas import Limits
from dropbatch.core.models import model_id, no_other_than, of_other_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dropbatch.core.models import Efforts
    from dropbatch.core.plan import SplitPlan


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


EFFORTS = {"reasoning_effort", "reasoning.effort"}
"""The members that are efforts, by whether a model has the Responses API's shape."""


class Request(msgspec.Struct, gc=False, kw_only=True):
    """What is read of each request."""

    external_reference: Any = None


class Form(NamedTuple):
    """One of the forms that a model's requests have.

    Attributes:
        member: that holds the input.
        decode: reads a request of this form; raises for any other.
        only: why members may have no other value than they may.
    """

    member: str
    decode: Callable[[bytes], Request]
    only: Mapping[str, str] = MappingProxyType({})


@cache
def forms_of(
    schema: str,
    efforts: tuple[str, ...] | None = None,
    model: str = "",
    *,
    is_strict: bool = False,
    dimensions: int | None = None,
) -> tuple[Form, ...]:
    """The forms of a schema's requests; if nothing is known, one that any object has.

    Args:
        schema: its name, one of `dropbatch.core.requests`.
        efforts: that the model takes; None if they are not known.
        model: the only one of Workers AI that a request may name; empty: any.
        is_strict: whether a request must have something to answer, and members that its answer can
            be right for.
        dimensions: numbers in one of the model's embeddings; None if unknown.
    """
    named: Members = {"model": [f"string {no_other_than(model)}", "null"]} if model else {}
    if schema not in content()["schemas"]:
        only = only_values("", model, dimensions) if is_strict else {}
        return (_form("", named, only),)
    found = alternatives(schema)
    inputs = [next(name[:-1] for name in one.members if name.endswith("!")) for one in found]
    forms = []
    for one, member in zip(found, inputs, strict=True):
        others = dict.fromkeys(set(inputs) - {member}, NEVER)
        members = with_efforts(one.members, efforts) | others | named
        only = {}
        if is_strict:
            members = {
                name: not_empty(kind) if name.endswith("!") else kind
                for name, kind in members.items()
            }
            every = only_values(member, model, dimensions)
            only = {
                name: every[name] for name in every if name == STREAM or name not in one.members
            }
        forms.append(_form(member, members, only))
    return tuple(reversed(forms))  # The usual one is the last that is published.


def _form(member: str, members: Members, only: Mapping[str, tuple[object, str]]) -> Form:
    """The form with this input and these members, of which some may have only one value."""
    kinds = {name: _only(value, members.get(name)) for name, (value, _) in only.items()}
    decoder = msgspec.json.Decoder(struct_of(members | kinds, Request), dec_hook=check_false)
    return Form(member, decoder.decode, {name: message for name, (_, message) in only.items()})


def _only(value: object, published: Any) -> Any:  # noqa: ANN401 # Kinds, as `dropbatch.core.requests` has them.
    """The kind of one value, and of null unless the published kind has none.

    What is sent is what is written.
    """
    kind = "null" if value is None else "false" if value is False else f"integer {value}..{value}"
    takes_null = published is None or published == "any" or "null" in published
    return [kind, "null"] if takes_null else kind


class _Named(msgspec.Struct):
    model: Any = None


_decode_named = msgspec.json.Decoder(_Named).decode
_WRONG = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_external_reference = attrgetter("external_reference")
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"required field `(\w+)`")


class Inputs:
    """The requests that the model of a job takes."""

    def __init__(
        self,
        schema: str,
        efforts: Efforts | None = None,
        model: str = "",
        *,
        is_strict: bool = False,
        dimensions: int | None = None,
    ) -> None:
        """Judge by the schema of this name, by the model's efforts if they are known.

        And by its id if it is given.

        `is_strict` and `dimensions`: as for `forms_of`.
        """
        self._efforts, self._model, self._is_strict = efforts, model, is_strict
        self._forms = forms_of(
            schema, efforts and efforts.values, model, is_strict=is_strict, dimensions=dimensions
        )

    def references(self, raws: Sequence[bytes], *, wanted: bool) -> list[Any] | None:
        """The references of requests that all have an input, in the same form.

        None if perhaps one has none.

        Args:
            raws: UTF-8, perhaps JSON.
            wanted: whether any request has a reference; if not, the list is empty.
        """
        for form in self._forms:
            try:
                values = map(form.decode, raws)
                if wanted:
                    return list(map(_external_reference, values))
                deque(values, maxlen=0)
            except _WRONG:
                continue
            return []
        return None

    def read(self, raw: bytes) -> Request | None:
        """What is read of a request that has an input.

        None for any other, and for what is not JSON.
        """
        if not is_text(raw):
            return None
        for form in self._forms:
            try:
                return form.decode(raw)
            except _WRONG:
                continue
        return None

    def fault(self, raw: bytes) -> RecordFault | None:
        """Why a request, a JSON object, cannot be sent; None if it can."""
        if self.read(raw) is not None:
            return None
        model = model_id(_decode_named(raw).model)
        if self._model and model not in {"", self._model}:
            return RecordFault("mismatched_model", f"model: {of_other_model(model, self._model)}")
        if not (self._is_strict or self._forms[0].member):
            return None
        return RecordFault("bad_record", self._fault_of_input(raw))

    def _fault_of_input(self, raw: bytes) -> str:
        """Begins with the member at fault."""
        members = _decode_members(raw)
        given = [one for one in self._forms if one.member in members or not one.member]
        takers = " or ".join(one.member for one in self._forms)
        if not given:
            return f"{self._forms[0].member}: It is missing. The model takes {takers}."
        form, *others = given
        if others:
            return f"{others[0].member}: It is beside {form.member}. The model takes {takers}."
        try:
            form.decode(raw)
        except msgspec.ValidationError as error:
            return self._explained(str(error), form)
        return f"{form.member}: It cannot be read."

    def _explained(self, error: str, form: Form) -> str:
        """An error of msgspec in words, with the path of the member at fault."""
        found = _PLACE.search(error)
        place, said = (found[1], error[: found.start()]) if found else ("", error)
        if missing := _MISSING.search(said):
            return f"{place}{'.' * bool(place)}{missing[1]}: It is missing."
        place = place or form.member
        if place in form.only:
            return f"{place}: {form.only[place]}"
        if place in EFFORTS and self._efforts:
            return f"{place}: It must be {Limits(words=self._efforts.values).text()}."
        if "length >= 1" in said:
            return f"{place}: It must not be empty."
        return f"{place}: It has the wrong type." if ", got " in said else f"{place}: {said}."


def inputs_of(plan: SplitPlan) -> Inputs:
    """The requests that the model of a job takes.

    Any if nothing is known, or if an older version planned it so.
    """
    efforts = plan.known_model.efforts if plan.facts else None
    return Inputs(
        plan.inputs,
        efforts,
        plan.model if plan.checks_models else "",
        is_strict=plan.is_strict,
        dimensions=plan.known_model.dimensions,
    )


def is_text(raw: bytes) -> bool:
    """Whether bytes are UTF-8: a decoder does not check what it skips."""
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True

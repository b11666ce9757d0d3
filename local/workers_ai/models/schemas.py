"""What is wrong with requests, by the published schemas, which are read from `schemas.json` as types of msgspec.

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
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union

import msgspec

from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import ApiError, error
from local.workers_ai.models.catalogue import Model

Members = dict[str, Any]
_BAD = "AiError: Bad input: Error: "
_PLACE = re.compile(r" - at `\$(.*)`$")
_TYPES = re.compile(r"^Expected `([^`]*)`, got `([^`]*)`$")
_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


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


class SentRequests(NamedTuple):
    """The requests of a body, what is wrong with them, and whether that is reported only after acceptance."""

    requests: list[Any]
    wrong: ApiError | None = None
    is_late: bool = False


def read_requests(model: Model, sent: object, behaviour: Behaviour) -> SentRequests:
    """The requests of a body, checked."""
    requests = sent.get("requests") if isinstance(sent, dict) else None
    if not isinstance(requests, list):
        wrong = error(5006, "AiError: Bad input: Error: required properties at '/' are 'requests'")
        return SentRequests([], wrong, behaviour.missing_requests == "fail_later")
    if not requests and behaviour.empty_requests == "refuse":
        return SentRequests([], error(5006, "AiError: Bad input: Error: '/requests' must hold at least 1 item"))
    if behaviour.max_requests and len(requests) > behaviour.max_requests:
        most = f"AiError: Bad input: Error: '/requests' must hold at most {behaviour.max_requests} items"
        return SentRequests(requests, error(5006, most))
    for index, request in enumerate(requests):
        reason = problem(model.name, request, f"/requests/{index}", behaviour)
        if reason is not None:
            return SentRequests(requests, error(5006, reason), behaviour.validation != "submit")
    return SentRequests(requests)


def problem(model: str, request: object, where: str, behaviour: Behaviour) -> str | None:
    """What is wrong with a request at this JSON pointer; None if nothing is."""
    if not isinstance(request, dict):
        return f"{_BAD}Type mismatch of '{where}', 'object' expected"
    if "external_reference" in request and not {model, "*"}.isdisjoint(behaviour.refuse_reference):
        return f"{_BAD}'{where}/external_reference' is not allowed"
    reference = request.get("external_reference")
    if behaviour.strict_reference and reference is not None and not isinstance(reference, str):
        return f"{_BAD}Type mismatch of '{where}/external_reference', 'string' expected"
    forms = [one for one in alternatives(model) if one.is_published or behaviour.batch_messages]
    fitting = [one for one in forms if one.required <= request.keys()]
    if len(fitting) != 1:
        # Clients of gpt-oss get `oneOf` here with the names of other models' properties; only `oneOf` is worth
        # matching.
        required = ", ".join(
            f"required properties at '{where}' are '{','.join(sorted(one.required))}'" for one in forms
        )
        return f"{_BAD}oneOf at '{where}' not met, {len(fitting)} matches: {required}"
    unknown = request.keys() - fitting[0].known - {"external_reference"}
    if unknown and behaviour.unknown_members == "refuse":
        return f"{_BAD}Unknown property '{where}/{min(unknown)}'"
    try:
        msgspec.convert(request, fitting[0].form)
    except msgspec.ValidationError as wrong:
        return _BAD + _worded(str(wrong), where)
    return None


def _worded(message: str, where: str) -> str:
    """An error of msgspec in the API's words, as clients quote them for a wrong type."""
    place = _PLACE.search(message)
    path = where if place is None else where + re.sub(r"\.|\[", "/", place.group(1)).replace("]", "")
    text = message[: place.start()] if place else message
    types = _TYPES.match(text)
    if types is None:
        return f"{text} at '{path}'"
    expected = ",".join(_NAMES.get(name, name) for name in types.group(1).split(" | "))
    return f"Type mismatch of '{path}', '{expected}' not in '{_NAMES.get(types.group(2), types.group(2))}'"


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

"""What is wrong with requests, by the published schemas (`dropbatch.core.requests`)."""

import re
from functools import cache
from typing import Any

import msgspec

from dropbatch.core import requests
from dropbatch.core.requests import Alternative
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import ApiError, error
from local.workers_ai.models.catalogue import Model

REFUSED = "(refused)"
"""Words in `text` or `prompt` that no schema forbids, and that are refused: 400/5006."""
_BAD = "AiError: Bad input: Error: "
_PLACE = re.compile(r" - at `\$(.*)`$")
_TYPES = re.compile(r"^Expected `([^`]*)`, got `([^`]*)`$")
_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def read_requests(model: Model, sent: object, behaviour: Behaviour) -> list[Any] | ApiError:
    """The requests of a body, or what is wrong with them."""
    requests = sent.get("requests") if isinstance(sent, dict) else None
    if not isinstance(requests, list):
        return error(5006, f"{_BAD}required properties at '/' are 'requests'")
    if not requests:
        return error(5006, f"{_BAD}'/requests' must hold at least 1 item")
    for index, request in enumerate(requests):
        reason = problem(model.name, request, f"/requests/{index}", behaviour)
        if reason is not None:
            return error(5006, reason)
    return requests


def problem(model: str, request: object, where: str, behaviour: Behaviour) -> str | None:
    """What is wrong with a request at this JSON pointer; None if nothing is."""
    if not isinstance(request, dict):
        return f"{_BAD}Type mismatch of '{where}', 'object' expected"
    if "external_reference" in request and not {model, "*"}.isdisjoint(behaviour.refuse_reference):
        return f"{_BAD}'{where}/external_reference' is not allowed"
    for member in ("text", "prompt"):
        if isinstance(text := request.get(member), str) and REFUSED in text:
            return f"{_BAD}'{where}/{member}' cannot be processed"
    forms = _forms(model)
    fitting = [one for one in forms if one[0].required <= request.keys()]
    if len(fitting) != 1:
        # Clients of gpt-oss get `oneOf` here with the names of other models' properties; only
        # `oneOf` is worth matching.
        required = ", ".join(
            f"required properties at '{where}' are '{','.join(sorted(one.required))}'"
            for one, _ in forms
        )
        return f"{_BAD}oneOf at '{where}' not met, {len(fitting)} matches: {required}"
    ((alternative, form),) = fitting
    unknown = request.keys() - alternative.known - {"external_reference"}
    if unknown and behaviour.unknown_members == "refuse":
        return f"{_BAD}Unknown property '{where}/{min(unknown)}'"
    try:
        msgspec.convert(request, form)
    except msgspec.ValidationError as wrong:
        return _BAD + _worded(str(wrong), where)
    return None


def _worded(message: str, where: str) -> str:
    """An error of msgspec in the API's words, as clients quote them for a wrong type."""
    place = _PLACE.search(message)
    inner = re.sub(r"\.|\[", "/", place[1]).replace("]", "") if place else ""
    text = message[: place.start()] if place else message
    types = _TYPES.match(text)
    if types is None:
        return f"{text} at '{where}{inner}'"
    expected = ",".join(_NAMES.get(name, name) for name in types[1].split(" | "))
    given = _NAMES.get(types[2], types[2])
    return f"Type mismatch of '{where}{inner}', '{expected}' not in '{given}'"


@cache
def _forms(model: str) -> tuple[tuple[Alternative, Any], ...]:
    """The forms of a model's requests in a batch, each with the type that judges it."""
    for name, schema in requests.content()["schemas"].items():
        if model in schema["models"]:
            return tuple(
                (one, requests.struct_of(one.members)) for one in requests.alternatives(name)
            )
    raise LookupError(model)

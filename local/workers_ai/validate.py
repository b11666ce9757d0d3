"""What a model's published schema accepts as one request.

It finds what is wrong with a request; other modules decide what follows from that.
"""

import re

import msgspec

from local.workers_ai.behaviour import Behaviour
from local.workers_ai.schemas import alternatives

_BAD = "AiError: Bad input: Error: "
_PLACE = re.compile(r" - at `\$(.*)`$")
_TYPES = re.compile(r"^Expected `([^`]*)`, got `([^`]*)`$")
_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


def problem(model: str, request: object, where: str, behaviour: Behaviour) -> str | None:
    """What is wrong with a request at this JSON pointer; None if nothing is."""
    if not isinstance(request, dict):
        return f"{_BAD}Type mismatch of '{where}', 'object' expected"
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
    except msgspec.ValidationError as error:
        return _BAD + _worded(str(error), where)
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

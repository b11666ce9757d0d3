"""Tools of a chat request, and the calls that an answer makes, in all vendors' shapes.

Anything of unknown shape is sent as written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dropbatch.core.formats.base import (
    NULL,
    BadRecordError,
    Json,
    begins,
    elements_of,
    encode,
    json_text,
    members_of,
    one_line,
    splice,
    splice_array,
    value_of,
    word_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def chat_tools(tools: Json, path: str, *, full: bool) -> Json:
    """Anthropic's, Converse's and the Responses API's tools as OpenAI's functions.

    Args:
        tools: as JSON.
        path: where they are in the record.
        full: whether the model requires a description and parameters of each function.

    Raises:
        BadRecordError: one is another tool, which only its vendor has.
    """
    raws = elements_of(tools)
    if raws is None:
        return tools
    changed = []
    for index, raw in enumerate(raws):
        members = members_of(raw) or {}
        if "cachePoint" in members:
            continue
        if not _is_function(members):
            raise BadRecordError(
                f"{path}[{index}]", "The models of Workers AI call functions, no other tools."
            )
        changed.append(_openai_tool(raw, full=full))
    return tools if changed == raws else splice_array(changed)


def _is_function(members: Mapping[str, Json]) -> bool:
    is_flat = "name" in members and word_of(members.get("type", NULL)) in {"", "function", "custom"}
    return is_flat or not members.keys().isdisjoint({"function", "toolSpec", "input_schema"})


def _openai_tool(raw: Json, *, full: bool) -> Json:
    members = members_of(raw) or {}
    function = members_of(members.get("function", b"null"))
    spec = function or members_of(members.get("toolSpec", b"null")) or members
    schema = (members_of(spec.get("inputSchema", b"null")) or {}).get("json") or spec.get(
        "input_schema"
    )
    is_flat = function is None and word_of(members.get("type", b"null")) == "function"
    known: dict[str, Json] = {
        name: spec[name] for name in _ORDER if bytes(spec.get(name, b"null")) != b"null"
    }
    if schema is not None:
        known["parameters"] = schema
    filled = _filled(known) if full else known
    is_complete = function is None or all(function.get(name) == filled.get(name) for name in _ORDER)
    if schema is None and not is_flat and is_complete:
        return raw
    return splice(
        [
            ("type", b'"function"'),
            ("function", splice((name, filled[name]) for name in _ORDER if name in filled)),
        ]
    )


def _filled(function: Mapping[str, Json]) -> dict[str, Json]:
    """A function with all members that some models require of it and of its parameters."""
    filled = {**_REQUIRED, **function}
    parameters = members_of(filled["parameters"])
    if parameters is not None and not _REQUIRED_PARAMETERS.keys() <= parameters.keys():
        filled["parameters"] = splice({**_REQUIRED_PARAMETERS, **parameters}.items())
    return filled


_REQUIRED_PARAMETERS: dict[str, Json] = {"type": b'"object"', "properties": b"{}"}
_REQUIRED: dict[str, Json] = {
    "description": b'""',
    "parameters": splice(_REQUIRED_PARAMETERS.items()),
}
_ORDER = ("name", "description", "parameters", "strict")


def flat_choice(choice: Json) -> Json:
    """OpenAI's choice of a function as the Responses API writes it."""
    members = members_of(choice) or {}
    function = members_of(members.get("function", b"null"))
    return choice if function is None else splice([("type", b'"function"'), *function.items()])


def flat_tools(tools: Json) -> Json:
    """OpenAI's functions as the Responses API writes them.

    Without the object around name and parameters.
    """
    raws = elements_of(tools)
    return tools if raws is None else splice_array(map(_flat_tool, raws))


def _flat_tool(raw: Json) -> Json:
    function = members_of((members_of(raw) or {}).get("function", b"null"))
    return raw if function is None else splice([("type", b'"function"'), *function.items()])


def chat_tool_choice(choice: Json) -> Json:
    """Anthropic's and Converse's choice as OpenAI's."""
    value = value_of(choice)
    if not isinstance(value, dict):
        return choice
    kind = value.get("type") or next(iter(value), "")
    if isinstance(kind, str) and kind in _CHOICES:
        return encode(_CHOICES[kind])
    if kind == "function" and "function" not in value:
        return encode({"type": "function", "function": {"name": value.get("name")}})
    if kind == "tool":
        inner = value.get("tool")
        name = inner.get("name") if isinstance(inner, dict) else value.get("name")
        return encode({"type": "function", "function": {"name": name}})
    return choice


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def function_call(members: dict[str, msgspec.Raw]) -> bytes:
    """A call in a conversation, as Anthropic, Converse or the Responses API write it.

    In OpenAI's form.
    """
    id_ = members.get("id") or members.get("toolUseId") or b'""'
    arguments = members.get("input") or members.get("arguments") or msgspec.Raw(b"{}")
    text = arguments if begins(arguments, b'"') else json_text(arguments)
    return _call(members.get("call_id") or id_, members.get("name") or b'""', text)


def _call(id_: Json, name: Json, arguments: Json) -> bytes:
    function = splice([("name", name), ("arguments", arguments)])
    return splice([("id", id_), ("type", b'"function"'), ("function", function)])


class ToolCall(NamedTuple):
    """A call that a model requests.

    Its id, empty if it has none, the function's name, and its arguments.

    These are JSON if the model wrote them so, which nobody checks, and they may have line feeds.
    """

    id: str
    name: str
    arguments: bytes


def arguments_object(call: ToolCall) -> msgspec.Raw | dict[str, str]:
    """A call's arguments as an object on one line; anything else is put in one, as text."""
    if members_of(call.arguments) is not None:
        return msgspec.Raw(one_line(call.arguments))
    return {"arguments": call.arguments.decode(errors="replace")}


def tool_calls_of(raw: Json) -> list[ToolCall]:
    """The calls in an answer, in OpenAI's or Workers AI's own shape.

    A call that names no function is left out.
    """
    calls = value_of(raw)
    found = [_tool_call(call) for call in calls] if isinstance(calls, list) else []
    return [call for call in found if call]


def _tool_call(call: Any) -> ToolCall | None:  # noqa: ANN401  # whatever the API sent
    if not isinstance(call, dict):
        return None
    inner = call.get("function")
    function = inner if isinstance(inner, dict) else call
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not name:
        return None
    as_json = (
        arguments.encode(errors="replace")
        if isinstance(arguments, str)
        else encode(arguments or {})
    )
    # an item of the Responses API is answered by its `call_id`
    ids = (call.get("call_id"), call.get("id"))
    return ToolCall(next((one for one in ids if isinstance(one, str)), ""), name, as_json)

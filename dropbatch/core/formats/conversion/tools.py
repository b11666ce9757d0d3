"""Tools of a chat request, and the calls that an answer makes, in all vendors' shapes.

Anything of unknown shape is sent as written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dropbatch.core.formats.base import (
    NULL,
    BadRecordError,
    Json,
    begins,
    compact,
    elements_of,
    encode,
    made,
    members_of,
    object_of,
    one_line,
    value_of,
    word_of,
)


def chat_tools(tools: msgspec.Raw, path: str, *, full: bool) -> msgspec.Raw:
    """Other vendors' tools as OpenAI's functions; or `BadRecordError`: only its vendor has one."""
    raws = elements_of(tools)
    if raws is None:
        return tools
    changed: list[msgspec.Raw | dict[str, Any]] = []
    for index, raw in enumerate(raws):
        members = object_of(raw)
        if "cachePoint" in members:
            continue
        if not _is_function(members):
            raise BadRecordError(
                f"{path}[{index}]", "The models of Workers AI call functions, no other tools."
            )
        changed.append(_openai_tool(raw, members, full=full))
    return tools if changed == raws else made(changed)


def _is_function(members: Mapping[str, Json]) -> bool:
    is_flat = "name" in members and word_of(members.get("type", NULL)) in {"", "function", "custom"}
    return is_flat or not members.keys().isdisjoint({"function", "toolSpec", "input_schema"})


def _openai_tool(
    raw: msgspec.Raw, members: dict[str, msgspec.Raw], *, full: bool
) -> msgspec.Raw | dict[str, Any]:
    """A tool as OpenAI's function; as it was written if it is one."""
    function = members_of(members.get("function", NULL))
    spec = function or members_of(members.get("toolSpec", NULL)) or members
    schema = object_of(spec.get("inputSchema", NULL)).get("json") or spec.get("input_schema")
    is_flat = function is None and word_of(members.get("type", NULL)) == "function"
    known: dict[str, Any] = {name: spec[name] for name in _ORDER if spec.get(name, NULL) != NULL}
    if schema is not None:
        known["parameters"] = schema
    if full:
        known = {"description": "", **known, "parameters": _parameters(known.get("parameters"))}
    is_complete = function is None or all(function.get(name) == known.get(name) for name in _ORDER)
    if schema is None and not is_flat and is_complete:
        return raw
    ordered = {name: known[name] for name in _ORDER if name in known}
    return {"type": "function", "function": ordered}


def _parameters(written: msgspec.Raw | None) -> msgspec.Raw | dict[str, Any]:
    """A function's parameters with all members that some models require."""
    members = {} if written is None else members_of(written)
    if written is not None and (members is None or _REQUIRED.keys() <= members.keys()):
        return written
    return _REQUIRED | (members or {})


_REQUIRED: dict[str, Any] = {"type": "object", "properties": {}}
_ORDER = ("name", "description", "parameters", "strict")


def flat_function(written: msgspec.Raw) -> msgspec.Raw:
    """OpenAI's function, or choice of one, as the Responses API writes it: without an object."""
    function = members_of(object_of(written).get("function", NULL))
    return written if function is None else made({"type": "function", **function})


def flat_tools(tools: msgspec.Raw) -> msgspec.Raw:
    """OpenAI's functions as the Responses API writes them."""
    raws = elements_of(tools)
    return tools if raws is None else made(list(map(flat_function, raws)))


def chat_tool_choice(choice: msgspec.Raw) -> msgspec.Raw:
    """Anthropic's and Converse's choice as OpenAI's."""
    value = value_of(choice)
    if not isinstance(value, dict):
        return choice
    kind = value.get("type") or next(iter(value), "")
    if isinstance(kind, str) and kind in _CHOICES:
        return made(_CHOICES[kind])
    if kind == "function" and "function" not in value:
        return made({"type": "function", "function": {"name": value.get("name")}})
    if kind == "tool":
        inner = value.get("tool")
        name = inner.get("name") if isinstance(inner, dict) else value.get("name")
        return made({"type": "function", "function": {"name": name}})
    return choice


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def function_call(members: dict[str, msgspec.Raw]) -> dict[str, Any]:
    """A call in a conversation, by any vendor, in OpenAI's form."""
    id_ = members.get("call_id") or members.get("id") or members.get("toolUseId") or ""
    given = members.get("input") or members.get("arguments") or msgspec.Raw(b"{}")
    arguments = given if begins(given, b'"') else compact(given).decode(errors="replace")
    function = {"name": members.get("name") or "", "arguments": arguments}
    return {"id": id_, "type": "function", "function": function}


class ToolCall(NamedTuple):
    """A call that a model requests; its arguments are what it wrote, mostly JSON."""

    id: str
    name: str
    arguments: bytes


def arguments_object(call: ToolCall) -> msgspec.Raw | dict[str, str]:
    """A call's arguments as an object on one line; anything else is put in one, as text."""
    if members_of(call.arguments) is not None:
        return msgspec.Raw(one_line(call.arguments))
    return {"arguments": call.arguments.decode(errors="replace")}


def tool_calls_of(raw: Json) -> list[ToolCall]:
    """The calls in an answer, in OpenAI's or Workers AI's own shape, that name a function."""
    calls = value_of(raw)
    found = [_tool_call(call) for call in calls] if isinstance(calls, list) else []
    return [call for call in found if call]


def _tool_call(call: Any) -> ToolCall | None:  # whatever the API sent
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

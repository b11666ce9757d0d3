"""Tools of a chat request, and the calls that an answer makes, in all vendors' shapes.

Anything of unknown shape is sent as written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shared.formats.base import Json, elements_of, encode, members_of, splice, splice_array, value_of


def chat_tools(tools: Json) -> Json:
    """Anthropic's and Converse's tools as OpenAI's functions."""
    raws = elements_of(tools)
    if raws is None:
        return tools
    changed = [_openai_tool(raw) for raw in raws]
    return tools if changed == raws else splice_array(changed)


def _openai_tool(raw: Json) -> Json:
    members = members_of(raw) or {}
    spec = members_of(members.get("toolSpec", b"null")) or members
    schema = (members_of(spec.get("inputSchema", b"null")) or {}).get("json") or spec.get("input_schema")
    if schema is None:
        return raw
    known = [(name, spec[name]) for name in ("name", "description") if name in spec]
    return splice([("type", b'"function"'), ("function", splice([*known, ("parameters", schema)]))])


def flat_tools(tools: Json) -> Json:
    """OpenAI's functions as the Responses API writes them: without the object around name and parameters."""
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
    if kind in _CHOICES:
        return encode(_CHOICES[kind])
    if kind == "tool":
        inner = value.get("tool")
        name = inner.get("name") if isinstance(inner, dict) else value.get("name")
        return encode({"type": "function", "function": {"name": name}})
    return choice


_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class ToolCall(NamedTuple):
    """A call that a model requests: its id, empty if it has none, the function's name, and its arguments as JSON."""

    id: str
    name: str
    arguments: bytes


def tool_calls_of(raw: Json) -> list[ToolCall]:
    """The calls in an answer, in OpenAI's or Workers AI's own shape; a call that names no function is left out."""
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
    as_json = arguments.encode(errors="replace") if isinstance(arguments, str) else encode(arguments or {})
    return ToolCall(call["id"] if isinstance(call.get("id"), str) else "", name, as_json)

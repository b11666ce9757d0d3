"""Requests of OpenAI's Responses API made from chat requests, and the other way round."""

from __future__ import annotations

from typing import Any

import msgspec

from dropbatch.core.formats.base import (
    NULL,
    BadRecordError,
    Target,
    begins,
    elements_of,
    made,
    members_of,
    object_of,
    word_of,
)
from dropbatch.core.formats.conversion.members import RESPONSES_NAMES
from dropbatch.core.formats.conversion.messages import text_of_result
from dropbatch.core.formats.conversion.tools import flat_function, flat_tools, function_call

Request = dict[str, msgspec.Raw]


# ── from chat ─────────────────────────────────────────────────────────────────────────────────────


def to_responses(request: Request, origins: dict[str, str]) -> None:
    """Turn a chat request into one for the Responses API; `origins` learns the record's names."""
    if "messages" in request:
        request["input"] = _items(request.pop("messages"))
    for old, new in RESPONSES_NAMES.items():
        value = request.pop(old, None)
        if value is not None and new not in request:
            request[new], origins[new] = value, origins.get(old, old)
    if "reasoning_effort" in request:
        effort = request.pop("reasoning_effort")
        if "reasoning" not in request:
            request["reasoning"] = made({"effort": effort})
            origins["reasoning.effort"] = origins.get("reasoning_effort", "reasoning_effort")
    if "response_format" in request:
        format_ = _flat_format(request.pop("response_format"))
        request.setdefault("text", made({"format": format_}))
    if "tools" in request:
        request["tools"] = flat_tools(request["tools"])
    if "tool_choice" in request:
        request["tool_choice"] = flat_function(request["tool_choice"])


def _items(messages: msgspec.Raw) -> msgspec.Raw:
    """Messages as items; they are the same unless tools were called."""
    if b'"tool' not in bytes(messages):
        return messages
    items: list[msgspec.Raw | dict[str, Any]] = []
    for index, raw in enumerate(elements_of(messages) or []):
        message = object_of(raw)
        calls = elements_of(message.get("tool_calls", NULL))
        if word_of(message.get("role", NULL)) == "tool":
            output = text_of_result(message.get("content", NULL), f"messages[{index}].content")
            call_id = message.get("tool_call_id") or ""
            items.append({"type": "function_call_output", "call_id": call_id, "output": output})
        elif calls is None:
            items.append(raw)
        else:
            if word_of(message.get("content", NULL)):
                items.append(_without(message, "tool_calls"))
            items += map(_call_item, calls)
    return made(items)


def _without(members: dict[str, msgspec.Raw], name: str) -> dict[str, msgspec.Raw]:
    return {one: value for one, value in members.items() if one != name}


def _call_item(raw: msgspec.Raw) -> dict[str, Any]:
    call = object_of(raw)
    function = object_of(call.get("function", NULL))
    return {
        "type": "function_call",
        "call_id": call.get("id") or "",
        "name": function.get("name") or "",
        "arguments": function.get("arguments") or "{}",
    }


def _flat_format(response_format: msgspec.Raw) -> msgspec.Raw | dict[str, Any]:
    """OpenAI's `response_format` as the Responses API writes it: the schema next to its name."""
    inner = members_of(object_of(response_format).get("json_schema", NULL))
    return response_format if inner is None else {"type": "json_schema", **_without(inner, "type")}


# ── to chat ───────────────────────────────────────────────────────────────────────────────────────


def to_chat(request: Request, origins: dict[str, str], target: Target, path: str) -> list[int]:
    """Turn it into a chat request, or `BadRecordError`; the index of the item of each message."""
    request["messages"], places = _messages(request.pop("input"), path)
    for old, new in (("instructions", "system"), ("max_output_tokens", "max_tokens")):
        if old in request:
            value = request.pop(old)
            if new not in request:
                request[new], origins[new] = value, origins.get(old, old)
    text = object_of(request.pop("text", NULL))
    if "format" in text:
        request.setdefault("response_format", _wrapped_format(text["format"]))
    effort = object_of(request.pop("reasoning", NULL)).get("effort", NULL)
    takes_effort = "reasoning_effort" in target.schema.members
    if effort != NULL and takes_effort and "reasoning_effort" not in request:
        request["reasoning_effort"] = effort
        origins["reasoning_effort"] = f"{origins.get('reasoning', 'reasoning')}.effort"
    for index, raw in enumerate(elements_of(request.get("tools", NULL)) or []):
        if word_of(object_of(raw).get("type", NULL)) != "function":
            raise BadRecordError(
                f"{path}.tools[{index}]", "The models of Workers AI call functions, no other tools."
            )
    return places


def _messages(given: msgspec.Raw, path: str) -> tuple[msgspec.Raw, list[int]]:
    """A text, or items, as messages, and the index of the item that each is made of."""
    if begins(given, b'"'):
        return made([{"role": "user", "content": given}]), [0]
    items = elements_of(given)
    if items is None:
        raise BadRecordError(f"{path}.input", "It must be a string or an array of items.")
    messages: list[dict[str, Any]] = []
    places: list[int] = []
    calls: list[dict[str, Any]] = []
    for index, item in enumerate(map(object_of, items)):
        kind, place = word_of(item.get("type", NULL)), f"{path}.input[{index}]"
        if kind == "function_call":
            if not calls:
                messages.append({"role": "assistant", "content": "", "tool_calls": calls})
                places.append(index)
            calls.append(function_call(item))
            places[-1] = index
            continue
        calls = []
        if kind == "function_call_output":
            output = text_of_result(item.get("output", NULL), f"{place}.output")
            call_id = item.get("call_id") or ""
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        elif "role" in item:
            messages.append({name: item[name] for name in ("role", "content") if name in item})
        elif kind != "reasoning":
            raise BadRecordError(place, "It must be a message, or a function's call or output.")
        places += [index] * (len(messages) - len(places))
    return made(messages), places


def _wrapped_format(format_: msgspec.Raw) -> msgspec.Raw:
    """`text.format` as chat's `response_format`."""
    members = object_of(format_)
    if word_of(members.get("type", NULL)) != "json_schema":
        return format_
    return made({"type": "json_schema", "json_schema": _without(members, "type")})


# ── what a chat model is to answer with ───────────────────────────────────────────────────────────


def response_format(written: msgspec.Raw, target: Target) -> msgspec.Raw | None:
    """`response_format` as the model takes it, perhaps with type and name; None for plain text."""
    members: dict[str, Any] | None = members_of(written)
    if members is None:
        return written
    if word_of(members.get("type", NULL)) == "text":
        return None
    if "json_schema" not in members and begins(members.get("schema", NULL), b"{"):
        members = {"type": "json_schema", "json_schema": made(_without(members, "type"))}
        written = made(members)
    inner = members_of(members.get("json_schema", NULL))
    if inner is None:
        return written
    is_wrapped = begins(inner.get("schema", NULL), b"{") and inner.keys() <= _WRAPPER
    if target.plain_schema and is_wrapped:
        return made({**members, "json_schema": inner["schema"]})
    if target.schema.named_schema and "name" not in inner:
        schema = inner if is_wrapped else {"schema": members["json_schema"]}
        return made({**members, "json_schema": {"name": "answer", **schema}})
    return written


_WRAPPER = frozenset({"type", "name", "description", "schema", "strict"})

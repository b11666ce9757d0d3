"""Requests of OpenAI's Responses API made from chat requests, and the other way round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dropbatch.core.formats.base import (
    NULL,
    BadRecordError,
    Json,
    begins,
    elements_of,
    members_of,
    splice,
    splice_array,
    word_of,
)
from dropbatch.core.formats.conversion.members import RESPONSES_NAMES
from dropbatch.core.formats.conversion.messages import text_of_result
from dropbatch.core.formats.conversion.tools import flat_choice, flat_tools, function_call

if TYPE_CHECKING:
    from dropbatch.core.formats.base import Target

    Request = dict[str, Json]


# ── from chat ─────────────────────────────────────────────────────────────────────────────────────


def to_responses(request: Request, origins: dict[str, str]) -> None:
    """Turn a chat request into one for the Responses API.

    `origins` learns the names that the record has.
    """
    if "messages" in request:
        request["input"] = _items(request.pop("messages"))
    for old, new in RESPONSES_NAMES.items():
        if old in request:
            request.setdefault(new, request.pop(old))
    if "reasoning_effort" in request:
        effort = request.pop("reasoning_effort")
        if "reasoning" not in request:
            request["reasoning"] = splice([("effort", effort)])
            origins["reasoning.effort"] = origins.get("reasoning_effort", "reasoning_effort")
    if "response_format" in request:
        request.setdefault(
            "text", splice([("format", _flat_format(request.pop("response_format")))])
        )
    if "tools" in request:
        request["tools"] = flat_tools(request["tools"])
    if "tool_choice" in request:
        request["tool_choice"] = flat_choice(request["tool_choice"])


def _items(messages: Json) -> Json:
    """Messages as items; they are the same unless tools were called."""
    if b'"tool' not in bytes(messages):
        return messages
    items: list[Json] = []
    for index, raw in enumerate(elements_of(messages) or []):
        message = members_of(raw) or {}
        calls = elements_of(message.get("tool_calls", NULL)) if "tool_calls" in message else None
        if word_of(message.get("role", NULL)) == "tool":
            call_id = message.get("tool_call_id") or b'""'
            output = text_of_result(message.get("content", NULL), f"messages[{index}].content")
            items.append(
                splice(
                    [("type", b'"function_call_output"'), ("call_id", call_id), ("output", output)]
                )
            )
        elif calls is None:
            items.append(raw)
        else:
            if word_of(message.get("content", NULL)):
                items.append(
                    splice((name, value) for name, value in message.items() if name != "tool_calls")
                )
            items += map(_call_item, calls)
    return splice_array(items)


def _call_item(raw: Json) -> bytes:
    call = members_of(raw) or {}
    function = members_of(call.get("function", NULL)) or {}
    arguments = function.get("arguments") or b'"{}"'
    named = [
        ("call_id", call.get("id") or b'""'),
        ("name", function.get("name") or b'""'),
        ("arguments", arguments),
    ]
    return splice([("type", b'"function_call"'), *named])


def _flat_format(response_format: Json) -> Json:
    """OpenAI's `response_format` as the Responses API writes it.

    With the schema next to its name.
    """
    members = members_of(response_format) or {}
    inner = members_of(members.get("json_schema", NULL))
    if inner is None:
        return response_format
    return splice(
        [
            ("type", b'"json_schema"'),
            *((name, raw) for name, raw in inner.items() if name != "type"),
        ]
    )


# ── to chat ───────────────────────────────────────────────────────────────────────────────────────


def to_chat(request: Request, origins: dict[str, str], target: Target, path: str) -> list[int]:
    """Turn a request of the Responses API into a chat request.

    `origins` learns the names that the record has.

    Returns:
        for each message, the index of the item that it is made of.

    Raises:
        BadRecordError: it has an item or a tool that has no counterpart in chat.
    """
    request["messages"], places = _messages(request.pop("input"), path)
    for old, new in (("instructions", "system"), ("max_output_tokens", "max_tokens")):
        if old in request:
            value = request.pop(old)
            if new not in request:
                request[new], origins[new] = value, origins.get(old, old)
    text = members_of(request.pop("text", NULL)) or {}
    if "format" in text:
        request.setdefault("response_format", _wrapped_format(text["format"]))
    effort = (members_of(request.pop("reasoning", NULL)) or {}).get("effort", NULL)
    if (
        bytes(effort) != b"null"
        and "reasoning_effort" in target.schema.members
        and "reasoning_effort" not in request
    ):
        request["reasoning_effort"], origins["reasoning_effort"] = (
            effort,
            f"{origins.get('reasoning', 'reasoning')}.effort",
        )
    for index, raw in enumerate(elements_of(request.get("tools", b"[]")) or []):
        if word_of((members_of(raw) or {}).get("type", NULL)) != "function":
            raise BadRecordError(
                f"{path}.tools[{index}]", "The models of Workers AI call functions, no other tools."
            )
    return places


def _messages(given: Json, path: str) -> tuple[Json, list[int]]:
    """A text, or items, as messages, and the index of the item that each is made of."""
    if begins(given, b'"'):
        return splice_array([splice([("role", b'"user"'), ("content", given)])]), [0]
    items = elements_of(given)
    if items is None:
        raise BadRecordError(f"{path}.input", "It must be a string or an array of items.")
    messages: list[Json] = []
    places: list[int] = []
    calls: list[bytes] = []
    for index, raw in enumerate(items):
        item = members_of(raw) or {}
        kind = word_of(item.get("type", NULL))
        if kind == "function_call":
            calls.append(function_call(item))
            continue
        if calls:
            messages.append(_calling(calls))
            places.append(index - 1)
            calls = []
        if kind == "function_call_output":
            output = text_of_result(item.get("output", NULL), f"{path}.input[{index}].output")
            known: list[tuple[str, Json]] = [
                ("tool_call_id", item.get("call_id") or b'""'),
                ("content", output),
            ]
            messages.append(splice([("role", b'"tool"'), *known]))
        elif "role" in item:
            messages.append(
                splice((name, item[name]) for name in ("role", "content") if name in item)
            )
        elif kind != "reasoning":
            raise BadRecordError(
                f"{path}.input[{index}]", "It must be a message, or a function's call or output."
            )
        places += [index] * (len(messages) - len(places))
    if calls:
        messages.append(_calling(calls))
        places.append(len(items) - 1)
    return splice_array(messages), places


def _calling(calls: list[bytes]) -> bytes:
    return splice(
        [("role", b'"assistant"'), ("content", b'""'), ("tool_calls", splice_array(calls))]
    )


def _wrapped_format(format_: Json) -> Json:
    """`text.format` as chat's `response_format`."""
    members = members_of(format_) or {}
    if word_of(members.get("type", NULL)) != "json_schema":
        return format_
    inner = splice((name, raw) for name, raw in members.items() if name != "type")
    return splice([("type", b'"json_schema"'), ("json_schema", inner)])


# ── what a chat model is to answer with ───────────────────────────────────────────────────────────


def response_format(written: Json, target: Target) -> Json | None:
    """`response_format` as the model takes it; None for plain text, which needs none.

    It may lack its type, and its schema may lack the name that some models require.
    """
    members = members_of(written)
    if members is None:
        return written
    kind = word_of(members.get("type", NULL))
    if kind == "text":
        return None
    if "json_schema" not in members and begins(members.get("schema", NULL), b"{"):
        wrapped = splice((name, raw) for name, raw in members.items() if name != "type")
        members = {"type": msgspec.Raw(b'"json_schema"'), "json_schema": msgspec.Raw(wrapped)}
        written = splice(members.items())
    inner = members_of(members.get("json_schema", NULL))
    if inner is None:
        return written
    is_wrapped = begins(inner.get("schema", NULL), b"{") and inner.keys() <= _WRAPPER
    if target.plain_schema and is_wrapped:
        return splice(
            (name, inner["schema"] if name == "json_schema" else raw)
            for name, raw in members.items()
        )
    if target.schema.named_schema and "name" not in inner:
        schema = [*inner.items()] if is_wrapped else [("schema", members["json_schema"])]
        named = splice([("name", b'"answer"'), *schema])
        return splice(
            (name, named if name == "json_schema" else raw) for name, raw in members.items()
        )
    return written


_WRAPPER = frozenset({"type", "name", "description", "schema", "strict"})

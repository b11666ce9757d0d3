"""OpenAI's `response` objects, built from Workers AI's answers, valid for the types of OpenAI's own SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from dropbatch.core.formats.answers import Answer, Tokens, numbers_of, read_answer
from dropbatch.core.formats.base import (
    NULL,
    Json,
    begins,
    elements_of,
    encode,
    json_text,
    members_of,
    splice,
    splice_array,
    word_of,
)

if TYPE_CHECKING:
    from dropbatch.core.formats.base import BatchFacts


def response_object(facts: BatchFacts, id_: int, result: Json, *, is_base64: bool = False) -> bytes:  # noqa: ARG001
    """A `response`."""
    answer = read_answer(result)
    members = answer.members
    name = f"{facts.job_id}-{id_}"
    output = [
        _output_item(raw, f"{name}-{at}") for at, raw in enumerate(elements_of(members.get("output", NULL)) or [])
    ]
    if not output:
        output = _made_output(answer, result, name)
    has_ended = word_of(members.get("status", NULL)) in {"failed", "cancelled"}
    if answer.finish == "length" and not has_ended and "incomplete_details" not in members:
        members = {**members, "incomplete_details": msgspec.Raw(b'{"reason":"max_output_tokens"}')}
    kept = [(member, raw) for member, raw in members.items() if member not in _RESPONSE_MEMBERS]
    status = members.get("status", NULL)
    parallel = members["parallel_tool_calls"] if _is_bool(members, "parallel_tool_calls") else b"true"
    own: list[tuple[str, Json]] = [
        ("id", members["id"] if begins(members.get("id", NULL), b'"') else encode(f"resp_{name}")),
        ("object", b'"response"'),
        ("created_at", b"%d" % facts.accepted_at),
        ("status", status if word_of(status) in _RESPONSE_STATUSES else encode(_STATUS[answer.finish == "length"])),
        ("model", encode(facts.model)),
        ("output", splice_array(output)),
        ("parallel_tool_calls", parallel),
        ("tool_choice", members["tool_choice"] if begins(members.get("tool_choice", NULL), b"{") else b'"auto"'),
        ("tools", members["tools"] if begins(members.get("tools", NULL), b"[") else b"[]"),
        ("usage", _responses_usage(members, answer.tokens)),
    ]
    return splice([*own, *kept])


def _made_output(answer: Answer, result: Json, name: str) -> list[Json]:
    """The items of an answer that a chat model gave: its reasoning, its text, its calls."""
    items: list[Json] = []
    if answer.reasoning is not None:
        thought = splice([("type", b'"reasoning_text"'), ("text", answer.reasoning)])
        known = [("type", b'"reasoning"'), ("id", encode(f"rs_{name}")), ("summary", b"[]")]
        items.append(splice([*known, ("content", splice_array([thought]))]))
    if answer.text is not None or not (answer.is_known or answer.calls):
        text = json_text(result) if answer.text is None else answer.text
        items.append(_output_message({}, f"msg_{name}", splice_array([_output_text(text)])))
    for index, call in enumerate(answer.calls):
        id_ = encode(call.id or f"call_{name}-{index}")
        named = [("name", encode(call.name)), ("arguments", encode(call.arguments.decode(errors="replace")))]
        items.append(splice([("type", b'"function_call"'), ("call_id", id_), *named, ("status", b'"completed"')]))
    return items


_RESPONSE_MEMBERS = frozenset(
    {
        *("id", "object", "created_at", "status", "model", "output", "parallel_tool_calls", "tool_choice", "tools"),
        *("usage", "response", "output_text", "choices", "created", "tool_calls", "prompt_logprobs"),
    }
)
_STATUS = ("completed", "incomplete")
_RESPONSE_STATUSES = frozenset({"completed", "failed", "in_progress", "cancelled", "queued", "incomplete"})


def _is_bool(members: dict[str, msgspec.Raw], name: str) -> bool:
    return bytes(members.get(name, NULL)) in {b"true", b"false"}


def _output_item(raw: msgspec.Raw, name: str) -> Json:
    """An item of `output` with what OpenAI's types require; an item of an unknown kind is unchanged."""
    item = members_of(raw) or {}
    kind = word_of(item.get("type", NULL))
    if kind == "reasoning":
        added: dict[str, Json] = {"id": encode(f"rs_{name}"), "summary": b"[]"}
        return splice({**added, **_without_nulls(item)}.items())
    if kind == "function_call":
        call_id: Json = item.get("call_id") or item.get("id") or encode(f"call_{name}")
        return splice({**_without_nulls(item), "call_id": call_id}.items())
    if kind == "message":
        parts = elements_of(item.get("content", NULL)) or []
        return _output_message(item, f"msg_{name}", splice_array(map(_output_part, parts)))
    return raw


def _without_nulls(item: dict[str, msgspec.Raw]) -> dict[str, Json]:
    return {name: raw for name, raw in item.items() if bytes(raw) != b"null"}


def _output_message(item: dict[str, msgspec.Raw], id_: str, content: bytes) -> bytes:
    added: dict[str, Json] = {"id": encode(id_), "status": b'"completed"'}
    fixed: dict[str, Json] = {"type": b'"message"', "role": b'"assistant"', "content": content}
    return splice({**added, **_without_nulls(item), **fixed}.items())


def _output_part(raw: msgspec.Raw) -> Json:
    part = members_of(raw) or {}
    if word_of(part.get("type", NULL)) not in {"output_text", "text"} or not begins(part.get("text", NULL), b'"'):
        return raw
    fixed: dict[str, Json] = {"type": b'"output_text"'}
    return splice({"annotations": b"[]", **_without_nulls(part), **fixed}.items())


def _output_text(text: Json) -> bytes:
    return splice([("type", b'"output_text"'), ("annotations", b"[]"), ("text", text)])


def _responses_usage(members: dict[str, msgspec.Raw], tokens: Tokens) -> bytes:
    usage = members_of(members.get("usage", NULL)) or {}
    details: list[tuple[str, Json]] = []
    for name, zeros in _USAGE_DETAILS.items():
        numbers = numbers_of(usage.get(name) or usage.get(_CHAT_DETAILS[name]) or NULL)
        details.append((name, encode(zeros | numbers)))
    counted = (("input_tokens", tokens.input), ("output_tokens", tokens.output), ("total_tokens", tokens.total))
    return splice([*((name, b"%d" % count) for name, count in counted), *details])


_CHAT_DETAILS = {
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
}
_USAGE_DETAILS: dict[str, dict[str, int]] = {
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}

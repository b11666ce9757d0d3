"""OpenAI's response objects, valid for the types of its SDK, built from Workers AI's answers.

Members that the API sends and OpenAI's types do not have are kept, such as `reasoning_content`.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from dropbatch.core.formats.answers import (
    Answer,
    TokenCounts,
    finish_of,
    numbers_of,
    read_answer,
    text_value,
    vectors_of,
)
from dropbatch.core.formats.base import (
    NULL,
    UNDECODABLE,
    BatchFacts,
    Json,
    begins,
    elements_of,
    members_of,
    object_of,
    word_of,
)
from dropbatch.core.formats.conversion.requests import Endpoint
from dropbatch.core.formats.conversion.tools import ToolCall, tool_calls_of

Members = dict[str, msgspec.Raw]


FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})

_decode_numbers = msgspec.json.Decoder(list[float]).decode


# ── chat and text completions ─────────────────────────────────────────────────────────────────────


def chat_completion(facts: BatchFacts, id_: int, result: Json) -> dict[str, Any]:
    """A `chat.completion`."""
    answer, name = read_answer(result), f"{facts.job_id}-{id_}"
    found = [
        members_of(choice) for choice in elements_of(answer.members.get("choices", NULL)) or []
    ]
    if found and all(one and members_of(one.get("message", NULL)) is not None for one in found):
        choices = [_chat_choice(name, index, one or {}) for index, one in enumerate(found)]
    else:
        text = answer.text if answer.is_known or answer.calls else text_value(result)
        message = _message(text, answer.calls, name)
        if answer.reasoning is not None:
            message["reasoning_content"] = answer.reasoning
        choices = [_choice(0, _finish(answer.finish, answer.calls), message=message)]
    return _head("chat.completion", f"chatcmpl-{name}", facts, answer) | {
        "choices": choices,
        "usage": _usage(answer),
    }


def _chat_choice(name: str, index: int, choice: Members) -> dict[str, Any]:
    """One of the API's choices with what OpenAI's types require; its other members are kept."""
    members = object_of(choice["message"])
    content = members.get("content", NULL)
    calls = tool_calls_of(members.get("tool_calls", NULL))
    refusal = members.get("refusal", NULL)
    message = _message(None if content == NULL else text_value(content), calls, f"{name}-{index}")
    message["refusal"] = refusal if begins(refusal, b'"') else None
    message |= {name: raw for name, raw in members.items() if name not in _MESSAGE_MEMBERS}
    rest = {name: raw for name, raw in choice.items() if name not in _CHOICE_MEMBERS}
    logprobs = choice.get("logprobs", NULL)
    has_tokens = begins(object_of(logprobs).get("content", NULL), b"[")
    finish = _finish(finish_of(choice.get("finish_reason", NULL)), calls)
    return _choice(index, finish, message=message, logprobs=logprobs if has_tokens else None) | rest


_CHOICE_MEMBERS = frozenset({"index", "message", "finish_reason", "logprobs"})
_MESSAGE_MEMBERS = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "annotations", "audio"}
)


def _message(content: str | None, calls: list[ToolCall], call_id: str) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message["tool_calls"] = [
            _tool_call(call, f"call_{call_id}-{at}") for at, call in enumerate(calls)
        ]
    return message


def _tool_call(call: ToolCall, made_up: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments.decode(errors="replace")}
    return {"id": call.id or made_up, "type": "function", "function": function}


def _choice(
    index: int, finish: str, *, logprobs: Json | None = None, **content: object
) -> dict[str, Any]:
    return {"index": index, **content, "logprobs": logprobs, "finish_reason": finish}


def _finish(reason: str, calls: list[ToolCall]) -> str:
    if reason in FINISH_REASONS:
        return reason
    return "tool_calls" if calls else "stop"


def text_completion(facts: BatchFacts, id_: int, result: Json) -> dict[str, Any]:
    """A `text_completion`."""
    answer = read_answer(result)
    text = answer.text or ("" if answer.is_known else text_value(result))
    finish = answer.finish if answer.finish in {"length", "content_filter"} else "stop"
    head = _head("text_completion", f"cmpl-{facts.job_id}-{id_}", facts, answer)
    return head | {"choices": [_choice(0, finish, text=text)], "usage": _usage(answer)}


def _head(kind: str, id_: str, facts: BatchFacts, answer: Answer) -> dict[str, Any]:
    own_id = answer.members.get("id", NULL)
    fingerprint = answer.members.get("system_fingerprint", NULL)
    return {
        "id": own_id if begins(own_id, b'"') else id_,
        "object": kind,
        "created": int(facts.accepted_at),
        "model": facts.model,
        **({"system_fingerprint": fingerprint} if begins(fingerprint, b'"') else {}),
    }


def _usage(answer: Answer) -> dict[str, Any]:
    usage = object_of(answer.members.get("usage", NULL))
    details = {
        name: numbers_of(usage.get(name) or usage.get(theirs) or NULL)
        for name, theirs in _USAGE_DETAILS.items()
    }
    counts = dict(zip(_USAGE_COUNTS, answer.tokens, strict=True))
    return counts | {name: found for name, found in details.items() if found}


_USAGE_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_USAGE_DETAILS = {
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens_details": "output_tokens_details",
}
"""Details of a chat completion's usage, and the Responses API's names for them."""


# ── embeddings ────────────────────────────────────────────────────────────────────────────────────


def embedding_list(facts: BatchFacts, _: int, result: Json) -> dict[str, Any] | None:
    """A `list` of `embedding`s; None if the result has none."""
    answer = read_answer(result)
    vectors = vectors_of(answer.members)
    if not vectors:
        return None
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": one}
            for index, one in enumerate(vectors)
        ],
        "model": facts.model,
        "usage": {"prompt_tokens": answer.tokens.input, "total_tokens": answer.tokens.total},
    }


def base64_list(facts: BatchFacts, id_: int, result: Json) -> dict[str, Any] | None:
    """The same list, with its vectors in base64."""
    made = embedding_list(facts, id_, result)
    for one in made["data"] if made else ():
        one["embedding"] = _base64_vector(one["embedding"]) or one["embedding"]
    return made


def _base64_vector(vector: Json) -> str | None:
    """Numbers as little-endian float32 in base64; None if they are not numbers."""
    try:
        numbers = array("f", _decode_numbers(vector))
    except UNDECODABLE:
        return None
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()


# ── the Responses API ─────────────────────────────────────────────────────────────────────────────

_OWN_MEMBERS = frozenset(
    (
        *("id", "object", "created_at", "status", "model", "output", "parallel_tool_calls"),
        *("tool_choice", "tools", "usage", "response", "output_text", "choices", "created"),
        *("tool_calls", "prompt_logprobs"),
    )
)
_STATUSES = frozenset({"completed", "failed", "in_progress", "cancelled", "queued", "incomplete"})
_CHAT_DETAILS = {theirs: name for name, theirs in _USAGE_DETAILS.items()}
_DETAILS = {
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


def response_object(facts: BatchFacts, id_: int, result: Json) -> dict[str, Any]:
    """A `response`."""
    answer, name = read_answer(result), f"{facts.job_id}-{id_}"
    members = answer.members
    items = elements_of(members.get("output", NULL)) or []
    output = [_output_item(raw, f"{name}-{at}") for at, raw in enumerate(items)]
    is_cut = answer.finish == "length"
    kept: dict[str, Any] = {
        member: raw for member, raw in members.items() if member not in _OWN_MEMBERS
    }
    if is_cut and word_of(members.get("status", NULL)) not in {"failed", "cancelled"}:
        kept.setdefault("incomplete_details", {"reason": "max_output_tokens"})

    def given(member: str, signs: bytes, otherwise: object) -> object:
        """A member of the API's, if it begins with one of these signs."""
        raw = members.get(member, NULL)
        return raw if bytes(raw)[:1] in signs.split() else otherwise

    status = word_of(members.get("status", NULL))
    return {
        "id": given("id", b'"', f"resp_{name}"),
        "object": "response",
        "created_at": int(facts.accepted_at),
        "status": status if status in _STATUSES else "incomplete" if is_cut else "completed",
        "model": facts.model,
        "output": output or _made_output(answer, result, name),
        "parallel_tool_calls": given("parallel_tool_calls", b"t f", otherwise=True),
        "tool_choice": given("tool_choice", b"{", "auto"),
        "tools": given("tools", b"[", []),
        "usage": _tokens_used(members, answer.tokens),
        **kept,
    }


def _made_output(answer: Answer, result: Json, name: str) -> list[dict[str, Any]]:
    """The items of an answer that a chat model gave: its reasoning, its text, its calls."""
    items: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        thought = {"type": "reasoning_text", "text": answer.reasoning}
        items.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": [thought]})
    if answer.text is not None or not (answer.is_known or answer.calls):
        text = text_value(result) if answer.text is None else answer.text
        part = {"type": "output_text", "annotations": [], "text": text}
        items.append(_message_item({}, f"msg_{name}", [part]))
    for index, call in enumerate(answer.calls):
        named = {"name": call.name, "arguments": call.arguments.decode(errors="replace")}
        call_id = call.id or f"call_{name}-{index}"
        items.append({"type": "function_call", "call_id": call_id, **named, "status": "completed"})
    return items


def _output_item(raw: msgspec.Raw, name: str) -> object:
    """An item of `output` with what OpenAI's types require.

    An item of an unknown kind is unchanged.
    """
    item = _without_nulls(object_of(raw))
    kind = word_of(item.get("type", NULL))
    if kind == "reasoning":
        return {"id": f"rs_{name}", "summary": [], **item}
    if kind == "function_call":
        return {**item, "call_id": item.get("call_id") or item.get("id") or f"call_{name}"}
    if kind == "message":
        parts = elements_of(item.get("content", NULL)) or []
        return _message_item(item, f"msg_{name}", list(map(_part, parts)))
    return raw


def _without_nulls(item: Members) -> Members:
    return {name: raw for name, raw in item.items() if raw != NULL}


def _message_item(item: Members, id_: str, content: list[Any]) -> dict[str, Any]:
    own = {"type": "message", "role": "assistant", "content": content}
    return {"id": id_, "status": "completed", **item, **own}


def _part(raw: msgspec.Raw) -> object:
    part = object_of(raw)
    is_text = word_of(part.get("type", NULL)) in {"output_text", "text"}
    if is_text and begins(part.get("text", NULL), b'"'):
        return {"annotations": [], **_without_nulls(part), "type": "output_text"}
    return raw


def _tokens_used(members: Members, tokens: TokenCounts) -> dict[str, Any]:
    usage = object_of(members.get("usage", NULL))
    counts: dict[str, Any] = dict(
        zip(("input_tokens", "output_tokens", "total_tokens"), tokens, strict=True)
    )
    for name, zeros in _DETAILS.items():
        counts[name] = zeros | numbers_of(usage.get(name) or usage.get(_CHAT_DETAILS[name]) or NULL)
    return counts


OBJECTS: dict[Endpoint, Callable[[BatchFacts, int, Json], dict[str, Any] | None]] = {
    Endpoint.CHAT: chat_completion,
    Endpoint.COMPLETIONS: text_completion,
    Endpoint.EMBEDDINGS: embedding_list,
    Endpoint.RESPONSES: response_object,
}

"""OpenAI's response objects, built from Workers AI's answers, valid for the types of OpenAI's own SDK.

Members that the API sends and OpenAI's types do not have are kept, such as a reasoning model's `reasoning_content`.
"""

from __future__ import annotations

import base64
import sys
from array import array
from typing import TYPE_CHECKING, Protocol

import msgspec

from shared.formats.answers import Answer, Tokens, read_answer, vectors_of
from shared.formats.base import (
    NULL,
    UNDECODABLE,
    Json,
    begins,
    elements_of,
    encode,
    json_text,
    members_of,
    splice,
    splice_array,
    value_of,
    word_of,
)
from shared.formats.requests import Endpoint
from shared.formats.tools import tool_calls_of

if TYPE_CHECKING:
    from shared.formats.base import BatchFacts
    from shared.formats.tools import ToolCall

FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})

_decode_numbers = msgspec.json.Decoder(list[float]).decode


class MakeObject(Protocol):
    """Builds an endpoint's object from the API's result; None if the result is of another kind."""

    def __call__(self, facts: BatchFacts, id_: int, result: Json, *, is_base64: bool = False) -> bytes | None:
        """The object as JSON on one line."""


# ── chat and text completions ────────────────────────────────────────────────────────────────────────────────────────


def chat_completion(facts: BatchFacts, id_: int, result: Json, *, is_base64: bool = False) -> bytes:  # noqa: ARG001
    """A `chat.completion`."""
    answer = read_answer(result)
    choices = elements_of(answer.members.get("choices", NULL)) or []
    found = [members_of(choice) for choice in choices]
    if found and all(one and members_of(one.get("message", NULL)) is not None for one in found):
        made = [_chat_choice(facts, id_, index, one or {}) for index, one in enumerate(found)]
    else:
        text = answer.text if answer.text is not None or answer.calls else json_text(result)
        message = _message({}, text, answer.calls, f"{facts.job_id}-{id_}")
        made = [_choice(0, _finish(answer.finish, answer.calls), ("message", message))]
    head = _head("chat.completion", f"chatcmpl-{facts.job_id}-{id_}", facts, answer)
    return splice([*head, ("choices", splice_array(made)), ("usage", _usage(answer))])


def _chat_choice(facts: BatchFacts, id_: int, index: int, choice: dict[str, msgspec.Raw]) -> bytes:
    """One of the API's choices with what OpenAI's types require; its other members are kept."""
    members = members_of(choice["message"]) or {}
    content = members.get("content", NULL)
    is_text = begins(content, b'"') or bytes(content) == b"null"
    calls = tool_calls_of(members.get("tool_calls", NULL))
    message = _message(members, content if is_text else json_text(content), calls, f"{facts.job_id}-{id_}-{index}")
    finish = word_of(choice.get("finish_reason", NULL))
    rest = [(name, raw) for name, raw in choice.items() if name not in _CHOICE_MEMBERS]
    return _choice(index, _finish(finish, calls), ("message", message), *rest)


_CHOICE_MEMBERS = frozenset({"index", "message", "finish_reason", "logprobs"})
_MESSAGE_MEMBERS = frozenset(
    {"role", "content", "refusal", "tool_calls", "function_call", "annotations", "audio"},
)


def _message(others: dict[str, msgspec.Raw], content: Json | None, calls: list[ToolCall], call_id: str) -> bytes:
    refusal = others.get("refusal", NULL)
    members: list[tuple[str, Json]] = [
        ("role", b'"assistant"'),
        ("content", NULL if content is None else content),
        ("refusal", refusal if begins(refusal, b'"') else NULL),
    ]
    if calls:
        written = splice_array(_tool_call(call, f"{call_id}-{at}") for at, call in enumerate(calls))
        members.append(("tool_calls", written))
    members += [(name, raw) for name, raw in others.items() if name not in _MESSAGE_MEMBERS]
    return splice(members)


def _tool_call(call: ToolCall, made_up: str) -> bytes:
    function = splice([("name", encode(call.name)), ("arguments", encode(call.arguments.decode(errors="replace")))])
    return splice([("id", encode(call.id or f"call_{made_up}")), ("type", b'"function"'), ("function", function)])


def _choice(index: int, finish: str, content: tuple[str, Json], *rest: tuple[str, Json]) -> bytes:
    return splice(
        [("index", b"%d" % index), content, ("logprobs", NULL), ("finish_reason", encode(finish)), *rest],
    )


def _finish(reason: str, calls: list[ToolCall]) -> str:
    if reason in FINISH_REASONS:
        return reason
    return "tool_calls" if calls else "stop"


def text_completion(facts: BatchFacts, id_: int, result: Json, *, is_base64: bool = False) -> bytes:  # noqa: ARG001
    """A `text_completion`."""
    answer = read_answer(result)
    text = json_text(result) if answer.text is None else answer.text
    finish = answer.finish if answer.finish in {"length", "content_filter"} else "stop"
    head = _head("text_completion", f"cmpl-{facts.job_id}-{id_}", facts, answer)
    choices = splice_array([_choice(0, finish, ("text", text))])
    return splice([*head, ("choices", choices), ("usage", _usage(answer))])


def _head(kind: str, id_: str, facts: BatchFacts, answer: Answer) -> list[tuple[str, Json]]:
    own_id = answer.members.get("id", NULL)
    return [
        ("id", own_id if begins(own_id, b'"') else encode(id_)),
        ("object", encode(kind)),
        ("created", b"%d" % facts.accepted_at),
        ("model", encode(facts.model)),
    ]


def _usage(answer: Answer) -> bytes:
    taken, given, total = answer.tokens
    return b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (taken, given, total)


# ── embeddings ───────────────────────────────────────────────────────────────────────────────────────────────────────


def embedding_list(facts: BatchFacts, id_: int, result: Json, *, is_base64: bool = False) -> bytes | None:  # noqa: ARG001
    """A `list` of `embedding`s."""
    answer = read_answer(result)
    vectors = vectors_of(answer.members)
    if not vectors:
        return None
    written: list[Json] = [_base64_vector(one) or one for one in vectors] if is_base64 else [*vectors]
    data = splice_array(
        b'{"object":"embedding","index":%d,"embedding":%b}' % (index, vector) for index, vector in enumerate(written)
    )
    usage = b'{"prompt_tokens":%d,"total_tokens":%d}' % (answer.tokens.input, answer.tokens.total)
    return splice([("object", b'"list"'), ("data", data), ("model", encode(facts.model)), ("usage", usage)])


def _base64_vector(vector: Json) -> bytes | None:
    """Numbers as little-endian float32 in base64, as a JSON string; None if they are not numbers."""
    try:
        numbers = array("f", _decode_numbers(vector))
    except UNDECODABLE:
        return None
    if sys.byteorder == "big":
        numbers.byteswap()
    return b'"%b"' % base64.b64encode(numbers.tobytes())


# ── responses ────────────────────────────────────────────────────────────────────────────────────────────────────────


def response_object(facts: BatchFacts, id_: int, result: Json, *, is_base64: bool = False) -> bytes:  # noqa: ARG001
    """A `response`."""
    answer = read_answer(result)
    members = answer.members
    name = f"{facts.job_id}-{id_}"
    output = [
        _output_item(raw, f"{name}-{at}") for at, raw in enumerate(elements_of(members.get("output", NULL)) or [])
    ]
    if not output:
        text = json_text(result) if answer.text is None else answer.text
        output = [_output_message({}, f"msg_{name}", splice_array([_output_text(text)]))]
    kept = [(member, raw) for member, raw in members.items() if member not in _RESPONSE_MEMBERS]
    status = members.get("status", NULL)
    parallel = members["parallel_tool_calls"] if _is_bool(members, "parallel_tool_calls") else b"true"
    own: list[tuple[str, Json]] = [
        ("id", members["id"] if begins(members.get("id", NULL), b'"') else encode(f"resp_{name}")),
        ("object", b'"response"'),
        ("created_at", b"%d" % facts.accepted_at),
        ("status", status if word_of(status) in _RESPONSE_STATUSES else b'"completed"'),
        ("model", encode(facts.model)),
        ("output", splice_array(output)),
        ("parallel_tool_calls", parallel),
        ("tool_choice", members["tool_choice"] if begins(members.get("tool_choice", NULL), b"{") else b'"auto"'),
        ("tools", members["tools"] if begins(members.get("tools", NULL), b"[") else b"[]"),
        ("usage", _responses_usage(members, answer.tokens)),
    ]
    return splice([*own, *kept])


_RESPONSE_MEMBERS = frozenset(
    {
        *("id", "object", "created_at", "status", "model", "output", "parallel_tool_calls", "tool_choice", "tools"),
        *("usage", "response", "output_text", "choices", "created"),
    }
)
_RESPONSE_STATUSES = frozenset({"completed", "failed", "in_progress", "cancelled", "queued", "incomplete"})


def _is_bool(members: dict[str, msgspec.Raw], name: str) -> bool:
    return bytes(members.get(name, NULL)) in {b"true", b"false"}


def _output_item(raw: msgspec.Raw, name: str) -> Json:
    """An item of `output` with what OpenAI's types require; an item of an unknown kind is unchanged."""
    item = members_of(raw) or {}
    kind = word_of(item.get("type", NULL))
    if kind == "reasoning":
        added: dict[str, Json] = {"id": encode(f"rs_{name}"), "summary": b"[]"}
        return splice({**added, **_told(item)}.items())
    if kind == "message":
        parts = elements_of(item.get("content", NULL)) or []
        return _output_message(item, f"msg_{name}", splice_array(map(_output_part, parts)))
    return raw


def _told(item: dict[str, msgspec.Raw]) -> dict[str, Json]:
    return {name: raw for name, raw in item.items() if bytes(raw) != b"null"}


def _output_message(item: dict[str, msgspec.Raw], id_: str, content: bytes) -> bytes:
    added: dict[str, Json] = {"id": encode(id_), "status": b'"completed"'}
    fixed: dict[str, Json] = {"type": b'"message"', "role": b'"assistant"', "content": content}
    return splice({**added, **_told(item), **fixed}.items())


def _output_part(raw: msgspec.Raw) -> Json:
    part = members_of(raw) or {}
    if word_of(part.get("type", NULL)) not in {"output_text", "text"} or not begins(part.get("text", NULL), b'"'):
        return raw
    fixed: dict[str, Json] = {"type": b'"output_text"'}
    return splice({"annotations": b"[]", **_told(part), **fixed}.items())


def _output_text(text: Json) -> bytes:
    return splice([("type", b'"output_text"'), ("annotations", b"[]"), ("text", text)])


def _responses_usage(members: dict[str, msgspec.Raw], tokens: Tokens) -> bytes:
    usage = members_of(members.get("usage", NULL)) or {}
    details: list[tuple[str, Json]] = []
    for name, zeros in _USAGE_DETAILS.items():
        counts = value_of(usage.get(name, NULL))
        numbers = {key: n for key, n in counts.items() if type(n) is int} if isinstance(counts, dict) else {}
        details.append((name, encode({**zeros, **numbers})))
    counted = (("input_tokens", tokens.input), ("output_tokens", tokens.output), ("total_tokens", tokens.total))
    return splice([*((name, b"%d" % count) for name, count in counted), *details])


_USAGE_DETAILS: dict[str, dict[str, int]] = {
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}

OBJECTS: dict[Endpoint, MakeObject] = {
    Endpoint.CHAT: chat_completion,
    Endpoint.COMPLETIONS: text_completion,
    Endpoint.EMBEDDINGS: embedding_list,
    Endpoint.RESPONSES: response_object,
}
"""The object that each endpoint answers with."""

"""OpenAI's response objects, built from Workers AI's answers, valid for the types of OpenAI's own SDK.

Members that the API sends and OpenAI's types do not have are kept, such as a reasoning model's `reasoning_content`.
"""

from __future__ import annotations

import base64
import sys
from array import array
from typing import TYPE_CHECKING, Protocol

import msgspec

from dropbatch.core.formats.answers import Answer, finish_of, numbers_of, read_answer, vectors_of
from dropbatch.core.formats.base import (
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
)
from dropbatch.core.formats.conversion.requests import Endpoint
from dropbatch.core.formats.conversion.tools import tool_calls_of
from dropbatch.core.formats.vendors.openai_responses import response_object

if TYPE_CHECKING:
    from dropbatch.core.formats.base import BatchFacts
    from dropbatch.core.formats.conversion.tools import ToolCall

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
        text = answer.text if answer.text is not None or answer.is_known or answer.calls else json_text(result)
        thought = {} if answer.reasoning is None else {"reasoning_content": msgspec.Raw(answer.reasoning)}
        message = _message(thought, text, answer.calls, f"{facts.job_id}-{id_}")
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
    finish = finish_of(choice.get("finish_reason", NULL))
    rest = [(name, raw) for name, raw in choice.items() if name not in _CHOICE_MEMBERS]
    logprobs = choice.get("logprobs", NULL)
    kept = logprobs if _is_logprobs(logprobs) else NULL
    return _choice(index, _finish(finish, calls), ("message", message), *rest, logprobs=kept)


class _Top(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class _Token(_Top):
    top_logprobs: list[_Top] = []


class _Logprobs(msgspec.Struct):
    content: list[_Token] | None = None
    refusal: list[_Token] | None = None


_decode_logprobs = msgspec.json.Decoder(_Logprobs).decode


def _is_logprobs(raw: Json) -> bool:
    """Whether these are the probabilities that OpenAI's types describe."""
    try:
        _decode_logprobs(raw)
    except UNDECODABLE:
        return False
    return True


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


def _choice(
    index: int, finish: str, content: tuple[str, Json], *rest: tuple[str, Json], logprobs: Json = NULL
) -> bytes:
    return splice(
        [("index", b"%d" % index), content, ("logprobs", logprobs), ("finish_reason", encode(finish)), *rest],
    )


def _finish(reason: str, calls: list[ToolCall]) -> str:
    if reason in FINISH_REASONS:
        return reason
    return "tool_calls" if calls else "stop"


def text_completion(facts: BatchFacts, id_: int, result: Json, *, is_base64: bool = False) -> bytes:  # noqa: ARG001
    """A `text_completion`."""
    answer = read_answer(result)
    text = answer.text or (b'""' if answer.is_known else json_text(result))
    finish = answer.finish if answer.finish in {"length", "content_filter"} else "stop"
    head = _head("text_completion", f"cmpl-{facts.job_id}-{id_}", facts, answer)
    choices = splice_array([_choice(0, finish, ("text", text))])
    return splice([*head, ("choices", choices), ("usage", _usage(answer))])


def _head(kind: str, id_: str, facts: BatchFacts, answer: Answer) -> list[tuple[str, Json]]:
    own_id = answer.members.get("id", NULL)
    fingerprint = answer.members.get("system_fingerprint", NULL)
    more: list[tuple[str, Json]] = [("system_fingerprint", fingerprint)] if begins(fingerprint, b'"') else []
    return [
        ("id", own_id if begins(own_id, b'"') else encode(id_)),
        ("object", encode(kind)),
        ("created", b"%d" % facts.accepted_at),
        ("model", encode(facts.model)),
        *more,
    ]


def _usage(answer: Answer) -> bytes:
    usage = members_of(answer.members.get("usage", NULL)) or {}
    members: list[tuple[str, Json]] = [
        (name, b"%d" % count) for name, count in zip(_USAGE_COUNTS, answer.tokens, strict=True)
    ]
    for name, theirs in _USAGE_DETAILS.items():
        counts = numbers_of(usage.get(name) or usage.get(theirs) or NULL)
        if counts:
            members.append((name, encode(counts)))
    return splice(members)


_USAGE_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_USAGE_DETAILS = {
    "prompt_tokens_details": "input_tokens_details",
    "completion_tokens_details": "output_tokens_details",
}
"""Details of a chat completion's usage, and the Responses API's names for them."""


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


OBJECTS: dict[Endpoint, MakeObject] = {
    Endpoint.CHAT: chat_completion,
    Endpoint.COMPLETIONS: text_completion,
    Endpoint.EMBEDDINGS: embedding_list,
    Endpoint.RESPONSES: response_object,
}
"""The object that each endpoint answers with."""

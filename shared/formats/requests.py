"""Converts OpenAI's and Bedrock's request bodies to Workers AI's requests, by one table of members.

Members that are not in the table are sent as written. Values that do not change are copied as bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from shared.formats.base import (
    BadRecordError,
    Json,
    Shape,
    Target,
    Task,
    begins,
    elements_of,
    encode,
    members_of,
    splice,
    splice_array,
    value_of,
)
from shared.formats.messages import chat_messages
from shared.formats.tools import chat_tool_choice, chat_tools, flat_tools

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    Members = dict[str, msgspec.Raw]
    Request = dict[str, Json]


class Endpoint(StrEnum):
    """The endpoint a request body was written for, one of OpenAI's: Bedrock's shapes are close enough to these."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    OTHER = ""


# ── the table ────────────────────────────────────────────────────────────────────────────────────────────────────────

LEFT_OUT = frozenset(
    {"model", "user", "store", "metadata", "service_tier", "encoding_format", "anthropic_version", "schemaVersion"}
)
"""Members that are never sent."""

ONLY_VALUES: dict[str, tuple[object, str]] = {
    "stream": (False, "answers are written to a file, so nothing can be streamed. Leave it out."),
    "n": (1, "Workers AI gives one answer per request. Write a record for each answer you want."),
}
"""Members that are left out if they have this value (or null); any other value makes the record bad."""

REFUSED: dict[str, str] = {
    "dimensions": "Workers AI's models return embeddings of one length. Leave it out.",
    "images": "Workers AI makes embeddings of text only.",
}
"""Members that make a record bad, unless they are null."""

RENAMED: dict[str, str] = {
    "max_completion_tokens": "max_tokens",
    "max_gen_len": "max_tokens",
    "stop_sequences": "stop",
    "inputText": "text",
    "texts": "text",
}
"""Members that are sent under another name, unless the record has that name too."""

NESTED: dict[str, dict[str, str]] = {
    "inferenceConfig": {
        "maxTokens": "max_tokens",
        "max_new_tokens": "max_tokens",
        "topP": "top_p",
        "topK": "top_k",
        "stopSequences": "stop",
    },
    "textGenerationConfig": {"maxTokenCount": "max_tokens", "topP": "top_p", "stopSequences": "stop"},
}
"""Objects whose members are sent as members of the request, under these names or their own."""

RESPONSES_NAMES: dict[str, str] = {"max_tokens": "max_output_tokens"}
"""Members of a chat request that the Responses API names differently; others change their form, see `_to_responses`."""


def convert_body(body: Members, endpoint: Endpoint, target: Target, path: str) -> Request:
    """A request body in the form that Workers AI accepts.

    Args:
        body: its members as JSON.
        endpoint: what it was written for.
        target: what it is sent to.
        path: the body's own name in the record, for error messages.

    Raises:
        BadRecordError: a member requests something that Workers AI does not support, or does not fit the model.
    """
    request = _renamed(body, path)
    _CONVERTERS[endpoint](request, endpoint, target, path)
    return request


def _renamed(body: Members, path: str) -> Request:
    """The members under Workers AI's names."""
    request: Request = {}
    later: list[tuple[str, Json]] = []
    for name, value in body.items():
        if name in LEFT_OUT:
            continue
        if name in ONLY_VALUES:
            _check_only_value(name, value, path)
        elif name in REFUSED and bytes(value) != b"null":
            raise BadRecordError(f"{path}.{name}", REFUSED[name])
        elif name in NESTED and (inner := members_of(value)) is not None:
            later += [(NESTED[name].get(key, key), inside) for key, inside in inner.items()]
        elif name in RENAMED:
            later.append((RENAMED[name], value))
        elif name not in REFUSED:
            request[name] = value
    for name, moved in later:
        request.setdefault(name, moved)
    return request


def _check_only_value(name: str, raw: Json, path: str) -> None:
    allowed, message = ONLY_VALUES[name]
    value = value_of(raw)
    if value is not None and (type(value) is not type(allowed) or value != allowed):
        raise BadRecordError(f"{path}.{name}", message)


# ── one endpoint each ────────────────────────────────────────────────────────────────────────────────────────────────


def _chat(request: Request, endpoint: Endpoint, target: Target, path: str) -> None:
    _require_task(endpoint, Task.GENERATION, target, path)
    if bytes(request.pop("audio", b"null")) != b"null" or b'"audio"' in bytes(request.pop("modalities", b"")):
        raise BadRecordError(f"{path}.audio", "Workers AI's batches accept and return text here. Leave audio out.")
    request["messages"] = chat_messages(request.get("messages"), request.pop("system", None), target, path)
    if "toolConfig" in request and "tools" not in request:
        config = members_of(request.pop("toolConfig")) or {}
        request.update((new, config[old]) for old, new in _TOOL_CONFIG.items() if old in config)
    if "tools" in request:
        request["tools"] = chat_tools(request["tools"])
    if "tool_choice" in request:
        request["tool_choice"] = chat_tool_choice(request["tool_choice"])
    if target.shape is Shape.INPUT:
        _to_responses(request)
    elif target.plain_schema and "response_format" in request:
        request["response_format"] = _plain_schema(request["response_format"])


_TOOL_CONFIG = {"tools": "tools", "toolChoice": "tool_choice"}


def _completions(request: Request, endpoint: Endpoint, target: Target, path: str) -> None:
    _require_task(endpoint, Task.GENERATION, target, path)
    if "text" in request and "prompt" not in request:
        request["prompt"] = request.pop("text")  # Bedrock's `inputText`
    prompt: Json = request.get("prompt", b"null")
    if begins(prompt, b"["):
        prompts = elements_of(prompt) or []
        if len(prompts) != 1 or not begins(prompts[0], b'"'):
            raise BadRecordError(f"{path}.prompt", "It must be one string, not tokens. Write a record for each prompt.")
        prompt = prompts[0]
    if not begins(prompt, b'"'):
        raise BadRecordError(f"{path}.prompt", "It must be a string.")
    del request["prompt"]
    request.update(text_input(prompt, target))
    if target.shape is Shape.INPUT:
        _to_responses(request)


def _embeddings(request: Request, endpoint: Endpoint, target: Target, path: str) -> None:
    _require_task(endpoint, Task.EMBEDDINGS, target, path)
    name = "input" if "input" in request else "text"
    texts = request.pop(name, b"null")
    if begins(texts, b"["):
        if any(not begins(text, b'"') for text in elements_of(texts) or []):
            raise BadRecordError(f"{path}.{name}", "Workers AI takes strings, not tokens or other values.")
    elif not begins(texts, b'"'):
        raise BadRecordError(f"{path}.{name}", "It must be a string or an array of strings.")
    request["text"] = texts


def _responses(request: Request, endpoint: Endpoint, target: Target, path: str) -> None:
    if target.shape not in {Shape.INPUT, Shape.UNKNOWN}:
        _require_task(endpoint, Task.GENERATION, target, path)
        raise BadRecordError(f"{path}.input", f"{target.model} takes messages. Write it for /v1/chat/completions.")
    if bytes(request.get("input", b"null")) == b"null":
        raise BadRecordError(f"{path}.input", "It is missing.")


def _as_written(request: Request, endpoint: Endpoint, target: Target, path: str) -> None:
    pass


_CONVERTERS: dict[Endpoint, Callable[[Request, Endpoint, Target, str], None]] = {
    Endpoint.CHAT: _chat,
    Endpoint.COMPLETIONS: _completions,
    Endpoint.EMBEDDINGS: _embeddings,
    Endpoint.RESPONSES: _responses,
    Endpoint.OTHER: _as_written,
}


def _require_task(endpoint: Endpoint, task: Task, target: Target, path: str) -> None:
    if target.task not in {task, Task.UNKNOWN}:
        raise BadRecordError(path, f"It is written for {endpoint}, but {target.model} is a model for {target.task}.")


# ── shapes of a model's input ────────────────────────────────────────────────────────────────────────────────────────

_USER = b'[{"role":"user","content":%b}]'


def text_input(text: Json, target: Target) -> Request:
    """The members that pass a text, given as a JSON string, to a model."""
    if target.shape is Shape.MESSAGES:
        return {"messages": _USER % bytes(text)}
    return {INPUT_MEMBERS[target.shape]: text}


INPUT_MEMBERS: dict[Shape, str] = {
    Shape.TEXT: "text",
    Shape.PROMPT: "prompt",
    Shape.INPUT: "input",
    Shape.AUDIO: "audio",
    Shape.UNKNOWN: "prompt",
}
"""The member that takes a text, by the model's shape."""


def _to_responses(request: Request) -> None:
    """Turn a chat request into one for the Responses API, for models that accept nothing else."""
    if "messages" in request:
        request["input"] = request.pop("messages")
    for old, new in RESPONSES_NAMES.items():
        if old in request:
            request.setdefault(new, request.pop(old))
    if "reasoning_effort" in request:
        effort = request.pop("reasoning_effort")
        request.setdefault("reasoning", splice([("effort", effort)]))
    if "response_format" in request:
        request.setdefault("text", splice([("format", _flat_format(request.pop("response_format")))]))
    if "tools" in request:
        request["tools"] = flat_tools(request["tools"])


def _flat_format(response_format: Json) -> Json:
    """OpenAI's `response_format` as the Responses API writes it: with the schema next to its name."""
    members = members_of(response_format) or {}
    inner = members_of(members.get("json_schema", b"null"))
    if inner is None:
        return response_format
    return splice([("type", encode("json_schema")), *((name, raw) for name, raw in inner.items() if name != "type")])


def _plain_schema(response_format: Json) -> Json:
    """OpenAI's `response_format` with the schema itself, as Workers AI's own models take it."""
    members = members_of(response_format) or {}
    inner = members_of(members.get("json_schema", b"null")) or {}
    if not begins(inner.get("schema", b"null"), b"{") or "name" not in inner:
        return response_format
    return splice((name, inner["schema"] if name == "json_schema" else raw) for name, raw in members.items())


def as_array(raw: Json) -> bytes:
    """An array as it is; any other JSON as the only element of an array."""
    return bytes(raw) if begins(raw, b"[") else splice_array([raw])

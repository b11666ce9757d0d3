"""Converts other vendors' request bodies to Workers AI's, by the table in `members.py`.

Members that are not in the table are sent as written. Values that do not change are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import (
    NULL,
    BadRecordError,
    Shape,
    Target,
    Task,
    begins,
    elements_of,
    made,
    object_of,
    value_of,
)
from dropbatch.core.formats.conversion.members import check_limits, renamed, thinking
from dropbatch.core.formats.conversion.messages import Names, chat_messages
from dropbatch.core.formats.conversion.responses import response_format, to_chat, to_responses
from dropbatch.core.formats.conversion.tools import chat_tool_choice, chat_tools
from dropbatch.core.read.attachments import mark

Members = dict[str, msgspec.Raw]
Request = dict[str, msgspec.Raw]
Origins = dict[str, str]


class Endpoint(StrEnum):
    """The endpoint of OpenAI's that a request was written for; Bedrock's shapes are like these."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    OTHER = ""


def convert_body(body: Members, endpoint: Endpoint, target: Target, path: str) -> Request:
    """A request body as Workers AI takes it; or `BadRecordError`: it does not fit the model."""
    request, origins = renamed(body, target, path)
    if endpoint is not Endpoint.OTHER:
        task, convert = _CONVERTERS[endpoint]
        # Also for models that judge messages.
        is_chat = task is Task.GENERATION and target.shape is Shape.MESSAGES
        if target.task not in {task, Task.UNKNOWN} and not is_chat:
            words = (
                f"It is written for {endpoint}, but {target.model} is a model for {target.task}."
            )
            raise BadRecordError(path, words)
        convert(request, origins, target, path)
    check_limits(request, origins, target, path)
    return request


# ── one endpoint each ─────────────────────────────────────────────────────────────────────────────


def _chat(
    request: Request,
    origins: Origins,
    target: Target,
    path: str,
    places: list[int] | None = None,
) -> None:
    audio, modalities = request.pop("audio", NULL), request.pop("modalities", NULL)
    if audio != NULL or b'"audio"' in bytes(modalities):
        raise BadRecordError(
            f"{path}.audio", "Workers AI's batches accept and return text here. Leave audio out."
        )
    names = Names(path, origins.get("system", "system"), places)
    request["messages"] = chat_messages(
        request.get("messages"), request.pop("system", None), target, names
    )
    if "toolConfig" in request and "tools" not in request:
        config = object_of(request.pop("toolConfig"))
        request.update((new, config[old]) for old, new in _TOOL_CONFIG.items() if old in config)
    _chat_options(request, origins, target, path)


def _chat_options(request: Request, origins: Origins, target: Target, path: str) -> None:
    """Everything of a chat request but the content of its messages, as the model takes it."""
    thinking(request, target)
    if "truncate" in request:
        del request["truncate"]
    if "tools" in request:
        request["tools"] = chat_tools(
            request["tools"], f"{path}.tools", full=target.schema.full_tools
        )
    if "tool_choice" in request:
        request["tool_choice"] = chat_tool_choice(request["tool_choice"])
    if "response_format" in request:
        format_ = response_format(request.pop("response_format"), target)
        if format_ is not None:
            request["response_format"] = format_
    if target.shape is Shape.INPUT:
        to_responses(request, origins)


_TOOL_CONFIG = {"tools": "tools", "toolChoice": "tool_choice"}


def _completions(request: Request, origins: Origins, target: Target, path: str) -> None:
    if "text" in request and "prompt" not in request:
        request["prompt"] = request.pop("text")  # Bedrock's `inputText`
    prompt = request.get("prompt", NULL)
    if begins(prompt, b"["):
        prompts = elements_of(prompt) or []
        if len(prompts) != 1 or not begins(prompts[0], b'"'):
            raise BadRecordError(
                f"{path}.prompt",
                "It must be one string, not tokens. Write a record for each prompt.",
            )
        prompt = prompts[0]
    if not begins(prompt, b'"'):
        raise BadRecordError(f"{path}.prompt", "It must be a string.")
    request.pop("prompt", None)
    request.update(text_input(prompt, target))
    _chat_options(request, origins, target, path)


def _embeddings(request: Request, _: Origins, target: Target, path: str) -> None:
    name = "text" if "text" in request else "input"
    texts = request.pop(name, NULL)
    if begins(texts, b"["):
        if any(not begins(text, b'"') for text in elements_of(texts) or []):
            raise BadRecordError(
                f"{path}.{name}", "Workers AI takes strings, not tokens or other values."
            )
    elif not begins(texts, b'"'):
        raise BadRecordError(f"{path}.{name}", "It must be a string or an array of strings.")
    request["text"] = texts
    if "truncate" in request:
        is_cut = value_of(request.pop("truncate")) in ("END", "START")
        if is_cut and "truncate_inputs" in target.schema.members:
            request["truncate_inputs"] = made(True)  # noqa: FBT003


def _responses(request: Request, origins: Origins, target: Target, path: str) -> None:
    if "input" not in request:
        raise BadRecordError(f"{path}.input", "It is missing.")
    reasoning = object_of(request.get("reasoning", NULL))
    if NULL in reasoning.values():
        request["reasoning"] = made({name: one for name, one in reasoning.items() if one != NULL})
    if target.shape not in {Shape.INPUT, Shape.UNKNOWN}:
        places = to_chat(request, origins, target, path)
        _chat(request, origins, target, path, places)


def convert_defaults(target: Target) -> Request:
    """A job's defaults as the model takes them; or `UploadRefused` (`bad_options`)."""
    for name in sorted(_INPUTS & target.defaults.keys()):
        raise UploadRefused(
            "bad_options", f"defaults.{name}: Each record has its own input. Leave it out."
        )
    try:
        return convert_members(target.defaults, target, "defaults")
    except BadRecordError as error:
        raise UploadRefused("bad_options", error.message) from error


def convert_members(members: Mapping[str, msgspec.Raw], target: Target, path: str) -> Request:
    """Members beside an input as the model takes them; or `BadRecordError`."""
    request, origins = renamed(members, target, path)
    if target.task in {Task.GENERATION, Task.UNKNOWN}:
        _chat_options(request, origins, target, path)
    check_limits(request, origins, target, path)
    return request


_INPUTS = frozenset({"messages", "system", "prompt", "input"})


_CONVERTERS: dict[Endpoint, tuple[Task, Callable[[Request, Origins, Target, str], None]]] = {
    Endpoint.CHAT: (Task.GENERATION, _chat),
    Endpoint.COMPLETIONS: (Task.GENERATION, _completions),
    Endpoint.EMBEDDINGS: (Task.EMBEDDINGS, _embeddings),
    Endpoint.RESPONSES: (Task.GENERATION, _responses),
}
"""By endpoint, the task of its models, and what makes a request of Workers AI of its body."""


# ── shapes of a model's input ─────────────────────────────────────────────────────────────────────


def text_input(text: msgspec.Raw | str, target: Target, attached: Sequence[str] = ()) -> Request:
    """The members that pass a text to a model, and the objects of these names in S3."""
    if attached:
        return _attached_input(text, target, attached)
    if target.system and target.shape is Shape.INPUT:
        return {"instructions": made(target.system), "input": made(text)}
    user = {"role": "user", "content": text}
    if target.system:
        return {"messages": made([{"role": "system", "content": target.system}, user])}
    if target.shape is Shape.MESSAGES:
        return {"messages": made([user])}
    return {INPUT_MEMBERS[target.shape]: made(text)}


def _attached_input(text: msgspec.Raw | str, target: Target, attached: Sequence[str]) -> Request:
    if target.shape is Shape.AUDIO:
        return {"audio": made(mark("audio", attached[0]))}
    if target.shape not in CHAT_SHAPES:
        return {**text_input(text, target), "image": made(mark("image", attached[0]))}
    images = [{"type": "image_url", "image_url": {"url": mark("url", name)}} for name in attached]
    texts = [{"type": "text", "text": text}] if text else []
    return text_input(made([*texts, *images]), replace(target, shape=Shape.MESSAGES))


CHAT_SHAPES = frozenset({Shape.PROMPT, Shape.MESSAGES})
"""Of models that take pictures in messages; others have a member for one."""
INPUT_MEMBERS: dict[Shape, str] = {
    Shape.TEXT: "text",
    Shape.PROMPT: "prompt",
    Shape.INPUT: "input",
    Shape.AUDIO: "audio",
    Shape.UNKNOWN: "prompt",
}
"""The member that takes a text, by the model's shape."""


def as_array(raw: msgspec.Raw) -> msgspec.Raw:
    """An array as it is; any other JSON as the only element of an array."""
    return raw if begins(raw, b"[") else made([raw])

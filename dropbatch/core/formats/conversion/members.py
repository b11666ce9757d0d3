"""What becomes of each member that a request of another vendor has: one table for all formats.

Members that it does not list are sent as written. Ranges: `dropbatch.core.requests`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dropbatch.core.formats.base import (
    BadRecordError,
    Json,
    Target,
    Task,
    begins,
    elements_of,
    made,
    members_of,
    object_of,
    value_of,
)

Request = dict[str, msgspec.Raw]


LEFT_OUT: tuple[str, ...] = (
    *("model", "user", "store", "metadata", "service_tier", "encoding_format", "stream_options"),
    *("background", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
    *("include", "truncation", "anthropic_version", "anthropic_beta", "schemaVersion"),
    *("input_type", "inference_geo", "container", "guardrailConfig", "performanceConfig"),
    *("requestMetadata", "promptVariables", "additionalModelResponseFieldPaths"),
)
"""Members that are never sent."""

STREAM = "stream"
ONLY_VALUES: dict[str, tuple[object, str]] = {
    STREAM: (False, "answers are written to a file, so nothing can be streamed. Leave it out."),
    "n": (1, "Workers AI gives one answer per request. Write a record for each answer you want."),
    "normalize": (True, "Workers AI's embeddings are normalized. Leave it out."),
    "embedding_types": (["float"], 'Workers AI returns floats. Write ["float"], or leave it out.'),
    "embeddingTypes": (["float"], 'Workers AI returns floats. Write ["float"], or leave it out.'),
}
"""Members that are left out if they have this value (or null). Any other value makes the record
bad."""

LENGTHS = ("dimensions", "output_dimension", "outputEmbeddingLength")
"""Members that name an embedding's length. Left out if it is the model's own, else the record is
bad."""

REFUSED: dict[str, str] = {
    "images": "Workers AI makes embeddings of text only.",
    "inputImage": "Workers AI makes embeddings of text only.",
    "previous_response_id": (
        "A batch has no earlier answers. Write the whole conversation in the record."
    ),
    "conversation": "A batch has no earlier answers. Write the whole conversation in the record.",
}
"""Members that make a record bad, unless they are null."""

NATIVE: dict[str, tuple[str, ...]] = {
    "input": ("previous_response_id", "conversation"),
    "messages": ("n",),
    "prompt": ("n",),
    "text": ("dimensions",),
}
"""By the member that has a native request's input. Which members besides `stream` make it bad too:
of the names that OpenAI's API and Workers AI share, those that no answer would be right for."""

RENAMED: dict[str, str] = {
    "max_completion_tokens": "max_tokens",
    "max_gen_len": "max_tokens",
    "max_tokens_to_sample": "max_tokens",
    "max_new_tokens": "max_tokens",
    "stop_sequences": "stop",
    "inputText": "text",
    "texts": "text",
    "output_format": "response_format",
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
    "textGenerationConfig": {
        "maxTokenCount": "max_tokens",
        "topP": "top_p",
        "stopSequences": "stop",
    },
    "additionalModelRequestFields": {},
    "embeddingConfig": {},
    "output_config": {"effort": "reasoning_effort", "format": "response_format"},
}
"""Objects whose members are sent as members of the request, under these names or their own."""

RESPONSES_NAMES: dict[str, str] = {"max_tokens": "max_output_tokens"}
"""Members of a chat request that the Responses API names differently."""


def renamed(
    body: Mapping[str, msgspec.Raw], target: Target, path: str
) -> tuple[Request, dict[str, str]]:
    """The members under Workers AI's names, and what the record calls them; or `BadRecordError`."""
    request: Request = {}
    origins: dict[str, str] = {}
    later: list[tuple[str, str, msgspec.Raw]] = []
    for name, value in body.items():
        if name in NESTED and (inner := members_of(value)) is not None:
            later += [(f"{name}.{key}", key, inside) for key, inside in inner.items()]
        elif name in RENAMED:
            later.append((name, RENAMED[name], value))
        elif _is_sent(name, name, value, target, path):
            request[name] = value
    for written, name, value in later:
        outer, dot, _ = written.partition(".")
        renames = NESTED[outer] if dot else {}
        known = renames.get(name, RENAMED.get(name, name))
        if known not in request and _is_sent(known, written, value, target, path):
            request[known] = value
            origins[known] = written
    return request, origins


def _is_sent(name: str, written: str, value: Json, target: Target, path: str) -> bool:
    """Whether a member is sent."""
    if bytes(value) == b"null" or name in _LEFT_OUT:
        return False
    if name in LENGTHS:
        if value_of(value) != target.dimensions:
            raise BadRecordError(
                f"{path}.{written}", _other_length(target.model, target.dimensions)
            )
        return False
    if name in ONLY_VALUES and not (name == "n" and "n" in target.schema.limits):
        allowed, message = ONLY_VALUES[name]
        found = value_of(value)
        if type(found) is not type(allowed) or found != allowed:
            raise BadRecordError(f"{path}.{written}", message)
        return False
    if name in REFUSED:
        raise BadRecordError(f"{path}.{written}", REFUSED[name])
    return True


_LEFT_OUT = frozenset(LEFT_OUT)


def only_values(
    member: str, model: str, dimensions: int | None, *, images: bool | None
) -> dict[str, tuple[object, str]]:
    """The one value besides null (None: no other) that such members of a request may have."""
    known = ONLY_VALUES | dict.fromkeys(LENGTHS, (dimensions, _other_length(model, dimensions)))
    known |= {name: (None, message) for name, message in REFUSED.items()}
    found = {name: known[name] for name in (STREAM, *NATIVE.get(member, ()))}
    return found if images is not False else found | {"image": (None, no_images(model))}


def no_images(model: str) -> str:
    """Says of an image that its model does not see."""
    return f"{model} takes only text, no images."


def _other_length(model: str, dimensions: int | None) -> str:
    if dimensions is None:
        return "Workers AI's models return embeddings of one length. Leave it out."
    return f"{model} returns embeddings of {dimensions} numbers. Write that, or leave it out."


def check_limits(request: Request, origins: dict[str, str], target: Target, path: str) -> None:
    """Check values by the model's published ranges, and replace aliases; or `BadRecordError`."""
    for name, limits in target.schema.limits.items():
        outer, _, inner = name.partition(".")
        if outer not in request:
            continue
        members = object_of(request[outer]) if inner else {}
        raw: Json | None = members.get(inner) if inner else request[outer]
        if raw is None:
            continue
        value = value_of(raw)
        alias = limits.aliases.get(value) if isinstance(value, str) else None
        if alias is not None:
            request[outer] = made(alias)
        elif not limits.accepts(value):
            written = origins.get(name) or name.replace(outer, origins.get(outer, outer), 1)
            raise BadRecordError(
                f"{path}.{written}", f"It must be {limits.text()} for {target.model}."
            )
    if "stop" in request:
        _check_stop(request, target, f"{path}.{origins.get('stop', 'stop')}")
    if (
        target.task is Task.EMBEDDINGS
        and target.schema.texts
        and begins(request.get("text", b'"'), b"[")
    ):
        texts = len(elements_of(request["text"]) or [])
        if texts > target.schema.texts:
            message = (
                f"It has {texts} texts; {target.model} takes {target.schema.texts} in a request."
            )
            raise BadRecordError(f"{path}.{origins.get('text', 'input')}", message)


def _check_stop(request: Request, target: Target, path: str) -> None:
    if not begins(request["stop"], b"["):
        return
    stops = len(elements_of(request["stop"]) or [])
    if not stops:
        del request["stop"]
    elif target.schema.stops and stops > target.schema.stops:
        raise BadRecordError(
            path, f"It must have at most {target.schema.stops} sequences for {target.model}."
        )


def thinking(request: Request, target: Target) -> None:
    """Other vendors' `thinking` as the model takes it: only switching it off has a counterpart."""
    value = value_of(request.pop("thinking", b"null"))
    if (
        isinstance(value, dict)
        and value.get("type") == "disabled"
        and "chat_template_kwargs" in target.schema.members
    ):
        request.setdefault("chat_template_kwargs", made({"enable_thinking": False}))

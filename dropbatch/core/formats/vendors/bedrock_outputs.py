"""Bedrock's `modelOutput`, in the shape that matches the `modelInput`: Titan, Cohere, Messages, Converse, Llama."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.formats.answers import Answer, read_answer, vectors_of
from dropbatch.core.formats.base import NULL, begins, elements_of, encode, members_of, splice, splice_array, word_of
from dropbatch.core.formats.conversion.requests import as_array
from dropbatch.core.formats.conversion.tools import arguments_object
from dropbatch.core.formats.vendors.openai_objects import chat_completion

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec

    from dropbatch.core.formats.base import BatchFacts, Json

    Input = dict[str, msgspec.Raw]


def model_output(model_input: Input, facts: BatchFacts, id_: int, result: Json) -> bytes:
    """The answer in the shape of the input; the API's own if that has no known shape, or the answer does not fit it."""
    if "messages" in model_input and "anthropic_version" not in model_input and not _is_converse(model_input):
        return chat_completion(facts, id_, result)
    answer = read_answer(result)
    made = next((make(model_input, facts, id_, answer) for fits, make in SHAPES if fits(model_input)), None)
    return made or bytes(result)


# ── Titan ────────────────────────────────────────────────────────────────────────────────────────────────────────────

_TITAN_REASONS = {"length": "LENGTH", "content_filter": "CONTENT_FILTERED"}


def _titan(model_input: Input, facts: BatchFacts, id_: int, answer: Answer) -> bytes | None:  # noqa: ARG001
    vectors = vectors_of(answer.members)
    if vectors:
        by_type = splice([("float", vectors[0])])
        count = b"%d" % answer.tokens.input
        return splice([("embedding", vectors[0]), ("embeddingsByType", by_type), ("inputTextTokenCount", count)])
    if answer.text is None:
        return None
    result = splice(
        [
            ("tokenCount", b"%d" % answer.tokens.output),
            ("outputText", answer.text),
            ("completionReason", encode(_TITAN_REASONS.get(answer.finish, "FINISH"))),
        ]
    )
    return splice([("inputTextTokenCount", b"%d" % answer.tokens.input), ("results", splice_array([result]))])


# ── Cohere ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _cohere(model_input: Input, facts: BatchFacts, id_: int, answer: Answer) -> bytes | None:
    vectors = vectors_of(answer.members)
    if not vectors:
        return None
    embeddings, kind = splice_array(vectors), "embeddings_floats"
    if begins(model_input.get("embedding_types", NULL), b"["):
        embeddings, kind = splice([("float", embeddings)]), "embeddings_by_type"
    return splice(
        [
            ("embeddings", embeddings),
            ("id", encode(f"{facts.job_id}-{id_}")),
            ("response_type", encode(kind)),
            ("texts", as_array(model_input["texts"])),
        ]
    )


# ── Anthropic's Messages, and Converse ───────────────────────────────────────────────────────────────────────────────

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_CONVERSE_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "content_filtered"}


def _reason(answer: Answer, reasons: dict[str, str]) -> bytes:
    return encode(reasons.get(answer.finish, "tool_use" if answer.calls else "end_turn"))


def message_object(model_input: Input, facts: BatchFacts, id_: int, answer: Answer) -> bytes | None:  # noqa: ARG001
    """Anthropic's message; None if the answer is of an unknown shape."""
    if answer.text is None and not answer.calls and not answer.is_known:
        return None
    name = f"{facts.job_id}-{id_}"
    content: list[Json] = []
    if answer.reasoning is not None:
        thought = [("type", b'"thinking"'), ("thinking", answer.reasoning), ("signature", b'""')]
        content.append(splice(thought))
    if answer.text is not None:
        content.append(splice([("type", b'"text"'), ("text", answer.text)]))
    for index, call in enumerate(answer.calls):
        id_of_call = encode(call.id or f"toolu_{name}-{index}")
        known = [("id", id_of_call), ("name", encode(call.name)), ("input", arguments_object(call))]
        content.append(splice([("type", b'"tool_use"'), *known]))
    usage = b'{"input_tokens":%d,"output_tokens":%d}' % answer.tokens[:2]
    return splice(
        [
            ("id", encode(f"msg_{name}")),
            ("type", b'"message"'),
            ("role", b'"assistant"'),
            ("model", encode(facts.model)),
            ("content", splice_array(content)),
            ("stop_reason", _reason(answer, _STOP_REASONS)),
            ("stop_sequence", NULL),
            ("usage", usage),
        ]
    )


def _converse(model_input: Input, facts: BatchFacts, id_: int, answer: Answer) -> bytes | None:  # noqa: ARG001
    if answer.text is None and not answer.calls and not answer.is_known:
        return None
    blocks: list[Json] = []
    if answer.reasoning is not None:
        thought = splice([("reasoningText", splice([("text", answer.reasoning)]))])
        blocks.append(splice([("reasoningContent", thought)]))
    if answer.text is not None:
        blocks.append(splice([("text", answer.text)]))
    for index, call in enumerate(answer.calls):
        id_of_call = encode(call.id or f"tooluse_{facts.job_id}-{id_}-{index}")
        known = [("toolUseId", id_of_call), ("name", encode(call.name)), ("input", arguments_object(call))]
        blocks.append(splice([("toolUse", splice(known))]))
    message = splice([("role", b'"assistant"'), ("content", splice_array(blocks))])
    return splice(
        [
            ("output", splice([("message", message)])),
            ("stopReason", _reason(answer, _CONVERSE_REASONS)),
            ("usage", b'{"inputTokens":%d,"outputTokens":%d,"totalTokens":%d}' % answer.tokens),
            ("metrics", b'{"latencyMs":0}'),
        ]
    )


# ── Llama ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _llama(model_input: Input, facts: BatchFacts, id_: int, answer: Answer) -> bytes | None:  # noqa: ARG001
    if answer.text is None:
        return None
    return splice(
        [
            ("generation", answer.text),
            ("prompt_token_count", b"%d" % answer.tokens.input),
            ("generation_token_count", b"%d" % answer.tokens.output),
            ("stop_reason", b'"length"' if answer.finish == "length" else b'"stop"'),
        ]
    )


# ── Mistral, and the chat completions that LiteLLM writes for other models ───────────────────────────────────────────


def _mistral(model_input: Input, facts: BatchFacts, id_: int, answer: Answer) -> bytes | None:  # noqa: ARG001
    if answer.text is None:
        return None
    reason = b'"length"' if answer.finish == "length" else b'"stop"'
    return splice([("outputs", splice_array([splice([("text", answer.text), ("stop_reason", reason)])]))])


# ── which shape ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_converse(model_input: Input) -> bool:
    """Blocks without a type, or `inferenceConfig`."""
    if "inferenceConfig" in model_input:
        return True
    for raw in elements_of(model_input.get("messages", NULL)) or []:
        content = (members_of(raw) or {}).get("content", NULL)
        blocks = elements_of(content) if begins(content, b"[") else None
        if blocks:
            return not word_of((members_of(blocks[0]) or {}).get("type", NULL))
    return False


SHAPES: tuple[tuple[Callable[[Input], bool], Callable[[Input, BatchFacts, int, Answer], bytes | None]], ...] = (
    (lambda model_input: "inputText" in model_input, _titan),
    (lambda model_input: "texts" in model_input, _cohere),
    (lambda model_input: "anthropic_version" in model_input, message_object),
    (_is_converse, _converse),
    (lambda model_input: {"prompt", "max_gen_len"} <= model_input.keys(), _llama),
    (lambda model_input: {"prompt", "max_tokens"} <= model_input.keys(), _mistral),
)
"""Which inputs have which output; the first that fits is used."""

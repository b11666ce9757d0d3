"""Bedrock's `modelOutput`, in the shape that matches the `modelInput`.

Titan, Cohere, Messages, Converse, Llama.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core.formats.answers import Answer, read_answer, vectors_of
from dropbatch.core.formats.base import NULL, begins, elements_of, members_of, word_of
from dropbatch.core.formats.conversion.requests import as_array
from dropbatch.core.formats.conversion.tools import arguments_object
from dropbatch.core.formats.vendors.openai_objects import chat_completion

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropbatch.core.formats.base import BatchFacts, Json

    Input = dict[str, msgspec.Raw]
    Output = dict[str, Any] | None


def model_output(model_input: Input, facts: BatchFacts, id_: int, result: Json) -> object:
    """The answer in the shape of the input.

    The API's own if that has no known shape, or the answer does not fit it.
    """
    if (
        "messages" in model_input
        and "anthropic_version" not in model_input
        and not _is_converse(model_input)
    ):
        return chat_completion(facts, id_, result)
    answer = read_answer(result)
    made = next(
        (make(model_input, facts, id_, answer) for fits, make in SHAPES if fits(model_input)), None
    )
    return made or msgspec.Raw(bytes(result))


_TITAN_REASONS = {"length": "LENGTH", "content_filter": "CONTENT_FILTERED"}


def _titan(_: Input, __: BatchFacts, ___: int, answer: Answer) -> Output:
    read, written, _total = answer.tokens
    if vectors := vectors_of(answer.members):
        return {
            "embedding": vectors[0],
            "embeddingsByType": {"float": vectors[0]},
            "inputTextTokenCount": read,
        }
    if answer.text is None:
        return None
    reason = _TITAN_REASONS.get(answer.finish, "FINISH")
    result = {"tokenCount": written, "outputText": answer.text, "completionReason": reason}
    return {"inputTextTokenCount": read, "results": [result]}


def _cohere(model_input: Input, facts: BatchFacts, id_: int, answer: Answer) -> Output:
    vectors = vectors_of(answer.members)
    if not vectors:
        return None
    by_type = begins(model_input.get("embedding_types", NULL), b"[")
    return {
        "embeddings": {"float": vectors} if by_type else vectors,
        "id": f"{facts.job_id}-{id_}",
        "response_type": "embeddings_by_type" if by_type else "embeddings_floats",
        "texts": msgspec.Raw(as_array(model_input["texts"])),
    }


_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_CONVERSE_REASONS = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "content_filtered",
}


def _reason(answer: Answer, reasons: dict[str, str]) -> str:
    return reasons.get(answer.finish, "tool_use" if answer.calls else "end_turn")


def message_object(_: Input, facts: BatchFacts, id_: int, answer: Answer) -> Output:
    """Anthropic's message; None if the answer is of an unknown shape."""
    if answer.text is None and not answer.calls and not answer.is_known:
        return None
    name = f"{facts.job_id}-{id_}"
    content: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text is not None:
        content.append({"type": "text", "text": answer.text})
    for index, call in enumerate(answer.calls):
        call_id, given = call.id or f"toolu_{name}-{index}", arguments_object(call)
        content.append({"type": "tool_use", "id": call_id, "name": call.name, "input": given})
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": facts.model,
        "content": content,
        "stop_reason": _reason(answer, _STOP_REASONS),
        "stop_sequence": None,
        "usage": {"input_tokens": answer.tokens.input, "output_tokens": answer.tokens.output},
    }


def _converse(_: Input, facts: BatchFacts, id_: int, answer: Answer) -> Output:
    if answer.text is None and not answer.calls and not answer.is_known:
        return None
    blocks: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        blocks.append({"reasoningContent": {"reasoningText": {"text": answer.reasoning}}})
    if answer.text is not None:
        blocks.append({"text": answer.text})
    for index, call in enumerate(answer.calls):
        call_id = call.id or f"tooluse_{facts.job_id}-{id_}-{index}"
        blocks.append(
            {"toolUse": {"toolUseId": call_id, "name": call.name, "input": arguments_object(call)}}
        )
    read, written, total = answer.tokens
    return {
        "output": {"message": {"role": "assistant", "content": blocks}},
        "stopReason": _reason(answer, _CONVERSE_REASONS),
        "usage": {"inputTokens": read, "outputTokens": written, "totalTokens": total},
        "metrics": {"latencyMs": 0},
    }


def _llama(_: Input, __: BatchFacts, ___: int, answer: Answer) -> Output:
    if answer.text is None:
        return None
    return {
        "generation": answer.text,
        "prompt_token_count": answer.tokens.input,
        "generation_token_count": answer.tokens.output,
        "stop_reason": _length_or_stop(answer),
    }


def _mistral(_: Input, __: BatchFacts, ___: int, answer: Answer) -> Output:
    """Mistral's, and the chat completions that LiteLLM writes for other models."""
    if answer.text is None:
        return None
    return {"outputs": [{"text": answer.text, "stop_reason": _length_or_stop(answer)}]}


def _length_or_stop(answer: Answer) -> str:
    return "length" if answer.finish == "length" else "stop"


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


SHAPES: tuple[
    tuple[Callable[[Input], bool], Callable[[Input, BatchFacts, int, Answer], Output]], ...
] = (
    (lambda model_input: "inputText" in model_input, _titan),
    (lambda model_input: "texts" in model_input, _cohere),
    (lambda model_input: "anthropic_version" in model_input, message_object),
    (_is_converse, _converse),
    (lambda model_input: {"prompt", "max_gen_len"} <= model_input.keys(), _llama),
    (lambda model_input: {"prompt", "max_tokens"} <= model_input.keys(), _mistral),
)
"""Which inputs have which output; the first that fits is used."""

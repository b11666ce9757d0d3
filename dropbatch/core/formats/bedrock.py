"""Bedrock's batch files: `{"recordId"?, "modelInput"}` per line, answered in the input's shape."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec

from dropbatch.core.formats.answers import Answer, read_answer, vectors_of
from dropbatch.core.formats.base import (
    NULL,
    REFUSED_CODES,
    BadRecordError,
    BatchFacts,
    Json,
    Outcome,
    Target,
    Task,
    VendorReader,
    begins,
    body_of,
    elements_of,
    encode,
    json_line,
    object_of,
    one_line,
    word_of,
)
from dropbatch.core.formats.conversion.requests import Endpoint, as_array, convert_body
from dropbatch.core.formats.conversion.tools import arguments_object
from dropbatch.core.formats.openai_objects import chat_completion

Input = dict[str, msgspec.Raw]
Output = dict[str, Any] | None


MAX_OUTPUT_NAME_BYTES = 60
"""Bytes of the name of an output file that is named after its upload."""

TAKEN_NAMES = frozenset({"manifest.json.out"})
"""Names that such a file cannot have."""

_ID_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ID_LENGTH = 11
_TITAN_EMBEDDINGS = frozenset({"normalize", "embeddingTypes"})
"""Members that Titan's embedding models take and its text models do not."""


class BedrockReader(VendorReader):
    """Turns lines of a batch file into requests."""

    reference = "recordId"

    def _request(self, line: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        record_id = line.get("recordId", NULL)
        if record_id != NULL and not begins(record_id, b'"'):
            raise BadRecordError("recordId", "It must be a string, or be left out.")
        given = body_of(line, "modelInput")
        return convert_body(given, endpoint_of(given, self._target), self._target, "modelInput")


def endpoint_of(model_input: dict[str, msgspec.Raw], target: Target) -> Endpoint:
    """What a `modelInput` was written for, in the terms of OpenAI's endpoints."""
    if "messages" in model_input:
        return Endpoint.CHAT
    if "texts" in model_input:
        return Endpoint.EMBEDDINGS
    if "inputText" in model_input:
        is_text = target.task is Task.GENERATION or "textGenerationConfig" in model_input
        if is_text or (
            target.task is not Task.EMBEDDINGS and not _TITAN_EMBEDDINGS & model_input.keys()
        ):
            return Endpoint.COMPLETIONS if is_text else Endpoint.OTHER
        return Endpoint.EMBEDDINGS
    if "input" in model_input:
        return Endpoint.EMBEDDINGS if target.task is Task.EMBEDDINGS else Endpoint.RESPONSES
    if "prompt" in model_input:
        return Endpoint.COMPLETIONS
    return Endpoint.OTHER


class BedrockWriter:
    """Writes answers as Bedrock's batches do."""

    def line(self, facts: BatchFacts, outcome: Outcome) -> bytes:
        """The record's line: its input, and its output or its error."""
        line = object_of(outcome.record)
        model_input, known = line.get("modelInput", NULL), line.get("recordId", NULL)
        made: dict[str, object] = {"modelInput": msgspec.Raw(one_line(model_input))}
        if outcome.result is None:
            code = error_code(outcome.code)
            made["error"] = {"errorCode": code, "errorMessage": outcome.message}
        else:
            given = Given.of(facts, outcome.id, outcome.result, object_of(model_input))
            made["modelOutput"] = model_output(given, facts, outcome)
        is_named = begins(known, b'"')
        made["recordId"] = (
            msgspec.Raw(one_line(known)) if is_named else made_up_id(facts, outcome.id)
        )
        return json_line(made)


def error_code(code: str) -> int:
    """Bedrock's number for one of Dropbatch's codes."""
    if code in REFUSED_CODES:
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.REQUEST_TIMEOUT if code == "expired" else HTTPStatus.INTERNAL_SERVER_ERROR


def made_up_id(facts: BatchFacts, id_: int) -> str:
    """The `recordId` of a record that has none: 11 letters and digits, the same in every run."""
    number = int.from_bytes(hashlib.sha256(f"{facts.job_id}/{id_}".encode()).digest()[:8])
    letters = []
    for _ in range(_ID_LENGTH):
        number, letter = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[letter])
    return "".join(letters)


def output_name(upload_key: str) -> str:
    """The name of the output file: the upload's with `.out`, as in Bedrock."""
    name = upload_key.rpartition("/")[2]
    for ending in (".gz", ".zst"):
        if name.lower().endswith(ending):
            name = name[: -len(ending)]
            break
    name = f"{name}.out"
    return (
        "output.jsonl.out"
        if len(name.encode()) > MAX_OUTPUT_NAME_BYTES or name in TAKEN_NAMES
        else name
    )


def manifest_out(
    total: int, succeeded: int, failed: int, input_tokens: int | None, output_tokens: int | None
) -> bytes:
    """`manifest.json.out`: Bedrock's counts of a job; tokens that were not reported are 0."""
    return encode(
        {
            "totalRecordCount": total,
            "processedRecordCount": succeeded + failed,
            "successRecordCount": succeeded,
            "errorRecordCount": failed,
            "inputTokenCount": input_tokens or 0,
            "outputTokenCount": output_tokens or 0,
        }
    )


class Given(NamedTuple):
    """What an output is made of; `name` is for ids that are made up, `input` the `modelInput`."""

    answer: Answer
    name: str
    model: str
    input: Input

    @classmethod
    def of(
        cls, facts: BatchFacts, id_: int, result: Json, model_input: Input | None = None
    ) -> Given:
        """What a record's output is made of."""
        return cls(read_answer(result), f"{facts.job_id}-{id_}", facts.model, model_input or {})


def model_output(given: Given, facts: BatchFacts, outcome: Outcome) -> object:
    """The answer in the shape of the input; the API's own if it does not fit any."""
    result, is_chat = outcome.result or NULL, "messages" in given.input
    if is_chat and "anthropic_version" not in given.input and not _is_converse(given.input):
        return chat_completion(facts, outcome.id, result)
    made = next((make(given) for fits, make in SHAPES if fits(given.input)), None)
    return made or msgspec.Raw(bytes(result))


_TITAN_REASONS = {"length": "LENGTH", "content_filter": "CONTENT_FILTERED"}


def _titan(given: Given) -> Output:
    answer = given.answer
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


def _cohere(given: Given) -> Output:
    vectors = vectors_of(given.answer.members)
    if not vectors:
        return None
    by_type = begins(given.input.get("embedding_types", NULL), b"[")
    return {
        "embeddings": {"float": vectors} if by_type else vectors,
        "id": given.name,
        "response_type": "embeddings_by_type" if by_type else "embeddings_floats",
        "texts": as_array(given.input["texts"]),
    }


_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_CONVERSE_REASONS = {
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "content_filtered",
}


def _reason(answer: Answer, reasons: dict[str, str]) -> str:
    return reasons.get(answer.finish, "tool_use" if answer.calls else "end_turn")


def message_object(given: Given) -> Output:
    """Anthropic's message; None if the answer is of an unknown shape."""
    answer, name, model, _ = given
    if not (answer.is_known or answer.calls):
        return None
    content: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text is not None:
        content.append({"type": "text", "text": answer.text})
    for index, call in enumerate(answer.calls):
        use = {"id": call.id or f"toolu_{name}-{index}", "name": call.name}
        content.append({"type": "tool_use", **use, "input": arguments_object(call)})
    return {
        "id": f"msg_{name}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": _reason(answer, _STOP_REASONS),
        "stop_sequence": None,
        "usage": {"input_tokens": answer.tokens.input, "output_tokens": answer.tokens.output},
    }


def _converse(given: Given) -> Output:
    answer = given.answer
    if not (answer.is_known or answer.calls):
        return None
    blocks: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        blocks.append({"reasoningContent": {"reasoningText": {"text": answer.reasoning}}})
    if answer.text is not None:
        blocks.append({"text": answer.text})
    for index, call in enumerate(answer.calls):
        call_id = call.id or f"tooluse_{given.name}-{index}"
        use = {"toolUseId": call_id, "name": call.name, "input": arguments_object(call)}
        blocks.append({"toolUse": use})
    read, written, total = answer.tokens
    return {
        "output": {"message": {"role": "assistant", "content": blocks}},
        "stopReason": _reason(answer, _CONVERSE_REASONS),
        "usage": {"inputTokens": read, "outputTokens": written, "totalTokens": total},
        "metrics": {"latencyMs": 0},
    }


def _llama(given: Given) -> Output:
    answer = given.answer
    if answer.text is None:
        return None
    return {
        "generation": answer.text,
        "prompt_token_count": answer.tokens.input,
        "generation_token_count": answer.tokens.output,
        "stop_reason": _length_or_stop(answer),
    }


def _mistral(given: Given) -> Output:
    """Mistral's, and the chat completions that LiteLLM writes for other models."""
    answer = given.answer
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
        content = object_of(raw).get("content", NULL)
        blocks = elements_of(content) if begins(content, b"[") else None
        if blocks:
            return not word_of(object_of(blocks[0]).get("type", NULL))
    return False


SHAPES: tuple[tuple[Callable[[Input], bool], Callable[[Given], Output]], ...] = (
    (lambda model_input: "inputText" in model_input, _titan),
    (lambda model_input: "texts" in model_input, _cohere),
    (lambda model_input: "anthropic_version" in model_input, message_object),
    (_is_converse, _converse),
    (lambda model_input: {"prompt", "max_gen_len"} <= model_input.keys(), _llama),
    (lambda model_input: {"prompt", "max_tokens"} <= model_input.keys(), _mistral),
)
"""Which inputs have which output; the first that fits is used."""

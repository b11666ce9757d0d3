"""Gemini's response objects, built from Workers AI's answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dropbatch.core.formats.answers import Answer, numbers_of, read_answer, text_value, vectors_of
from dropbatch.core.formats.base import NULL, Json, elements_of, encode, members_of
from dropbatch.core.formats.conversion.tools import arguments_object

if TYPE_CHECKING:
    from dropbatch.core.formats.base import BatchFacts

_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}


def response_object(facts: BatchFacts, id_: int, result: Json, *, is_list: bool) -> dict[str, Any]:
    """A `GenerateContentResponse`, or an embedding.

    Several, if `is_list` says that these were asked for.
    """
    answer = read_answer(result)
    if vectors := vectors_of(answer.members):
        made = [{"values": vector} for vector in vectors]
        return (
            {"embeddings": made}
            if is_list
            else {"embedding": made[0], "tokenCount": answer.tokens.input}
        )
    choices = elements_of(answer.members.get("choices", NULL)) or []
    answers = [read_answer(encode({"choices": [one]})) for one in choices] or [answer]
    return {
        "candidates": [_candidate(index, one, result) for index, one in enumerate(answers)],
        "usageMetadata": _usage(answer),
        "modelVersion": facts.model,
        "responseId": f"{facts.job_id}-{id_}",
    }


def _candidate(index: int, answer: Answer, result: Json) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        parts.append({"text": answer.reasoning, "thought": True})
    if answer.text is not None or not (answer.is_known or answer.calls):
        parts.append({"text": text_value(result) if answer.text is None else answer.text})
    for call in answer.calls:
        known = {"id": call.id} if call.id else {}
        parts.append({"functionCall": {**known, "name": call.name, "args": arguments_object(call)}})
    reason = _REASONS.get(answer.finish, "STOP")
    return {"content": {"role": "model", "parts": parts}, "finishReason": reason, "index": index}


def _usage(answer: Answer) -> dict[str, int]:
    taken, given, total = answer.tokens
    usage = members_of(answer.members.get("usage", NULL)) or {}
    details = numbers_of(
        usage.get("completion_tokens_details") or usage.get("output_tokens_details") or NULL
    )
    thoughts = min(max(details.get("reasoning_tokens", 0), 0), given)
    counts = {
        "promptTokenCount": taken,
        "candidatesTokenCount": given - thoughts,
        "totalTokenCount": total,
    }
    return counts | ({"thoughtsTokenCount": thoughts} if thoughts else {})

"""Gemini's response objects, built from Workers AI's answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.formats.answers import Answer, numbers_of, read_answer, vectors_of
from dropbatch.core.formats.base import NULL, Json, elements_of, encode, json_text, members_of, splice, splice_array
from dropbatch.core.formats.conversion.tools import arguments_object

if TYPE_CHECKING:
    from dropbatch.core.formats.base import BatchFacts

_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}


def response_object(facts: BatchFacts, id_: int, result: Json, *, is_list: bool) -> bytes:
    """A `GenerateContentResponse`, or an embedding.

    Args:
        facts: about the batch.
        id_: the record's id.
        result: the API's.
        is_list: whether several embeddings were asked for.
    """
    answer = read_answer(result)
    vectors = vectors_of(answer.members)
    if vectors:
        made = [splice([("values", vector)]) for vector in vectors]
        if is_list:
            return splice([("embeddings", splice_array(made))])
        return splice([("embedding", made[0]), ("tokenCount", b"%d" % answer.tokens.input)])
    choices = elements_of(answer.members.get("choices", NULL)) or []
    answers = [read_answer(splice([("choices", splice_array([one]))])) for one in choices] or [answer]
    candidates = [_candidate(index, one, result) for index, one in enumerate(answers)]
    return splice(
        [
            ("candidates", splice_array(candidates)),
            ("usageMetadata", _usage(answer)),
            ("modelVersion", encode(facts.model)),
            ("responseId", encode(f"{facts.job_id}-{id_}")),
        ]
    )


def _candidate(index: int, answer: Answer, result: Json) -> bytes:
    parts: list[Json] = []
    if answer.reasoning is not None:
        parts.append(splice([("text", answer.reasoning), ("thought", b"true")]))
    if answer.text is not None or not (answer.is_known or answer.calls):
        parts.append(splice([("text", json_text(result) if answer.text is None else answer.text)]))
    for call in answer.calls:
        known: list[tuple[str, Json]] = [("id", encode(call.id))] if call.id else []
        known += [("name", encode(call.name)), ("args", arguments_object(call))]
        parts.append(splice([("functionCall", splice(known))]))
    content = splice([("role", b'"model"'), ("parts", splice_array(parts))])
    reason = encode(_REASONS.get(answer.finish, "STOP"))
    return splice([("content", content), ("finishReason", reason), ("index", b"%d" % index)])


def _usage(answer: Answer) -> bytes:
    taken, given, total = answer.tokens
    usage = members_of(answer.members.get("usage", NULL)) or {}
    details = numbers_of(usage.get("completion_tokens_details") or usage.get("output_tokens_details") or NULL)
    thoughts = min(max(details.get("reasoning_tokens", 0), 0), given)
    counts = {"promptTokenCount": taken, "candidatesTokenCount": given - thoughts, "totalTokenCount": total}
    return encode(counts | ({"thoughtsTokenCount": thoughts} if thoughts else {}))

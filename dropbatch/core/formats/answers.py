"""What the API answered to one request: a text, tool calls, embeddings, tokens.

Shapes: Workers AI's own (`response`, `translated_text`, `text`), chat and text completions
(`choices`), Responses objects (`output`), and embeddings (`data`, or `response` of arrays). Nothing
here raises.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from dropbatch.core.formats.base import (
    NULL,
    UNDECODABLE,
    Json,
    begins,
    compact,
    elements_of,
    made,
    members_of,
    object_of,
    value_of,
    word_of,
)
from dropbatch.core.formats.conversion.tools import ToolCall, tool_calls_of

TEXT_MEMBERS = (
    *("response", "translated_text", "output_text", "text", "content", "description"),
    "summary_text",
)
"""Members that hold a text, in this order."""


REASONING = ("reasoning_content", "reasoning")
"""Members of a message that hold the text of a model's reasoning."""
_FINISH_WORDS = {
    **dict.fromkeys(
        ("max_tokens", "max_output_tokens", "max_completion_tokens", "max_length", "incomplete"),
        "length",
    ),
    **dict.fromkeys(
        ("abort", "aborted", "cancelled", "canceled", "error", "failed", "timeout"), "length"
    ),
    **dict.fromkeys(("content_filtered", "refusal", "safety"), "content_filter"),
}


class TokenCounts(NamedTuple):
    """TokenCounts that one answer reports; 0 where it reports none."""

    input: int = 0
    output: int = 0
    total: int = 0


class Answer(NamedTuple):
    """One answer.

    Attributes:
        text: None if the answer has none, or none that is known.
        calls: tool calls that the model requests.
        finish: why the model stopped (`finish_of`); empty if it did not say.
        tokens: as reported.
        members: the result's members as JSON; empty if it is not an object.
        is_known: whether the result has a known shape, so that no text means that the model gave
            none; of an unknown one it has no text.
        reasoning: the text of the model's reasoning; None if it gave none.
    """

    text: str | None
    calls: list[ToolCall]
    finish: str
    tokens: TokenCounts
    members: dict[str, msgspec.Raw]
    is_known: bool = True
    reasoning: str | None = None


def read_answer(result: Json) -> Answer:
    """Read a result of the API; a result of unknown shape has no text."""
    if begins(result, b'"'):
        return Answer(text_value(result), [], "", TokenCounts(), {})
    members = unwrapped(result)
    tokens = _tokens(members)
    if "choices" in members:
        return _of_choice(members, tokens)
    if begins(members.get("output", NULL), b"["):
        return _of_responses(members, tokens)
    calls = tool_calls_of(members.get("tool_calls", NULL))
    finish = finish_of(members.get("finish_reason", NULL))
    for name in TEXT_MEMBERS:
        raw = members.get(name, NULL)
        if bytes(raw) == b"null" or (name == "response" and vectors_of(members)):
            continue
        return Answer(text_value(raw), calls, finish, tokens, members)
    is_known = "response" in members and not vectors_of(members)
    return Answer(None, calls, finish, tokens, members, is_known)


_FENCED = re.compile(r"```[\w-]*[ \t]*\n(.*?)(?:\n?[ \t]*```|\Z)", re.DOTALL)
_FLAWS = {
    "empty_answer": "The model gave no text. Try it again.",
    "truncated_answer": "The answer was cut off. Raise max_tokens.",
}
"""Codes of answers that the API counts as good and nobody can use."""
_NO_ROOM = "All tokens were used before a text began. Raise max_tokens, or lower reasoning_effort."


def without_thoughts(text: str) -> str:
    """A text after its `<think>…</think>`; a model's template may have written the first tag."""
    thoughts, tag, rest = text.partition("</think>")
    if tag and thoughts.count("<think>") == thoughts.lstrip().startswith("<think>"):
        return rest.lstrip()
    return "" if text.lstrip().startswith("<think>") else text


def json_in(text: str) -> str:
    """The JSON that a text is, or that it has between the first code fences."""
    text = without_thoughts(text).strip()
    fenced = None if text[:1] in {"{", "["} else _FENCED.search(text)
    return fenced[1].strip() if fenced else text


def flaw_of(answer: Answer) -> tuple[str, str]:
    """Why an answer is none, as code and message: empty, or cut off; both empty if it is one."""
    text, code = without_thoughts(answer.text or "").strip(), ""
    is_cut = answer.finish == "length"
    if not text and not answer.calls:
        code = "empty_answer" if answer.is_known else ""
    elif is_cut or _is_cut_json(json_in(text)):
        code = "truncated_answer"
    is_full = code == "empty_answer" and is_cut
    return code, _NO_ROOM if is_full else _FLAWS.get(code, "")


def _is_cut_json(text: str) -> bool:
    if text[:1] not in {"{", "["}:
        return False
    try:
        msgspec.json.decode(text)
    except UNDECODABLE as error:
        return "truncated" in str(error)
    return False


def unwrapped(result: Json) -> dict[str, msgspec.Raw]:
    """A result's members; an object with no member but `result` is unwrapped."""
    members = object_of(result)
    for _ in range(4):
        inner = members_of(members["result"]) if list(members) == ["result"] else None
        if inner is None:
            break
        members = inner
    return members


def _of_choice(members: dict[str, msgspec.Raw], tokens: TokenCounts) -> Answer:
    choices = elements_of(members["choices"])
    choice = members_of(choices[0]) if choices else None
    message = object_of((choice or {}).get("message", NULL))
    content = message.get("content") or (choice or {}).get("text") or NULL
    calls = tool_calls_of(message.get("tool_calls", NULL))
    finish = finish_of((choice or {}).get("finish_reason", NULL))
    text = _text_of_content(content)
    reasoning = next(
        (text_value(message[name]) for name in REASONING if begins(message.get(name, NULL), b'"')),
        None,
    )
    return Answer(text, calls, finish, tokens, members, bool(choice), reasoning)


def _text_of_content(content: Json) -> str | None:
    """A message's content; parts of text are joined."""
    parts = value_of(content)
    if isinstance(parts, list):
        texts = [
            part["text"]
            for part in parts
            if isinstance(part, dict) and isinstance(part.get("text"), str)
        ]
        if texts and len(texts) == len(parts):
            return "".join(texts)
    return None if bytes(content) == b"null" else text_value(content)


def _of_responses(members: dict[str, msgspec.Raw], tokens: TokenCounts) -> Answer:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for raw in elements_of(members["output"]) or []:
        item = object_of(raw)
        kind = word_of(item.get("type", NULL))
        if kind == "function_call":
            calls += tool_calls_of(made([raw]))
        elif kind == "reasoning":
            thoughts += filter(None, [_text_of_content(item.get("content", NULL))])
        elif kind in {"message", ""}:
            text = _text_of_content(item.get("content", NULL))
            texts += [text] if text is not None else []
    incomplete = object_of(members.get("incomplete_details", NULL))
    finish = finish_of(incomplete.get("reason", NULL)) or finish_of(members.get("status", NULL))
    reasoning = "".join(thoughts) if thoughts else None
    return Answer(
        "".join(texts) if texts else None, calls, finish, tokens, members, reasoning=reasoning
    )


def finish_of(raw: Json) -> str:
    """Why a model stopped, in OpenAI's word where there is one.

    An answer that was cut off never looks complete.
    """
    word = word_of(raw).lower()
    return _FINISH_WORDS.get(word, word)


def vectors_of(members: dict[str, msgspec.Raw]) -> list[msgspec.Raw]:
    """Embeddings as JSON arrays, one per text; empty if the result has none."""
    for name in ("data", "response"):
        found = elements_of(members[name]) if begins(members.get(name, NULL), b"[") else None
        if found and all(begins(one, b"[") for one in found):
            return found
        if found and name == "data":
            inner = [object_of(one).get("embedding", NULL) for one in found]
            if all(begins(one, b"[") for one in inner):
                return inner
    return []


def _tokens(members: dict[str, msgspec.Raw]) -> TokenCounts:
    usage = value_of(members.get("usage", NULL))
    if not isinstance(usage, dict):
        return TokenCounts()

    def count_of(*names: str) -> int:
        return next(
            (usage[name] for name in names if type(usage.get(name)) is int and usage[name] >= 0), 0
        )

    taken, given = (
        count_of("prompt_tokens", "input_tokens"),
        count_of("completion_tokens", "output_tokens"),
    )
    return TokenCounts(taken, given, count_of("total_tokens") or taken + given)


def numbers_of(raw: Json) -> dict[str, int]:
    """The members of an object that are whole numbers."""
    counts = value_of(raw)
    return (
        {name: count for name, count in counts.items() if type(count) is int}
        if isinstance(counts, dict)
        else {}
    )


def text_value(raw: Json) -> str:
    """A JSON string's text.

    Anything else, also a string that cannot be decoded, as compact JSON.
    """
    value = value_of(raw)
    return value if isinstance(value, str) else compact(raw).decode(errors="replace")

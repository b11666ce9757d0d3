"""What a record's result says, in the shape of every format: text, embedding, why it ended.

So `answer` is the text in every dialect, without a model's thoughts.
"""

from __future__ import annotations

import base64
from array import array
from typing import Any

from dropbatch.core.formats.answers import Answer, read_answer
from dropbatch.core.formats.base import encode
from dropbatch.core.formats.tables import answer_text
from dropbatch.errors import Error

Path = tuple[str | int, ...]

_CONTENTS: tuple[Path, ...] = (
    ("content",),
    ("output", "message", "content"),
    ("results", 0, "outputText"),
    ("generation",),
    ("outputs", 0, "text"),
)
"""Where Anthropic and Bedrock's models have a text or its blocks; OpenAI's shapes are known."""
_ENDINGS: tuple[Path, ...] = (
    ("stop_reason",),
    ("stopReason",),
    ("results", 0, "completionReason"),
    ("outputs", 0, "stop_reason"),
)
_FINISH_WORDS = {
    **dict.fromkeys(("end_turn", "stop_sequence", "finish", "completed"), "stop"),
    "tool_use": "tool_calls",
}
_VECTORS: tuple[Path, ...] = (("embeddings", "float"), ("embeddings",), ("data",), ("response",))
_VECTOR_MEMBERS = frozenset({"embedding", "embeddings", "data"})
_NO_ANSWER = read_answer(b"null")


def answer_of(result: Any) -> Answer:
    """The answer that a result is; an embedding is none, and is not read."""
    if isinstance(result, dict) and _VECTOR_MEMBERS & result.keys():
        return _NO_ANSWER
    content = _first(result, _CONTENTS)
    if content is not None:
        result = _own_shape(content, _first(result, _ENDINGS))
    answer = read_answer(encode(result))
    return answer._replace(finish=_FINISH_WORDS.get(answer.finish, answer.finish))


def text_of(result: Any) -> str | None:
    """An answer's text, else its tool calls or the whole result as JSON."""
    if result is None:
        return None
    return answer_text(answer_of(result), encode(result))


def vector_of(result: Any, id_: int) -> list[float] | None:
    """An answer's embedding; None if it is none."""
    if not isinstance(result, dict):
        return None
    own = at(result, ("embedding",))
    found = [own] if own is not None else _first(result, _VECTORS)
    if not isinstance(found, list) or not found:
        return None
    vectors = [_numbers(one) for one in found]
    if None in vectors:
        return None
    if len(vectors) > 1:
        raise Error(
            f"Record {id_} has {len(vectors)} vectors. Send one text a record, or read them with "
            "`Job.results()`."
        )
    return vectors[0]


def _numbers(found: Any) -> list[float] | None:
    """A vector as it is written: numbers, those of OpenAI's object, or their base64."""
    if isinstance(found, dict):
        return _numbers(found.get("embedding"))
    if isinstance(found, list):
        return found if all(isinstance(one, int | float) for one in found) else None
    if not isinstance(found, str):
        return None
    try:
        return array("f", base64.b64decode(found, validate=True)).tolist()
    except ValueError:
        return None


def at(value: Any, path: Path) -> Any:
    """What a value has at a path; None if nothing."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = value[step] if isinstance(value, list) and len(value) > step else None
    return value


def _first(value: Any, paths: tuple[Path, ...]) -> Any:
    return next((found for path in paths if (found := at(value, path)) is not None), None)


def _own_shape(content: Any, ending: Any) -> dict[str, Any]:
    """A text, or blocks of one, as Workers AI's own answer."""
    blocks = content if isinstance(content, list) else [{"text": content}]
    texts = [at(one, ("text",)) for one in blocks]
    calls = [
        call
        for one in blocks
        if (call := one if at(one, ("type",)) == "tool_use" else at(one, ("toolUse",)))
    ]
    return {
        "response": "".join(one for one in texts if isinstance(one, str)),
        "tool_calls": [{"name": one["name"], "arguments": one["input"]} for one in calls],
        "finish_reason": ending,
    }

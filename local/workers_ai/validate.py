"""What a model's schema accepts as one request.

It finds what is wrong with a request; other modules decide what follows from that.
"""

from typing import Annotated, Literal

import msgspec

from local.workers_ai.catalogue import Family

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Embedding(msgspec.Struct):
    text: _Text | Annotated[list[_Text], msgspec.Meta(min_length=1)]
    pooling: Literal["mean", "cls"] = "mean"


class _M3Text(msgspec.Struct):
    text: _Text | Annotated[list[_Text], msgspec.Meta(min_length=1, max_length=100)]
    truncate_inputs: bool = False


class _Context(msgspec.Struct):
    text: _Text


class _M3Contexts(msgspec.Struct):
    contexts: Annotated[list[_Context], msgspec.Meta(min_length=1)]
    query: _Text | None = None
    truncate_inputs: bool = False


class _Translation(msgspec.Struct):
    text: _Text
    target_lang: str
    source_lang: str = "en"


class _Prompt(msgspec.Struct):
    prompt: _Text
    max_tokens: int | None = None
    temperature: float | None = None


class _Message(msgspec.Struct):
    role: str
    content: object = None


class _Messages(msgspec.Struct):
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None


class _Responses(msgspec.Struct):
    input: str | list[object]


class _Audio(msgspec.Struct):
    audio: object


class _Speech(msgspec.Struct):
    text: _Text


class _Rerank(msgspec.Struct):
    query: _Text
    contexts: list[_Context]


# Each family's alternatives: the property that distinguishes them, and its schema. The request must fit the first
# schema whose property is present.
_SCHEMAS: dict[Family, dict[str, type]] = {
    Family.EMBEDDING: {"text": _Embedding},
    Family.BGE_M3: {"contexts": _M3Contexts, "text": _M3Text},
    Family.TRANSLATION: {"text": _Translation},
    # Llama 3.3's batch schema has no `messages`, yet clients send them and read good answers.
    Family.LLAMA: {"messages": _Messages, "prompt": _Prompt},
    Family.CHAT: {"messages": _Messages, "prompt": _Prompt},
    Family.RESPONSES: {"input": _Responses},
    Family.SPEECH_TO_TEXT: {"audio": _Audio},
    Family.TEXT_TO_SPEECH: {"text": _Speech},
    Family.RERANKER: {"query": _Rerank},
}


def problem(family: Family, request: object, where: str, *, strict_reference: bool = False) -> str | None:
    """What is wrong with a request at this JSON pointer; None if nothing is."""
    if not isinstance(request, dict):
        return f"AiError: Bad input: Error: Type mismatch of '{where}', 'object' expected"
    reference = request.get("external_reference")
    if strict_reference and reference is not None and not isinstance(reference, str):
        return f"AiError: Bad input: Error: Type mismatch of '{where}/external_reference', 'string' expected"
    alternatives = _SCHEMAS[family]
    for name, schema in alternatives.items():
        if name in request:
            try:
                msgspec.convert(request, schema)
            except msgspec.ValidationError as error:
                return f"AiError: Bad input: Error: {error} at '{where}'"
            return None
    # Clients of gpt-oss get `oneOf` here with the names of other models' properties; only `oneOf` is worth
    # matching.
    required = ", ".join(f"required properties at '{where}' are '{name}'" for name in alternatives)
    return f"AiError: Bad input: Error: oneOf at '{where}' not met, 0 matches: {required}"

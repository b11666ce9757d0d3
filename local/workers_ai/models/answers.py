"""The answer to one request, made from the request alone, and its tokens.

Vectors and scores come from an embedder. Everything else is made up, but always the same for the
same request, so that a test can predict it: a translation is the text after its language in
brackets, a generated text repeats the prompt, a value for a JSON schema is the simplest one that
fits. Token counts are estimates: four characters are a token.
"""

import base64
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec

from local.workers_ai.models.catalogue import MODELS, Family, Model
from local.workers_ai.models.embed import Embedder, embedder, scores

_ECHO = 400  # Characters of the prompt that a generated text repeats.
_CREATED = 1_790_000_000
_DEPTH = 12  # A schema nested deeper than this gets null at the bottom.


class Answer(NamedTuple):
    """The `result` of one item, as JSON, and its tokens."""

    result: bytes
    prompt_tokens: int
    completion_tokens: int = 0


def answer_all(model: Model, requests: list[dict[str, Any]], embed: Embedder) -> list[Answer]:
    """The answers to requests that passed validation, in their order."""
    if model.family in (Family.EMBEDDING, Family.BGE_M3, Family.RERANKER):
        return [_embedding(model, request, embed) for request in requests]
    return [_TEXTS[model.family](model, request) for request in requests]


def expected_result(
    model: str,
    request: dict[str, Any],
    *,
    embedder_choice: Literal["words", "hash"] = "hash",
) -> Any:  # Any JSON value.
    """What a request's item must hold under `result`, from a server with the same `embedder`."""
    (answer,) = answer_all(MODELS[model], [request], embedder(embedder_choice))
    return msgspec.json.decode(answer.result)


def tokens(text: str) -> int:
    """An estimate of the tokens of a text."""
    return len(text) // 4 + 1


def _texts(request: dict[str, Any]) -> list[str]:
    if "contexts" in request:
        return [context["text"] for context in request["contexts"]]
    text = request["text"]
    return [text] if isinstance(text, str) else text


def _embedding(model: Model, request: dict[str, Any], embed: Embedder) -> Answer:
    if model.family is Family.RERANKER or (model.family is Family.BGE_M3 and request.get("query")):
        return _rerank(request, embed)
    own = _texts(request)
    vectors = b",".join(embed(own, model.dimension))
    shape = b"[%d,%d]" % (len(own), model.dimension)
    if "contexts" in request:
        result = b'{"response":[%b],"shape":%b,"pooling":"cls"}' % (vectors, shape)
    elif model.family is Family.BGE_M3:
        result = b'{"shape":%b,"data":[%b]}' % (shape, vectors)
    else:
        pooling = request.get("pooling", "mean").encode()
        result = b'{"shape":%b,"data":[%b],"pooling":"%b"}' % (shape, vectors, pooling)
    return Answer(result, sum(map(tokens, own)))


def _rerank(request: dict[str, Any], embed: Embedder) -> Answer:
    contexts = _texts(request)
    found = scores(embed, request["query"], contexts)
    result = {"response": [{"id": index, "score": score} for index, score in enumerate(found)]}
    return Answer(msgspec.json.encode(result), sum(map(tokens, [request["query"], *contexts])))


def _translation(_: Model, request: dict[str, Any]) -> Answer:
    translated = f"[{request['target_lang']}] {request['text']}"
    return Answer(
        msgspec.json.encode({"translated_text": translated}),
        tokens(request["text"]),
        tokens(translated),
    )


def _digest(request: dict[str, Any]) -> str:
    content = {name: value for name, value in request.items() if name != "external_reference"}
    return blake2b(msgspec.json.encode(content), digest_size=8).hexdigest()


def _content(content: object) -> str:
    """The text of a message's content: a string, or the texts among its parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(
        str(part.get("text", "")) for part in parts if isinstance(part, dict) and "text" in part
    )


def _last(messages: Iterable[object]) -> str:
    texts = [_content(message.get("content")) for message in messages if isinstance(message, dict)]
    return texts[-1] if texts else ""


def _prompt(request: dict[str, Any]) -> str:
    if "messages" in request:
        return _last(request["messages"])
    if "input" in request:
        given = request["input"]
        return given if isinstance(given, str) else _last(given)
    return str(request["prompt"])


class _Generated(NamedTuple):
    text: str
    value: Any
    """What the text represents if a JSON answer was requested, else None."""
    finish: str
    prompt_tokens: int
    completion_tokens: int

    @property
    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


def _generate(request: dict[str, Any], default_tokens: int) -> _Generated:
    prompt = _prompt(request)
    asked = request.get("response_format")
    form: dict[str, Any] = asked if isinstance(asked, dict) else {}
    wanted = form.get("type")
    value = None
    finish = "stop"
    if wanted in ("json_schema", "json_object"):
        schema = form.get("json_schema") or {}
        is_free = wanted == "json_object"
        plain = {"answer": prompt[:_ECHO]}
        value = plain if is_free else _instance(schema.get("schema", schema), prompt)
        text = msgspec.json.encode(value).decode()
    else:
        text = f"Local answer {_digest(request)}: {prompt[:_ECHO]}"
        given = request.get("max_completion_tokens") or request.get("max_tokens")
        most = 4 * (given or default_tokens)
        if len(text) > most:
            text, finish = text[:most], "length"
    return _Generated(text, value, finish, tokens(prompt), tokens(text))


def _instance(schema: object, prompt: str, depth: int = 0) -> Any:  # Any JSON value.
    """The simplest value that fits a JSON schema, filled with the beginning of the prompt."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        return None
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _instance(inner, prompt, depth + 1) for name, inner in properties.items()}
    if kind == "array":
        return [_instance(schema.get("items", {}), prompt, depth + 1)]
    plain = {"integer": len(prompt), "number": float(len(prompt)), "boolean": True}
    return plain.get(kind, prompt[:40])


def _llama(_: Model, request: dict[str, Any]) -> Answer:
    made = _generate(request, default_tokens=256)
    result: dict[str, Any] = {
        "response": made.text if made.value is None else made.value,
        # A captured reply of Llama 3.3 has this odd list whenever a schema was given.
        "tool_calls": [] if made.value is None else [{}],
        "usage": made.usage,
    }
    return Answer(msgspec.json.encode(result), made.prompt_tokens, made.completion_tokens)


def _chat(model: Model, request: dict[str, Any]) -> Answer:
    made = _generate(request, default_tokens=2048)
    choice: dict[str, Any] = {"index": 0, "finish_reason": made.finish}
    if "messages" in request:
        choice["message"] = {"role": "assistant", "content": made.text}
        kind, prefix = "chat.completion", "chatcmpl"
    else:
        choice["text"] = made.text
        kind, prefix = "text_completion", "cmpl"
    result = {"id": f"{prefix}-{_digest(request)}", "object": kind, "created": _CREATED}
    result |= {"model": model.name, "choices": [choice], "usage": made.usage}
    return Answer(msgspec.json.encode(result), made.prompt_tokens, made.completion_tokens)


def _responses(model: Model, request: dict[str, Any]) -> Answer:
    made = _generate(request, default_tokens=request.get("max_output_tokens") or 2048)
    digest = _digest(request)
    thought = [{"type": "reasoning_text", "text": "The stand-in repeats the prompt."}]
    said = [{"type": "output_text", "text": made.text, "annotations": []}]
    about = {"type": "message", "role": "assistant", "status": "completed"}
    result = {
        "id": f"resp_{digest}",
        "object": "response",
        "created_at": _CREATED,
        "model": model.name,
        "status": "completed",
        "output": [
            {"id": f"rs_{digest}", "type": "reasoning", "summary": [], "content": thought},
            {"id": f"msg_{digest}", **about, "content": said},
        ],
        "usage": {
            "input_tokens": made.prompt_tokens,
            "output_tokens": made.completion_tokens,
            "total_tokens": made.prompt_tokens + made.completion_tokens,
        },
    }
    return Answer(msgspec.json.encode(result), made.prompt_tokens, made.completion_tokens)


# No batch schema of the models of speech is published: both directions are invented.
def _transcript(_: Model, request: dict[str, Any]) -> Answer:
    text = f"Local transcript {_digest(request)}"
    return Answer(
        msgspec.json.encode({"text": text, "word_count": len(text.split())}), 0, tokens(text)
    )


def _speech(_: Model, request: dict[str, Any]) -> Answer:
    audio = base64.b64encode(f"Local speech: {request['text'][:_ECHO]}".encode()).decode()
    return Answer(msgspec.json.encode({"audio": audio}), tokens(request["text"]))


_TEXTS = {
    Family.TRANSLATION: _translation,
    Family.LLAMA: _llama,
    Family.CHAT: _chat,
    Family.RESPONSES: _responses,
    Family.SPEECH_TO_TEXT: _transcript,
    Family.TEXT_TO_SPEECH: _speech,
}

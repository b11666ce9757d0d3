"""Converts Gemini's requests to Workers AI's.

First to a chat request as other vendors write it, then by the table.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core.formats.base import BadRecordError, Json, Task, encode, value_of
from dropbatch.core.formats.conversion.requests import Endpoint, convert_body

if TYPE_CHECKING:
    from dropbatch.core.formats.base import Target

_SCHEMAS = ("responseSchema", "responseJsonSchema", "_responseJsonSchema")
_CONFIG_LEFT_OUT = frozenset(
    {
        *_SCHEMAS,
        "mediaResolution",
        "thinkingConfig",
        "responseMimeType",
        "responseModalities",
        "audioTimestamp",
    }
)
"""Members of `generationConfig` that have no name of their own in a chat request."""
_MODES = {"AUTO": "auto", "ANY": "required", "NONE": "none", "VALIDATED": "auto"}
_REFUSED_PARTS = frozenset(
    {"inlineData", "fileData", "executableCode", "codeExecutionResult", "videoMetadata"}
)
_SNAKE = re.compile(r"(?<=[a-z0-9])_([a-z])")


def convert_request(request: dict[str, msgspec.Raw], target: Target) -> dict[str, Json]:
    """The members of a request as the model takes them.

    Raises:
        BadRecordError: it contains something that the model does not accept.
    """
    members = {_camel(name): value_of(raw) for name, raw in request.items()}
    if target.task is Task.EMBEDDINGS:
        return _embeddings(members, target)
    body: dict[str, Any] = {"messages": _messages(members.get("contents"))}
    system = members.get("systemInstruction")
    if system:
        texts = (
            [{"type": "text", "text": system}]
            if isinstance(system, str)
            else _blocks(system, "systemInstruction")
        )
        body["system"] = texts
    body |= _config(members.get("generationConfig"))
    tools = [
        function
        for index, tool in enumerate(_list(members.get("tools")))
        for function in _tools(tool, index)
    ]
    if tools:
        body["tools"] = tools
    calling = _member(_member(members.get("toolConfig"), "functionCallingConfig"), "mode")
    if isinstance(calling, str) and calling in _MODES:
        body["tool_choice"] = _MODES[calling]
    raws = {name: msgspec.Raw(encode(value)) for name, value in body.items()}
    return convert_body(raws, Endpoint.CHAT, target, "request")


def _embeddings(members: dict[str, Any], target: Target) -> dict[str, Json]:
    """A request for embeddings: of one `content`, or of several `contents`."""
    is_one = "content" in members
    texts = []
    for index, content in enumerate(
        _list(members["content"] if is_one else members.get("contents"))
    ):
        path = "request.content" if is_one else f"request.contents[{index}]"
        if isinstance(content, str):
            texts.append(content)
        else:
            texts.append("\n".join(_text_of(block, path) for block in _blocks(content, path)))
    if not texts:
        raise BadRecordError("request.contents", "It must have a text.")
    body: dict[str, Any] = {"input": texts[0] if is_one else texts}
    length = members.get("outputDimensionality") or _member(
        members.get("embedContentConfig"), "outputDimensionality"
    )
    if length is not None:
        body["outputDimensionality"] = length
    raws = {name: msgspec.Raw(encode(value)) for name, value in body.items()}
    return convert_body(raws, Endpoint.EMBEDDINGS, target, "request")


def _text_of(block: dict[str, Any], path: str) -> str:
    if block["type"] != "text":
        raise BadRecordError(path, "Workers AI makes embeddings of text only.")
    return str(block["text"])


def _messages(contents: object) -> list[dict[str, Any]]:
    if isinstance(contents, str):
        return [{"role": "user", "content": contents}]
    if not isinstance(contents, list | dict):
        raise BadRecordError("request.contents", "It must be an array of contents.")
    messages = []
    for index, content in enumerate(_list(contents)):
        path = f"request.contents[{index}]"
        role = "assistant" if _member(content, "role") == "model" else "user"
        blocks = _blocks(content, path)
        is_text = all(block["type"] == "text" for block in blocks)
        text = "\n".join(block["text"] for block in blocks if block["type"] == "text")
        messages.append({"role": role, "content": text if is_text else blocks})
    return messages


def _blocks(content: object, path: str) -> list[dict[str, Any]]:
    """The parts of a content as Anthropic's blocks."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    parts = _member(content, "parts")
    if not isinstance(parts, list | dict):
        raise BadRecordError(path, "It must be an object with an array of parts.")
    blocks: list[dict[str, Any]] = []
    for index, part in enumerate(_list(parts)):
        where = f"{path}.parts[{index}]"
        known = (
            {_camel(name): value for name, value in part.items()} if isinstance(part, dict) else {}
        )
        if known.get("thought") is True:
            continue
        if isinstance(known.get("text"), str):
            blocks.append({"type": "text", "text": known["text"]})
        elif isinstance(call := known.get("functionCall"), dict):
            id_ = call.get("id") or f"call_{call.get('name')}"
            blocks.append(
                {
                    "type": "tool_use",
                    "id": id_,
                    "name": call.get("name"),
                    "input": call.get("args") or {},
                }
            )
        elif isinstance(answer := known.get("functionResponse"), dict):
            id_ = answer.get("id") or f"call_{answer.get('name')}"
            text = encode(answer.get("response")).decode()
            blocks.append({"type": "tool_result", "tool_use_id": id_, "content": text})
        else:
            what = next((name for name in known if name in _REFUSED_PARTS), "")
            fix = "Write text here, or send images as data URLs in OpenAI's format."
            raise BadRecordError(where, f"It is {f'{what}, no' if what else 'no'} text. {fix}")
    return blocks


def _config(config: object) -> dict[str, Any]:
    """`generationConfig` as members of a chat request."""
    known = (
        {_camel(name): value for name, value in config.items()} if isinstance(config, dict) else {}
    )
    own = {name: value for name, value in known.items() if name not in _CONFIG_LEFT_OUT}
    body: dict[str, Any] = {"generationConfig": own}
    schema = next((known[name] for name in _SCHEMAS if known.get(name) is not None), None)
    if schema is not None:
        body["response_format"] = {"name": "answer", "schema": json_schema(schema)}
    elif known.get("responseMimeType") == "application/json":
        body["response_format"] = {"type": "json_object"}
    modalities = known.get("responseModalities")
    if modalities and modalities != ["TEXT"]:
        raise BadRecordError(
            "request.generationConfig.responseModalities", "Workers AI answers with text here."
        )
    if _member(known.get("thinkingConfig"), "thinkingBudget") == 0:
        body["thinking"] = {"type": "disabled"}
    return body


def json_schema(schema: Any) -> Any:  # noqa: ANN401 # Whatever the user wrote.
    """A schema as Gemini writes it, as JSON Schema.

    Gemini's has types in capitals, `nullable`, whole numbers as strings, names in either case, and
    an underscore after those that Python has too (`type_`).
    """
    if isinstance(schema, list):
        return [json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for name, value in schema.items():
        keyword = _keyword(name)
        if keyword in _NAMED_SCHEMAS and isinstance(value, dict):
            found[keyword] = {own: json_schema(one) for own, one in value.items()}
        elif keyword == "type":
            found[keyword] = _lower(value)
        elif keyword in _COUNTS and isinstance(value, str) and value.isascii() and value.isdigit():
            found[keyword] = int(value)
        elif keyword == "$ref" and isinstance(value, str):
            found[keyword] = value.replace("#/defs/", "#/$defs/")
        elif keyword not in _SCHEMA_LEFT_OUT:
            found[keyword] = value if keyword in _VALUES else json_schema(value)
    if found.get("type") == "type_unspecified":
        del found["type"]
    return _with_null(found) if schema.get("nullable") is True else found


_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords of schemas by names that users choose."""
_COUNTS = frozenset(
    {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"}
)
_VALUES = frozenset({"enum", "const", "default", "example", "examples", "required"})
"""Keywords with values in which no keyword is."""
_SCHEMA_LEFT_OUT = frozenset({"propertyOrdering", "nullable"})


_VERTEX = {"defs": "$defs", "ref": "$ref"}
"""Keywords as Vertex AI writes them."""


def _keyword(name: str) -> str:
    return _VERTEX.get(name, name if name.startswith("$") else _camel(name.removesuffix("_")))


def _lower(kind: object) -> Any:  # noqa: ANN401
    if isinstance(kind, list):
        return [_lower(one) for one in kind]
    return kind.lower() if isinstance(kind, str) else kind


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, which null fits too."""
    kind = schema.get("type")
    if isinstance(kind, str) and kind != "null":
        schema["type"] = [kind, "null"]
    if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema


def _tools(tool: object, index: int) -> list[dict[str, Any]]:
    declared = _member(tool, "functionDeclarations")
    if not isinstance(declared, list):
        raise BadRecordError(
            f"request.tools[{index}]", "The models of Workers AI call functions, no other tools."
        )
    tools = []
    for function in declared:
        known = {name: _member(function, name) for name in ("name", "description")}
        schema = _member(function, "parametersJsonSchema") or _member(function, "parameters")
        known["parameters"] = json_schema(schema or {"type": "object", "properties": {}})
        given = {name: value for name, value in known.items() if value is not None}
        tools.append({"type": "function", "function": given})
    return tools


def _member(value: object, name: str) -> Any:  # noqa: ANN401 # Whatever the user wrote.
    """A member under its name in camel case or in snake case; None if there is none."""
    if not isinstance(value, dict):
        return None
    return value[name] if name in value else value.get(_snake(name))


@lru_cache(1024)
def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", lambda match: f"_{match.group(1).lower()}", name)


@lru_cache(1024)
def _camel(name: str) -> str:
    return _SNAKE.sub(lambda match: match.group(1).upper(), name)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]

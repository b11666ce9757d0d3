"""Chat messages in the form that Workers AI accepts: one text each, images only for vision models.

Content is a string, OpenAI's or Anthropic's typed parts, or Converse's blocks without a type. Parts
of text are joined with a line feed; calls of tools and their results become messages as OpenAI
writes them. Content of any other kind is sent as written.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

import msgspec

from dropbatch.core.formats.base import (
    NULL,
    UNDECODABLE,
    BadRecordError,
    Target,
    begins,
    compact,
    elements_of,
    made,
    members_of,
    object_of,
    value_of,
    word_of,
)
from dropbatch.core.formats.conversion.members import no_images
from dropbatch.core.formats.conversion.tools import function_call

Members = dict[str, msgspec.Raw]
Built = dict[str, Any]


TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
IMAGE_TYPES = frozenset({"image", "image_url", "input_image"})
REFUSED_TYPES = frozenset(
    {
        *("input_audio", "audio", "video", "video_url", "document", "file", "input_file"),
        *("document_url", "image_file"),
    }
)
"""Types of parts; a Converse block has none, and its only member is named like a type."""

DROPPED_TYPES = frozenset(
    {"thinking", "redacted_thinking", "reasoningContent", "cachePoint", "guardContent"}
)
"""Parts that other vendors' models or caches need, and Workers AI's do not."""

CALL_TYPES = frozenset({"tool_use", "toolUse"})
RESULT_TYPES = frozenset({"tool_result", "toolResult"})


class Names(NamedTuple):
    """What a record calls the messages and the system's text of a chat request, for error messages.

    Attributes:
        path: the body's name in the record.
        system: the member with the system's text.
        places: for each message, the index of the Responses API's item that it is made of; None for
            a chat request.
    """

    path: str
    system: str = "system"
    places: list[int] | None = None

    def message(self, index: int) -> str:
        """The name of a message."""
        return (
            f"{self.path}.messages[{index}]"
            if self.places is None
            else f"{self.path}.input[{self.places[index]}]"
        )


def chat_messages(
    messages: msgspec.Raw | None, system: msgspec.Raw | None, target: Target, names: Names
) -> msgspec.Raw:
    """A chat request's messages, after the system's text; or `BadRecordError`."""
    if messages is None or not begins(messages, b"["):
        raise BadRecordError(f"{names.path}.messages", "It must be an array of messages.")
    changed = _system_messages(system, f"{names.path}.{names.system}")
    if not changed and _are_plain(messages, target):
        return messages
    for index, raw in enumerate(elements_of(messages) or []):
        members = members_of(raw)
        if members is None:
            raise BadRecordError(names.message(index), "It must be an object.")
        known = {
            name: value for name, value in members.items() if name == "content" or value != NULL
        }
        if not target.schema.developer and word_of(members.get("role", NULL)) == "developer":
            known["role"] = made("system")
        changed += _converted(known, target, f"{names.message(index)}.content")
    if target.schema.call_ids:
        changed = [_with_call_ids(object_of(made(one)), target.schema.call_ids) for one in changed]
    return made(changed)


def _with_call_ids(message: Built, pattern: str) -> Built:
    """A message whose ids of tool calls match a pattern: others are replaced, alike everywhere."""
    if "tool_call_id" in message:
        message["tool_call_id"] = _fitting_id(message["tool_call_id"], pattern)
    if calls := elements_of(message.get("tool_calls", NULL)):
        message["tool_calls"] = [_with_id(one, pattern) for one in calls]
    return message


def _with_id(raw: msgspec.Raw, pattern: str) -> msgspec.Raw | Built:
    call = object_of(raw)
    return {**call, "id": _fitting_id(call["id"], pattern)} if "id" in call else raw


def _fitting_id(raw: msgspec.Raw, pattern: str) -> msgspec.Raw | str:
    text = word_of(raw)
    if re.search(pattern, text):
        return raw
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:9]


class _Message(msgspec.Struct):
    content: str
    role: str = ""
    tool_call_id: str | None = None


_decode_messages = msgspec.json.Decoder(list[_Message]).decode


def _are_plain(messages: msgspec.Raw, target: Target) -> bool:
    """Whether each content is a string, and no member null: then they are sent as written."""
    if b"null" in bytes(messages):
        return False
    try:
        found = _decode_messages(messages)
    except UNDECODABLE:
        return False
    if not target.schema.developer and any(one.role == "developer" for one in found):
        return False
    return not target.schema.call_ids or all(one.tool_call_id is None for one in found)


def _system_messages(system: msgspec.Raw | None, path: str) -> list[Built]:
    """The system's text as a message; none if there is none."""
    if system is None or bytes(system) in {b"null", b"[]"}:
        return []
    if begins(system, b'"'):
        return [{"role": "system", "content": system}]
    blocks = map(object_of, elements_of(system) or [NULL])
    texts = [text_of(one) for one in blocks if kind_of(one) not in DROPPED_TYPES]
    if None in texts:
        raise BadRecordError(path, "It must be a string or an array of text parts.")
    return [{"role": "system", "content": "\n".join(one or "" for one in texts)}]


# ── one message ───────────────────────────────────────────────────────────────────────────────────


def _converted(members: Members, target: Target, path: str) -> list[Built]:
    """One message as Workers AI takes it: several, if it has the results of several tools."""
    content = members.get("content", NULL)
    if content == NULL:
        return [{**members, "content": ""}]
    found = _read(elements_of(content) or [], target, path) if begins(content, b"[") else None
    if found is None:
        return [{**members}]
    changed = found.results
    if found.pieces or found.calls or not found.results:
        others = {name: value for name, value in members.items() if name != "content"}
        calls = {"tool_calls": found.calls} if found.calls else {}
        changed.append({**others, "content": _joined(found.pieces), **calls})
    return changed


class _Parts(NamedTuple):
    """A message's texts, and images as OpenAI's parts; calls of tools; their results."""

    pieces: list[str | Built]
    calls: list[Built]
    results: list[Built]


def _read(parts: list[msgspec.Raw], target: Target, path: str) -> _Parts | None:
    """The parts of a message; None if one is of an unknown kind."""
    found = _Parts([], [], [])
    is_known = True
    for index, members in enumerate(map(object_of, parts)):
        kind, text, place = kind_of(members), text_of(members), f"{path}[{index}]"
        inner = members_of(members.get(kind, NULL)) or members
        if text is not None:
            found.pieces.append(text)
        elif kind in IMAGE_TYPES:
            found.pieces.append(_image(members, target, place))
        elif kind in REFUSED_TYPES:
            message = (
                f"Workers AI takes text here, and images for some models, no {kind}. "
                "Write what is in it as text."
            )
            raise BadRecordError(place, message)
        elif kind in CALL_TYPES:
            found.calls.append(function_call(inner))
        elif kind in RESULT_TYPES:
            found.results.append(_result(inner, place))
        elif kind not in DROPPED_TYPES:
            is_known = False
    return found if is_known else None


def _result(members: Members, path: str) -> Built:
    """The result of a tool as a message."""
    call_id = members.get("tool_use_id") or members.get("toolUseId") or ""
    text = text_of_result(members.get("content", made("")), f"{path}.content")
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def text_of_result(content: msgspec.Raw, path: str) -> msgspec.Raw | str:
    """What a tool returned, as text; or `BadRecordError`: an image's bytes are no prompt."""
    if begins(content, b'"'):
        return content
    texts = []
    for index, raw in enumerate(elements_of(content) or [content]):
        members = object_of(raw)
        text = text_of(members)
        if text is None and (kind := kind_of(members)) in IMAGE_TYPES | REFUSED_TYPES:
            message = (
                f"What a tool returned can only be text here, no {kind}. Write what is "
                "in it as text."
            )
            raise BadRecordError(f"{path}[{index}]", message)
        text = value_of(members.get("text", NULL)) if text is None else text
        if not isinstance(text, str):
            text = compact(members.get("json", raw)).decode(errors="replace")
        texts.append(text)
    return "\n".join(texts)


def _joined(pieces: list[str | Built]) -> str | list[Built]:
    """Texts as one string; texts and images as OpenAI's parts."""
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if len(texts) == len(pieces):
        return "\n".join(texts)
    return [{"type": "text", "text": one} if isinstance(one, str) else one for one in pieces]


def kind_of(members: Members) -> str:
    """A part's type, or the name of a Converse block's only member."""
    return word_of(members.get("type", NULL)) or next(iter(members), "")


def text_of(members: Members) -> str | None:
    """A part's text; None for a part of another kind."""
    kind = kind_of(members)
    if kind == "document":
        return _text_of_document(members_of(members.get(kind, NULL)) or members)
    name = "text" if kind in TEXT_TYPES else "refusal" if kind == "refusal" else ""
    text = value_of(members[name]) if name in members else None
    return text if isinstance(text, str) else None


def _text_of_document(members: Members) -> str | None:
    """The text of Anthropic's or Converse's document, after its title; None of a file's bytes."""
    source = object_of(members.get("source", NULL))
    text = word_of(source.get("text", NULL))
    if word_of(source.get("type", NULL)) == "text":
        text = word_of(source.get("data", NULL))
    elif "content" in source:
        parts = map(object_of, elements_of(source["content"]) or [])
        text = word_of(source["content"]) or "\n".join(text_of(one) or "" for one in parts)
    about = [word_of(members.get(name, NULL)) for name in ("title", "context")]
    return "\n".join(filter(None, [*about, text])) if text else None


# ── images ────────────────────────────────────────────────────────────────────────────────────────


def _image(members: Members, target: Target, path: str) -> Built:
    """An image as OpenAI's part."""
    if target.images is False:
        raise BadRecordError(path, no_images(target.model))
    url = _data_url(value_of(made(members)))
    if not url.startswith("data:"):
        raise BadRecordError(
            path,
            "Workers AI takes images as data URLs (data:image/png;base64,…), no links, "
            "files or places in S3.",
        )
    inner = object_of(members.get("image_url", NULL))
    detail = {"detail": inner["detail"]} if "detail" in inner else {}
    return {"type": "image_url", "image_url": {"url": url, **detail}}


def _data_url(part: object) -> str:
    """The URL of an image in any vendor's part; empty for none."""
    part = part if isinstance(part, dict) else {}
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, dict) else url
    if isinstance(url, str):
        return url
    image = part.get("image")
    source = part.get("source") or (image.get("source") if isinstance(image, dict) else None)
    if not isinstance(source, dict):
        return ""
    if isinstance(image, dict) and isinstance(source.get("bytes"), str):
        return f"data:image/{image.get('format', 'png')};base64,{source['bytes']}"
    if isinstance(source.get("data"), str):
        return f"data:{source.get('media_type', 'image/png')};base64,{source['data']}"
    return ""

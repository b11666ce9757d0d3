"""Chat messages in the form that Workers AI accepts: one text each, images only for vision models.

Content is a string, OpenAI's or Anthropic's typed parts, or Converse's blocks without a type. Parts of text are joined
with a line feed. Content of any other kind, such as tool results, is sent as written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from shared.formats.base import (
    UNDECODABLE,
    BadRecordError,
    Json,
    begins,
    elements_of,
    encode,
    members_of,
    splice,
    splice_array,
    value_of,
)

if TYPE_CHECKING:
    from shared.formats.base import Target

TEXT_TYPES = frozenset({"text", "input_text", "output_text"})
IMAGE_TYPES = frozenset({"image", "image_url", "input_image"})
REFUSED_TYPES = frozenset({"input_audio", "audio", "video", "document", "file", "input_file"})
"""Types of parts; a Converse block has none, and its only member is named like a type."""


def chat_messages(messages: Json | None, system: Json | None, target: Target, path: str) -> Json:
    """The messages of a chat request, with the system's text as the first one.

    Args:
        messages: the member as JSON; None if it is missing.
        system: Anthropic's or Converse's `system` as JSON; None for none.
        target: what they are sent to.
        path: the body's name in the record, for error messages.

    Raises:
        BadRecordError: they are not an array of objects, or contain something that the model does not accept.
    """
    if messages is None or not begins(messages, b"["):
        raise BadRecordError(f"{path}.messages", "It must be an array of messages.")
    first = _system_message(system, path)
    if not first and _are_texts(messages):
        return messages
    changed: list[Json] = []
    if first:
        changed.append(first)
    for index, raw in enumerate(elements_of(messages) or []):
        members = members_of(raw)
        if members is None:
            raise BadRecordError(f"{path}.messages[{index}]", "It must be an object.")
        content = members.get("content", b"null")
        text = _content(content, target, f"{path}.messages[{index}].content") if begins(content, b"[") else None
        if text is None:
            changed.append(raw)
        else:
            changed.append(splice((name, text if name == "content" else value) for name, value in members.items()))
    return splice_array(changed)


class _Message(msgspec.Struct):
    content: str | None = None


_decode_messages = msgspec.json.Decoder(list[_Message]).decode


def _are_texts(messages: Json) -> bool:
    """Whether the content of each message is a string or missing, as usual: then they are sent as written."""
    try:
        _decode_messages(messages)
    except UNDECODABLE:
        return False
    return True


def _system_message(system: Json | None, path: str) -> bytes:
    """The system's text as a message; empty if there is none."""
    if system is None or bytes(system) == b"null":
        return b""
    text: Json | None = system
    if begins(system, b"["):
        values = value_of(system)
        texts = [_text_of(part) for part in values or []]
        text = encode("\n".join(one or "" for one in texts)) if None not in texts else None
    if text is None or not begins(text, b'"'):
        raise BadRecordError(f"{path}.system", "It must be a string or an array of text parts.")
    return splice([("role", b'"system"'), ("content", text)])


def _content(content: Json, target: Target, path: str) -> Json | None:
    """Parts as one string, or as OpenAI's parts for a vision model; None if they are sent as written.

    Raises:
        BadRecordError: they contain something that the model does not accept.
    """
    parts = value_of(content)
    if not isinstance(parts, list):
        return None
    texts = [_text_of(part) for part in parts]
    if None not in texts:
        return encode("\n".join(one or "" for one in texts))
    kinds = [_kind_of(part) for part in parts]
    for index, kind in enumerate(kinds):
        if kind in REFUSED_TYPES:
            raise BadRecordError(f"{path}[{index}]", "Workers AI takes text here, and images for some models.")
        if kind in IMAGE_TYPES and target.images is False:
            raise BadRecordError(f"{path}[{index}]", f"{target.model} takes only text, no images.")
    if not all(text is not None or kind in IMAGE_TYPES for text, kind in zip(texts, kinds, strict=True)):
        return None
    raws = elements_of(content) or []
    return splice_array(_openai_part(part, raw) for part, raw in zip(parts, raws, strict=True))


def _kind_of(part: object) -> str:
    """A part's type, or the name of a Converse block's only member."""
    if not isinstance(part, dict):
        return ""
    kind = part.get("type")
    return kind if isinstance(kind, str) else next(iter(part), "")


def _text_of(part: Any) -> str | None:  # noqa: ANN401  # whatever the user wrote
    """A part's text; None for a part of another kind."""
    kind = _kind_of(part)
    if kind in TEXT_TYPES and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    return None


def _openai_part(part: dict[str, Any], raw: Json) -> Json:
    """A text or an image in OpenAI's form; `raw` itself if it already has that form."""
    text = _text_of(part)
    if text is not None:
        return splice([("type", b'"text"'), ("text", encode(text))])
    url = _image_url(part)
    return splice([("type", b'"image_url"'), ("image_url", splice([("url", encode(url))]))]) if url else raw


def _image_url(part: dict[str, Any]) -> str:
    """The data URI of the image in Anthropic's or Converse's part; empty for any other part."""
    image = part.get("image")
    source = part.get("source") or (image.get("source") if isinstance(image, dict) else None)
    if not isinstance(source, dict):
        return ""
    if isinstance(image, dict) and isinstance(source.get("bytes"), str):
        return f"data:image/{image.get('format', 'png')};base64,{source['bytes']}"
    if isinstance(source.get("data"), str):
        return f"data:{source.get('media_type', 'image/png')};base64,{source['data']}"
    return ""

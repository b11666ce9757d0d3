"""Attachments: objects in S3 that records name as `{"s3": "key"}`, sent as the model takes them.

Keeps the promise that pictures and sound need not be pasted into an upload, at no cost for uploads
without any: the plan pins whether its beginning names one, and only then are records looked
through. A reference in a record, or a cell of a template's `{column:s3}`, becomes a mark: a text
that formats convert and schemas check like the text for which it stands. Then a function of the
caller's reads the objects, and their bytes are spliced in for the marks.

The stack's function (`functions/submit/objects.py`) reads only below `inbox/` and the source
prefix. What is staged is the request with its content and, beside it, the record as written, which
the retry file repeats. A death before the put reads again. After it, objects may have changed and
the cut may fall elsewhere: the staged object that begins where the last item ends counts, and
reading goes on from its end (`functions/submit/stage.py`). After the item nothing is read again.
Tiling and the SHA-256 of results see batches and their lines, which no attachment is part of. Pure.
"""

from __future__ import annotations

import re
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import msgspec

from dropbatch.core.formats.base import (
    API_BODY_LIMIT,
    BadRecordError,
    Converted,
    RecordFault,
    encode,
)
from dropbatch.core.models import Model
from dropbatch.core.requests import alternatives
from dropbatch.core.requests import content as schemas

Load = Callable[[Iterable[str]], Iterator[bytes | str]]
"""The contents of objects by their names in records, in order, or why one cannot be had."""
MAX_CONTENT_BYTES = API_BODY_LIMIT * 3 // 4
"""More does not fit in a request as base64; a `Load` need not read beyond this and a byte."""
MAX_ATTACHMENTS = 100
"""In one record."""
MAX_RECORDS = 500
"""In a batch: its objects are read while one lease lasts."""

_NAMED = re.compile(
    rb'"(url|image_url|data|bytes|image|audio)"\s*+:\s*+'
    rb'\{\s*+"s3"\s*+:\s*+("(?:[^"\\]|\\.)*+")\s*+\}'
)
_perhaps_named = re.compile(rb'"s3"').search  # Twice as fast as `in`: JSON is full of quotes.
UNNAMED = "s3: Its object is not read: the first 12 MB name none. Name one there."
_URLS = frozenset({"url", "image_url"})
_MARK = re.compile(rb'"(data:[^",]*,)?dropbatch-s3:(\w+):([\w=-]+)"')
_SIGNATURES = tuple(
    (re.compile(signature, re.DOTALL).match, kind)
    for signature, kind in (
        (rb"\x89PNG\r\n\x1a\n", "image/png"),
        (rb"\xff\xd8\xff", "image/jpeg"),
        (rb"GIF8", "image/gif"),
        (rb"RIFF....WEBP", "image/webp"),
        (rb"RIFF....WAVE", "audio/wav"),
        (rb"ID3|\xff[\xe2\xe3\xf2\xf3\xfa\xfb]", "audio/mpeg"),
        (rb"\xff[\xf1\xf9]", "audio/aac"),
        (rb"fLaC", "audio/flac"),
        (rb"OggS", "audio/ogg"),
        (rb"....ftyp", "audio/mp4"),
        (rb"\x1aE\xdf\xa3", "audio/webm"),
    )
)
_KINDS = {"image": "image/", "audio": "audio/"}
"""What the members are that some models take as an array of bytes."""
_DIGITS = [b"%d" % byte for byte in range(256)]


def names_any(beginning: bytes) -> bool:
    """Whether a record in an upload's beginning names an object; the first test is quick."""
    return _perhaps_named(beginning) is not None and _NAMED.search(beginning) is not None


def mark(member: str, name: str) -> str:
    """The text that stands for an object's content as a member's value."""
    prefix = "data:," if member in _URLS else ""
    return f"{prefix}dropbatch-s3:{member}:{urlsafe_b64encode(name.encode()).decode()}"


def marked(record: bytes) -> bytes:
    """A JSON record with a mark for each object that it names."""
    return _NAMED.sub(_marked, record)


def _marked(found: re.Match[bytes]) -> bytes:
    name = msgspec.json.decode(found[2], type=str)
    return b'"%b":%b' % (found[1], encode(mark(found[1].decode(), name)))


def shown(request: bytes) -> bytes:
    """A request with names for its marks, as its record has them."""
    return _MARK.sub(lambda found: b'{"s3":%b}' % encode(_name(found)), request)


def attach(
    requests: Iterable[Converted | RecordFault], load: Load, model: Model
) -> Iterator[Converted | RecordFault]:
    """The requests with the objects' contents for their marks, or why one cannot be sent."""
    found = [(one, _marks_of(one)) for one in map(_bounded, requests)]
    contents = load(_name(one) for _, marks in found for one in marks)
    for one, marks in found:
        if isinstance(one, Converted) and marks:
            yield _attached(one, marks, contents, model)
        else:
            yield one


def _marks_of(one: Converted | RecordFault) -> list[re.Match[bytes]]:
    return list(_MARK.finditer(one.request)) if isinstance(one, Converted) else []


def _bounded(one: Converted | RecordFault) -> Converted | RecordFault:
    if len(_marks_of(one)) <= MAX_ATTACHMENTS:
        return one
    message = f"s3: The record names more than {MAX_ATTACHMENTS} objects. Name fewer."
    return RecordFault("bad_record", message, one.reference)


def _name(found: re.Match[bytes]) -> str:
    return urlsafe_b64decode(found[3]).decode()


def _attached(
    one: Converted, marks: Sequence[re.Match[bytes]], contents: Iterator[bytes | str], model: Model
) -> Converted | RecordFault:
    """One request; every content is taken, and no more of them kept than a request can have."""
    pieces, at, size = list[bytes](), 0, len(one.request)
    fault: RecordFault | None = None
    for found, content in zip(marks, contents, strict=False):
        if fault is None:
            try:
                written = _written(found, content, model)
            except BadRecordError as error:
                fault = RecordFault(error.code, error.message, one.reference)
                continue
            pieces += (one.request[at : found.start()], written)
            at, size = found.end(), size + len(written)
            if size > API_BODY_LIMIT:
                pieces.clear()
                message = f"s3: Its objects make it larger than {API_BODY_LIMIT:,} bytes."
                fault = RecordFault("too_large", message, one.reference)
    return fault or Converted(b"".join((*pieces, one.request[at:])), one.reference)


def _written(found: re.Match[bytes], content: bytes | str, model: Model) -> bytes:
    """A content as JSON, as its member takes it."""
    member = found[2].decode()
    if isinstance(content, str):
        raise BadRecordError(member, content)
    named, kind = f"{_name(found)[:200]!r}", _kind_of(content)
    if len(content) > MAX_CONTENT_BYTES:
        message = f"{named} has more than {MAX_CONTENT_BYTES:,} bytes. Make it smaller."
        raise BadRecordError(member, message, "too_large")
    wanted = "image/" if found[1] else _KINDS.get(member, "")
    if not kind or not kind.startswith(wanted):
        known = ", ".join(one for _, one in _SIGNATURES if one.startswith(wanted))
        raise BadRecordError(member, f"{named} is {kind or 'of no known type'}. Take {known}.")
    if found[1]:
        return b'"data:%b;base64,%b"' % (kind.encode(), b64encode(content))
    if member in _KINDS and not _takes_text(model.schema, member):
        return b"[%b]" % b",".join([_DIGITS[byte] for byte in content])
    return b'"%b"' % b64encode(content)


def _kind_of(content: bytes) -> str:
    return next((kind for is_one, kind in _SIGNATURES if is_one(content)), "")


@cache
def _takes_text(schema: str, member: str) -> bool:
    """Whether a published schema has base64 as a member; other models take an array of bytes."""
    forms = alternatives(schema) if schema in schemas()["schemas"] else ()
    return any(one.members.get(f"{member}!") == "string" for one in forms)

"""Which format a file has, by its key's extension, or the records at its beginning."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import (
    API_BODY_LIMIT,
    BOM,
    UNDECODABLE,
    Json,
    begins,
    is_json,
    value_of,
)
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.models import model_id
from dropbatch.core.read.form import end_of_value

LOOKED_AT_LINES = 100
"""First lines of which at least one must be JSON, unless the file is one of the other formats."""

PACKED = (".gz", ".zst")
EXTENSIONS = {known.extension: name for name, known in FORMATS.items() if known.extension}

_SPACE = b" \t\r\n"
_BLANKS = re.compile(rb"[ \t\r\n]*")

_NONE = (
    "None of the first lines is JSON. Upload JSON Lines, one request object per line, as `jq -c` "
    "writes them; a table under a name that ends in .csv or .tsv; one text per line under a name "
    "that ends in .txt; or set the option format."
)
_NO_LINES = (
    "The upload begins with JSON, but not one object a line: objects follow each other without "
    "line ends, as Firehose writes them, or one has several lines. `jq -c . FILE` writes one a "
    "line; Firehose does, if a new line is set as its delimiter."
)
_OUTPUT = (
    "{place} is a batch's result, not a request. Upload the file of requests; to try the failed "
    "ones again, upload the retry file of their job."
)
_BARE = (
    "Each record is the bare body of a request to OpenAI, which does not say what it is for. "
    'Write each record as {"custom_id": …, "url": "/v1/embeddings", "body": {…}}, or as a request '
    "of Workers AI itself."
)
_NO_RECORD = (
    "None of the first lines is a record of the format {name}, which was named for this "
    "file: each must {members}."
)


GEMINI_GONE = (
    "Batch files of Gemini are not read since 0.9. Write it as a batch file of OpenAI, "
    "or as JSON Lines with a template."
)

# What needs no other member is looked for first.
_SIGNS = sorted(
    ((name, known.sign) for name, known in FORMATS.items() if known.sign),
    key=lambda named: bool(named[1].beside),
)


def _decoder_of(members: Iterable[str]) -> Callable[[Json], Any]:
    """A decoder of these members of an object, each as its bytes, empty for a missing one."""
    fields = [(name, msgspec.Raw, msgspec.Raw()) for name in sorted(set(members))]
    return msgspec.json.Decoder(msgspec.defstruct("Members", fields)).decode


_LOOKED_FOR = (
    *("response", "result", "error", "success", "custom_id", "body", "params", "request"),
    *("modelInput", "modelOutput", "model", "input", "messages"),
    *(name for _, sign in _SIGNS for name in (sign.member, *sign.beside)),
)
_decode_members = _decoder_of(_LOOKED_FOR)
_decode_gemini = _decoder_of(("contents", "content"))


class _Seen(NamedTuple):
    """What a record is, and its place from 1."""

    kind: str
    place: int


class Head(NamedTuple):
    """A file's first bytes, whether these are all, its form, and the elements of a document."""

    text: bytes
    complete: bool = True
    form: str = "jsonl"
    elements: Sequence[bytes] | None = None

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Each record, with its place from 1: that of its line, or of the element."""
        if self.elements is None:
            return _lines(self.text, complete=self.complete)
        return enumerate(self.elements, 1)


def detect_format(key: str, head: Head) -> str:
    """The format of the first record that has the members of one; or `UploadRefused`."""
    if head.form == "object":
        return "native"
    is_lines = head.form == "jsonl"
    by_extension = extension_format(key) if is_lines else ""
    if by_extension and head.text.removeprefix(BOM).lstrip(_SPACE)[:1] not in {b"{", b"["}:
        return by_extension
    records = head.records()
    if not any(mark in head.text for mark in _MARKS):
        # no record names a format: the first ones say what the file is
        records = islice(records, LOOKED_AT_LINES)
    word = "Line" if is_lines else "Element"
    first, kinds = _look(records, word, any_json=bool(by_extension))
    if first:
        return first
    if by_extension and kinds <= _NO_OBJECT:
        return by_extension
    if is_lines and kinds <= {"broken"} and _has_no_lines(head.text):
        raise UploadRefused("unknown_format", _NO_LINES)
    if is_lines and kinds == {"broken"}:
        raise UploadRefused("unknown_format", _NONE)
    if kinds - {"broken"} == {"bare"}:
        raise UploadRefused("unknown_format", _BARE)
    return "native"


def _has_no_lines(head: bytes) -> bool:
    """Whether a text begins with an object that does not end where its line does."""
    text = head.removeprefix(BOM).lstrip()
    end = end_of_value(text, 0) if text.startswith(b"{") else None
    if end is None or not is_json(text[:end]):
        return False
    return b"\n" in text[:end] or text[end:].lstrip(b" \t").startswith(b"{")


def check_named(name: str, head: Head) -> None:
    """Check that a named format of JSON fits one of a file's first records; or `UploadRefused`."""
    kinds = {_kind_of(record) for _, record in islice(head.records(), LOOKED_AT_LINES)}
    sign = FORMATS[name].sign
    if not kinds or (name in kinds if sign else kinds - _NO_OBJECT):
        return
    members = "be a JSON object"
    if sign:
        members += f" with {sign.member}"
        members += f" and {' or '.join(sign.beside)}" if sign.beside else ""
    raise UploadRefused("unknown_format", _NO_RECORD.format(name=name, members=members))


def _look(
    records: Iterable[tuple[int, bytes]], word: str, *, any_json: bool
) -> tuple[str, set[str]]:
    """The format that records have, empty for none, and all kinds of records there are."""
    first: _Seen | None = None
    kinds: set[str] = set()
    hopeless = _NO_OBJECT if any_json else {"broken"}
    for looked_at, (place, record) in enumerate(records, 1):
        kind = _kind_of(record)
        kinds.add(kind)
        if kind in _NAMED:
            first = first or _Seen(kind, place)
            if kind != first.kind:
                raise UploadRefused("unknown_format", _two(word, first, _Seen(kind, place)))
        if looked_at == LOOKED_AT_LINES and kinds <= hopeless:
            break
    if first and first.kind == "output":
        raise UploadRefused("unknown_format", _OUTPUT.format(place=f"{word} {first.place}"))
    if first and first.kind == "gemini":
        raise UploadRefused("unknown_format", GEMINI_GONE)
    return first.kind if first else "", kinds


_MARKS = tuple(
    f'"{name}"'.encode()
    for name in (*(sign.member for _, sign in _SIGNS), "request", "response", "result", "error")
)
"""Members without which no record is of another format than the native one."""
_NAMED = frozenset({"output", "gemini", *(name for name, _ in _SIGNS)})
_NO_OBJECT = frozenset({"broken", "value"})


def _two(word: str, *both: _Seen) -> str:
    one, other = (
        f"{word} {seen.place} is "
        f"{'a result' if seen.kind == 'output' else f'of the format {seen.kind}'}"
        for seen in both
    )
    return f"{one}, and {other[0].lower()}{other[1:]}. Upload each format as a file of its own."


def _kind_of(record: bytes) -> str:
    """A format, `output`, `bare`, `native`, `value` (JSON that is no object), or `broken`."""
    try:
        return _kind_of_object(_decode_members(record))
    except UNDECODABLE:
        return "value" if is_json(record) else "broken"


def _kind_of_object(found: Any) -> str:  # A type made at run time.
    if _is_output(found):
        return "output"
    for name, sign in _SIGNS:
        request = getattr(found, sign.member)
        if not begins(request, b"{") or (
            sign.beside and not any(getattr(found, one) for one in sign.beside)
        ):
            continue
        return name
    if _is_gemini(found.request):
        return "gemini"
    return "bare" if found.model and found.input and not found.messages else "native"


def _is_gemini(request: Json) -> bool:
    if not begins(request, b"{"):
        return False
    inside = _decode_gemini(request)
    return bool(inside.contents or inside.content)


def _is_output(found: Any) -> bool:  # A type made at run time.
    """Whether a record is a result of Bedrock's, OpenAI's, Anthropic's or our own."""
    if found.modelOutput or (found.modelInput and found.error):
        return True
    if found.body or found.params or begins(found.modelInput, b"{"):
        return False
    if found.custom_id and found.response:
        return True
    return bool((found.custom_id or found.success) and (found.result or found.error))


def extension_format(key: str) -> str:
    """The format that a key's extension names; empty for none."""
    name = key.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    return next((found for ending, found in EXTENSIONS.items() if name.endswith(ending)), "")


_MODEL = b'"model"'


def first_model(format_: str, head: Head) -> str:
    """The first model id that a record of a format names; empty if there is none."""
    sign = FORMATS[format_].sign
    if format_ != "native" and not (sign and sign.names_model):
        return ""
    if _MODEL not in head.text:
        return ""  # Nearly always, so without a look at each line.
    for _, record in head.records():
        value: Any = value_of(record) if _MODEL in record else None
        body = value.get(sign.member) if sign and isinstance(value, dict) else value
        if found := model_id(body.get("model") if isinstance(body, dict) else None):
            return found
    return ""


def _lines(head: bytes, *, complete: bool) -> Iterator[tuple[int, bytes]]:
    """Each whole line that is not blank or too long for a record, with its number from 1."""
    at, number = len(BOM) if head.startswith(BOM) else 0, 1
    # It also matches nothing.
    while (begin := _BLANKS.match(head, at).end()) < len(head):  # type: ignore[union-attr]
        number += head.count(b"\n", at, begin)
        end = head.find(b"\n", begin)
        if end < 0:
            if not complete:
                return
            end = len(head)
        at = end
        if end - begin <= API_BODY_LIMIT:
            yield number, head[begin:end]

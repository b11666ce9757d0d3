"""Which format a file has: from its options, its key's extension, or the lines at its beginning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from shared.errors import UploadError
from shared.formats.base import UNDECODABLE
from shared.formats.openai import model_id
from shared.settings import API_BODY_LIMIT

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOKED_AT_LINES = 100
"""First lines of which at least one must be JSON, unless the file is one of the other formats."""

PACKED = (".gz", ".zst")
EXTENSIONS = {".csv": "csv", ".tsv": "tsv", ".txt": "text"}

UNREADABLE = object()
"""Represents the value of a line that is not JSON."""

_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_BLANKS = re.compile(rb"[ \t\r\n]*")
_decode = msgspec.json.Decoder().decode

_ANTHROPIC = (
    "The file is written for Anthropic's batches ('custom_id' with 'params'). Write each record as in OpenAI's "
    "batches, with 'body' in place of 'params', or as a request of Workers AI itself."
)
_NONE = (
    "None of the first lines is JSON. Upload JSON Lines, one request object per line; a table under a name that ends "
    "in .csv or .tsv; one text per line under a name that ends in .txt; or name the format in x-amz-meta-format."
)


def detect_format(key: str, head: bytes, *, complete: bool, form: str = "jsonl") -> str:
    """The format of a file, if no option names it.

    Args:
        key: the upload's key.
        head: its first unpacked bytes.
        complete: whether these are all of them.
        form: `jsonl`, or `object` or `array` for a document.

    Raises:
        UploadError: `unknown_format`: it has no known format, or one that is not supported.
    """
    if form != "jsonl":
        return "native"
    first = head.removeprefix(_BOM).lstrip(_SPACE)[:1]
    by_extension = extension_format(key)
    if by_extension and first not in {b"{", b"["}:
        return by_extension
    readable = looked_at = 0
    for value in _values(head, complete=complete):
        looked_at += 1
        if value is not UNREADABLE:
            readable += 1
            if isinstance(value, dict):
                return _format_of(value)
        if looked_at == LOOKED_AT_LINES and not readable:
            break
    if looked_at and not readable:
        raise UploadError("unknown_format", _NONE)
    return "native"


def extension_format(key: str) -> str:
    """The format that a key's extension names; empty for none."""
    name = key.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    return next((found for ending, found in EXTENSIONS.items() if name.endswith(ending)), "")


def _format_of(record: dict[str, Any]) -> str:
    if "custom_id" in record:
        if isinstance(record.get("body"), dict):
            return "openai"
        if isinstance(record.get("params"), dict):
            raise UploadError("unknown_format", _ANTHROPIC)
    return "bedrock" if isinstance(record.get("modelInput"), dict) else "native"


def first_model(head: bytes, *, complete: bool) -> str:
    """The first `body.model` that is a model id, in an OpenAI batch file; empty if there is none."""
    for value in _values(head, complete=complete):
        body = value.get("body") if isinstance(value, dict) else None
        model = body.get("model") if isinstance(body, dict) else None
        if isinstance(model, str) and (found := model_id(model)):
            return found
    return ""


def _values(head: bytes, *, complete: bool) -> Iterator[Any]:
    """The value of each line that is whole and not blank; `UNREADABLE` for one that is not JSON."""
    at = len(_BOM) if head.startswith(_BOM) else 0
    while (at := _BLANKS.match(head, at).end()) < len(head):  # type: ignore[union-attr] # It also matches nothing.
        end = head.find(b"\n", at)
        if end < 0:
            if not complete:
                return
            end = len(head)
        line = head[at:end]
        at = end + 1
        if len(line) > API_BODY_LIMIT:
            continue
        try:
            yield _decode(line)
        except UNDECODABLE:
            yield UNREADABLE

"""One record: whether it can be sent, and what is kept of one that cannot be. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from dropbatch.core.formats.base import (
    API_BODY_LIMIT,
    UNDECODABLE,
    compact,
    one_line,
    readable_json,
)
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.plan import SplitPlan
from dropbatch.core.read.form import whole_members
from dropbatch.core.read.index import NO_REFERENCE, WRAPPER_BYTES, UnsendableRecord
from dropbatch.core.read.inputs import Inputs, Request
from dropbatch.core.read.lines import (
    LINE_SPACE,
    about_lone_surrogate,
    excerpt_of,
    without_lone_surrogates,
)
from dropbatch.core.read.rows import EXCERPT_BYTES, OverlongRecord, whole_fields

LONE_SURROGATE = "bad_record"
"""The code of a record with half of a surrogate pair. The only one of those of `validate_record`
that is retried."""

_decode = msgspec.json.Decoder().decode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode
_decode_request = msgspec.json.Decoder(Request).decode
_encode = msgspec.json.Encoder().encode


class _Reference(msgspec.Struct):
    external_reference: msgspec.Raw = NO_REFERENCE


_decode_reference = msgspec.json.Decoder(_Reference).decode


class Sendable(NamedTuple):
    """A valid record as it is in the body, and its `external_reference` as JSON."""

    raw: bytes
    reference: msgspec.Raw


def validate_record(
    raw: bytes | OverlongRecord, line: int | None, inputs: Inputs | None = None
) -> Sendable | UnsendableRecord | None:
    """A record that can be sent, or why it cannot be; None for a blank line.

    `inputs`: what it must have, if it is sent as written; then a number out of range, as 1e999, is
    wrong in its `external_reference` alone. None if it is converted, so that all is read.
    """
    if not raw:
        return None
    if isinstance(raw, OverlongRecord) or _is_too_large(raw):
        beginning = beginning_of(raw)
        return too_large(len(raw), line, excerpt_json(beginning)) if beginning else None
    if inputs and (read := inputs.read(raw)):
        return Sendable(raw.removesuffix(b"\r"), reference_of(read.external_reference, raw))
    try:
        is_object = _is_object(raw, out_of_range=inputs is not None)
        reference = _decode_request(raw).external_reference if is_object else None
        fault = inputs.fault(raw) if inputs and is_object else None
    except UNDECODABLE as error:
        return _unreadable(raw, line, error)
    text = raw.removesuffix(b"\r")
    if not is_object:
        message = "The record is JSON, but not an object. Write one request object."
        return _unsendable("not_an_object", line, message, msgspec.Raw(readable_json(text)))
    if fault:
        return _unsendable(fault.code, line, fault.message, msgspec.Raw(readable_json(text)))
    return Sendable(text, reference_of(reference, raw))


def _is_too_large(raw: bytes) -> bool:
    return len(raw) - raw.endswith(b"\r") >= API_BODY_LIMIT - WRAPPER_BYTES


def _is_object(raw: bytes, *, out_of_range: bool) -> bool:
    """Whether JSON is an object; its numbers may be out of range only if that is said."""
    try:
        return type(_decode(raw)) is dict
    except msgspec.ValidationError:
        if not out_of_range:
            raise
    raw.decode()
    return bytes(_decode_raw(raw)).startswith(b"{")


def reference_of(reference: object, raw: bytes) -> msgspec.Raw:
    """A record's `external_reference` as JSON on one line."""
    if reference is None:
        return NO_REFERENCE
    if type(reference) is str:
        return msgspec.Raw(_encode(reference))
    return msgspec.Raw(one_line(_decode_reference(raw).external_reference))


def reference_kept(raw: bytes | OverlongRecord, fault: UnsendableRecord) -> msgspec.Raw:
    """The reference of a record that cannot be sent; if it is too large, of its beginning."""
    found = b""
    if fault.code == "too_large":
        found = whole_members(beginning_of(raw))
    elif fault.code in {"bad_record", "mismatched_model"} and isinstance(raw, bytes):
        found = without_lone_surrogates(raw)
    if not found:
        return NO_REFERENCE
    return reference_of(_decode_request(found).external_reference, found)


def beginning_of(raw: bytes | OverlongRecord) -> bytes:
    """What is kept of a record that is too large, wherever the blocks end in which it was read."""
    return raw.beginning if isinstance(raw, OverlongRecord) else excerpt_of(raw)


# ── why it cannot be sent ─────────────────────────────────────────────────────────────────────────


def _unsendable(
    code: str, line: int | None, message: str, request: msgspec.Raw
) -> UnsendableRecord:
    return UnsendableRecord(code, located(line, message), request)


def too_large(length: int, line: int | None, request: msgspec.Raw) -> UnsendableRecord:
    """A record whose request reaches the limit of a body; `request` is its beginning, as JSON."""
    message = (
        f"The record has {length:,} bytes; a request body must stay under "
        f"{API_BODY_LIMIT:,}. Shorten it."
    )
    return _unsendable("too_large", line, message, request)


def _unreadable(raw: bytes, line: int | None, error: Exception) -> UnsendableRecord | None:
    if not raw.strip(LINE_SPACE):
        return None
    try:
        raw.decode()
    except UnicodeDecodeError as wrong:
        message = f"Byte {wrong.start + 1} of the record is not UTF-8. Save the file as UTF-8."
        return _unsendable("invalid_utf8", line, message, excerpt_json(raw))
    if found := _lone_surrogate(raw, line):
        return found
    reason = "too deeply nested" if isinstance(error, RecursionError) else str(error)
    message = f"The record is not valid JSON ({reason}). Write one JSON object per line."
    return _unsendable("invalid_json", line, message, excerpt_json(raw))


def _lone_surrogate(raw: bytes, line: int | None) -> UnsendableRecord | None:
    """A record that is an object but for half of a surrogate pair, with its whole text."""
    try:
        _decode_request(without_lone_surrogates(raw))
    except UNDECODABLE:
        return None
    message = about_lone_surrogate(raw)
    if not message:  # It is not JSON for another reason, such as a number out of range.
        return None
    text = raw.removesuffix(b"\r").decode()
    return _unsendable(LONE_SURROGATE, line, message, msgspec.Raw(_encode(text)))


def excerpt_json(text: bytes) -> msgspec.Raw:
    """The beginning of a record that cannot be read, as a JSON string."""
    return msgspec.Raw(_encode(text[:EXCERPT_BYTES].removesuffix(b"\r").decode(errors="replace")))


def located(line: int | None, message: str) -> str:
    """A message with the record's line, if it has one."""
    return message if line is None else f"Line {line}: {message}"


# ── what a reader converts ────────────────────────────────────────────────────────────────────────


def judge_of(plan: SplitPlan) -> Callable[..., bytes | UnsendableRecord | None]:
    """What says of a record, and its line, what a reader converts, why nothing, or None."""
    if FORMATS[plan.format].is_json:
        return _json_object
    return _row if plan.is_table else _line_of_text


def _json_object(raw: bytes | OverlongRecord, line: int | None) -> bytes | UnsendableRecord | None:
    """A JSON object as it was written, on one line."""
    judged = validate_record(raw, line)
    if judged is None or isinstance(judged, UnsendableRecord):
        return judged
    return compact(judged.raw) if line is None else judged.raw


def _row(raw: bytes | OverlongRecord, line: int | None) -> bytes | UnsendableRecord | None:
    """A table's row as it was written."""
    if isinstance(raw, OverlongRecord):
        return too_large(len(raw), line, excerpt_json(raw.beginning))
    return raw or None


def _line_of_text(raw: bytes | OverlongRecord, line: int | None) -> bytes | UnsendableRecord | None:
    """A line of text as it was written."""
    if isinstance(raw, OverlongRecord):
        return too_large(len(raw), line, excerpt_json(raw.beginning)) if raw.beginning else None
    return raw.removesuffix(b"\r") if raw.strip(LINE_SPACE) else None


def kept_of(
    plan: SplitPlan, fault: UnsendableRecord, raw: bytes | OverlongRecord
) -> tuple[bytes, bytes]:
    """What is kept of a record that cannot be sent, and the same as a reader can read it."""
    if fault.code == LONE_SURROGATE and isinstance(raw, bytes):
        return one_line(raw.removesuffix(b"\r")), without_lone_surrogates(raw)
    found = b""
    if fault.code == "too_large" and plan.is_table:
        beginning = raw.beginning if isinstance(raw, OverlongRecord) else raw[:EXCERPT_BYTES]
        found = whole_fields(beginning, plan.delimiter.encode())
    elif fault.code == "too_large" and FORMATS[plan.format].is_json:
        found = whole_members(beginning_of(raw))
    return found, found

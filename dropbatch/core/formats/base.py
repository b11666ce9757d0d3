"""What all formats share: the interface to the split and to the join, and the splicing of JSON.

A reader turns records as written into requests. A writer turns outcomes into lines of the result
files. Both get a record's exact bytes; values that do not change are copied as bytes and never
decoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import msgspec

from dropbatch.core.requests import Schema

NULL = msgspec.Raw(b"null")
BOM = b"\xef\xbb\xbf"
_LF, _CR = b"\n\r"  # Numbers: `in` finds them at a fraction of the cost of bytes.
UNREADABLE_CODES = frozenset({"invalid_json", "not_an_object", "invalid_utf8"})
"""Codes of records that no format could read."""
NOT_RETRIED = UNREADABLE_CODES | {"too_large", "bad_record"}
"""Codes of records that are not in the retry file: they would fail again. Of a row that is too
large, only some fields are kept."""
API_BODY_LIMIT = 10_000_000
"""A submitted body must have fewer bytes: Cloudflare documents only "under 10 MB". A MB is taken as
10^6."""
REFUSED_CODES = UNREADABLE_CODES | {"bad_record", "mismatched_model", "too_large", "rejected"}
"""Codes of failed records that are the record's own fault."""

encode = msgspec.json.Encoder().encode
_decode_any = msgspec.json.Decoder().decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode

UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not JSON, or not of the requested type."""

Json = bytes | msgspec.Raw


class Task(StrEnum):
    """What a model does."""

    EMBEDDINGS = "embeddings"
    TRANSLATION = "translation"
    GENERATION = "generation"
    TRANSCRIPTION = "transcription"
    SPEECH = "speech"
    CLASSIFICATION = "classification"
    """Also to rank texts, and to judge whether messages are safe."""
    UNKNOWN = ""


class Shape(StrEnum):
    """Which member of a request takes a model's input."""

    TEXT = "text"
    PROMPT = "prompt"
    """`prompt` or `messages`."""
    MESSAGES = "messages"
    INPUT = "input"
    """The Responses API's shape."""
    AUDIO = "audio"
    UNKNOWN = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What requests are made for.

    Attributes:
        images: whether messages may contain images; None if unknown.
        plain_schema: whether `response_format.json_schema` is the schema itself, without OpenAI's
            name and wrapper.
        system: system prompt for the rows of tables and the lines of text; empty for none.
        endpoint: that every record must be for, of those that OpenAI's batches have; empty for any.
        defaults: members for every request that has no member of that name, as JSON.
    """

    model: str
    task: Task = Task.UNKNOWN
    shape: Shape = Shape.UNKNOWN
    images: bool | None = None
    plain_schema: bool = False
    template: str = ""
    system: str = ""
    endpoint: str = ""
    defaults: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    schema: Schema = field(default_factory=Schema)
    dimensions: int | None = None


class Converted(NamedTuple):
    """A request as it is sent, and the record's reference as JSON."""

    request: bytes
    reference: msgspec.Raw


class RecordFault(NamedTuple):
    """Why one record cannot be sent; the message begins with the member at fault, if any."""

    code: str
    message: str
    reference: msgspec.Raw = NULL


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What result lines contain about a batch; the last two are empty if it was never accepted."""

    job_id: str
    model: str
    request_id: str = ""
    accepted_at: float = 0.0


class Outcome(NamedTuple):
    """How one record ended: its exact bytes, if kept, and its result, None if it failed."""

    id: int
    reference: Json
    record: bytes
    result: Json | None
    code: str = ""
    message: str = ""


class Reader(Protocol):
    """Turns records into requests."""

    def convert(self, records: list[bytes]) -> list[Converted | RecordFault]:
        """One request or fault for each record, in order; those of JSON are valid objects."""


class LineReader:
    """A reader that converts each record by itself; a format's own says how in `_convert`."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def convert(self, records: list[bytes]) -> list[Converted | RecordFault]:
        """One request or fault for each record, in order."""
        return [self._convert(record) for record in records]

    def _convert(self, record: bytes) -> Converted | RecordFault:
        raise NotImplementedError


class VendorReader(LineReader):
    """Reads another vendor's lines; a format's own makes the request of one in `_request`."""

    reference = "custom_id"
    """The member that has a record's reference."""

    def _convert(self, record: bytes) -> Converted | RecordFault:
        line = object_of(record)
        reference = line.get(self.reference, NULL)
        try:
            request = self._request(line)
        except BadRecordError as error:
            known = reference if begins(reference, b'"') else NULL
            return RecordFault(error.code, error.message, known)
        return Converted(with_defaults(request, self._target, reference), reference)

    def _request(self, line: dict[str, msgspec.Raw]) -> Mapping[str, Json]:
        raise NotImplementedError


def text_reference(line: Mapping[str, msgspec.Raw]) -> None:
    """Check that a line has a `custom_id`; or `BadRecordError`."""
    if not begins(line.get("custom_id", NULL), b'"'):
        raise BadRecordError("custom_id", "It must be a string.")


def body_of(line: Mapping[str, msgspec.Raw], name: str) -> dict[str, msgspec.Raw]:
    """The member of a line that holds the request; or `BadRecordError`: it is no object."""
    body = members_of(line.get(name, NULL))
    if body is None:
        raise BadRecordError(name, "It must be an object: the request.")
    return body


class Writer(Protocol):
    """Turns outcomes into lines of result files."""

    def line(self, facts: BatchFacts, outcome: Outcome) -> bytes:
        """The record's line in the output, line feed included; never raises."""


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names and content types of a format's result files, and the bytes they begin with."""

    output: str = "output.jsonl"
    output_type: str = "application/jsonl"
    retry: str = "retry.jsonl"
    retry_type: str = "application/jsonl"
    output_opening: bytes = b""
    retry_opening: bytes = b""


class Sign(NamedTuple):
    """How a format's records are detected: a member with an object, and one of those beside."""

    member: str
    beside: tuple[str, ...] = ()
    names_model: bool = False


class BadRecordError(Exception):
    """A record does not fit its format; it fails alone."""

    def __init__(self, member: str, message: str, code: str = "bad_record") -> None:
        """Keep the fault that the record's error line will show."""
        super().__init__(f"{member}: {message}")
        self.code = code
        self.message = f"{member}: {message}"


_MEMBER = re.compile(r"(?:Line [0-9]+: )?([A-Za-z_][\w.\[\]-]*): ")


def member_of(message: str) -> str | None:
    """The member that a fault's message names."""
    match = _MEMBER.match(message)
    return match.group(1) if match else None


# ── JSON, spliced ─────────────────────────────────────────────────────────────────────────────────


@lru_cache(1024)
def _key(name: str) -> bytes:
    return encode(name)


_LINE_BREAKS = (
    (b"\xe2\x80\xa8", rb"\u2028"),
    (b"\xe2\x80\xa9", rb"\u2029"),
    (b"\xc2\x85", rb"\u0085"),
)


def escape_line_breaks(json: Json) -> bytes:
    """The same JSON with U+0085, U+2028 and U+2029, where many readers end a line, escaped."""
    written = bytes(json)
    if not written.isascii():
        for character, escaped in _LINE_BREAKS:
            # A single byte is found at a fraction of the cost of three.
            if character[0] in written:
                written = written.replace(character, escaped)
    return written


def json_line(value: object) -> bytes:
    """A value as a line of a result file, line feed included, that every reader takes for one."""
    return encode_line(value) + b"\n"


def encode_line(value: object) -> bytes:
    """A value as JSON that every reader takes for one line, or for a part of one."""
    return escape_line_breaks(encode(value))


def members_of(raw: Json) -> dict[str, msgspec.Raw] | None:
    """An object's members as JSON; None if it is not an object."""
    try:
        return _decode_members(raw)
    except UNDECODABLE:
        return None


def object_of(raw: Json) -> dict[str, msgspec.Raw]:
    """An object's members as JSON; none if it is not an object."""
    return members_of(raw) or {}


def made(value: object) -> msgspec.Raw:
    """A value as JSON; what is not changed in it is JSON already, as `msgspec.Raw`."""
    return msgspec.Raw(encode(value))


def is_retried(code: str, request: Json) -> bool:
    """Whether a failed record is in the retry file; one that is a string can be mended."""
    return code not in NOT_RETRIED or (code == "bad_record" and begins(request, b'"'))


def elements_of(raw: Json) -> list[msgspec.Raw] | None:
    """An array's elements as JSON; None if it is not an array."""
    try:
        return _decode_raws(raw)
    except UNDECODABLE:
        return None


def value_of(raw: Json) -> Any:  # whatever a user or the API wrote
    """A value; None if it cannot be read."""
    try:
        return _decode_any(raw)
    except UNDECODABLE:
        return None


def is_json(text: bytes) -> bool:
    """Whether bytes are JSON."""
    try:
        _decode_any(text)
    except UNDECODABLE:
        return False
    return True


def is_text(raw: bytes) -> bool:
    """Whether bytes are UTF-8: a decoder does not check what it skips."""
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def word_of(raw: Json) -> str:
    """A string's text; empty for anything else."""
    value = value_of(raw)
    return value if isinstance(value, str) else ""


def begins(raw: Json | msgspec.UnsetType, with_byte: bytes) -> bool:
    """Whether JSON is there and begins with a byte, as objects, arrays and strings do."""
    return raw is not msgspec.UNSET and bytes(memoryview(raw)[:1]) == with_byte


def one_line(raw: Json) -> bytes:
    """JSON on one line, byte for byte unless it has line breaks between its tokens."""
    json = bytes(raw)
    return compact(json) if _LF in json or _CR in json else json


def readable_json(raw: Json) -> bytes:
    """JSON on one line; as a string if a number in it is out of range, such as 1e999."""
    json = one_line(raw)
    try:
        _decode_any(json)
    except msgspec.ValidationError:
        return msgspec.json.encode(json.decode())
    except UNDECODABLE:
        pass
    return json


def compact(raw: Json) -> bytes:
    """JSON without white space between its tokens; if it cannot be read, on one line."""
    json = bytes(raw)
    try:
        return msgspec.json.format(json, indent=-1)
    except UNDECODABLE:
        return json.replace(b"\n", b" ").replace(b"\r", b" ")  # both occur only between tokens


def with_defaults(request: Mapping[str, Json], target: Target, reference: Json) -> bytes:
    """A request with the job's defaults and its reference."""
    members: dict[str, Json] = {**request}
    for name, value in target.defaults.items():
        members.setdefault(name, value)
    members.pop("external_reference", None)
    if bytes(reference) != b"null":
        members["external_reference"] = reference
    return b"{%b}" % b",".join([b"%b:%b" % (_key(name), raw) for name, raw in members.items()])

"""The options of a job: one table, wherever an option is written.

In an object's metadata, in an `_options.json`, as a program's arguments: each is parsed once, by
the table's type. Options are resolved member by member, then pinned. Every fault is a fault of the
whole upload; its message names the option, what it may be, and the nearest name. Pure.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from dropbatch.core.errors import UploadRefused, UsageError
from dropbatch.core.formats.base import BOM, UNDECODABLE, Json, Task, members_of, word_of
from dropbatch.core.formats.detect import GEMINI_GONE
from dropbatch.core.formats.openai import BATCH_ENDPOINTS
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.names import INBOX, upload_path
from dropbatch.core.prices import MAX_NAMED_TOKENS

OPTIONS_FILE = "_options.json"
MAX_OPTIONS_BYTES = 64 << 10
"""Bytes of a job's resolved options as JSON."""
MAX_METADATA_BYTES = 2_048
"""S3's limit for the metadata of one object."""
OPTIONS_AT = "options-at"
"""Metadata that names the object with an upload's options, if they are longer."""
MAX_DEADLINE_HOURS = 30 * 24
MAX_DOLLARS = Decimal(1_000_000_000)
SMALLEST = 1e-9
"""Smaller numbers count as 0: DynamoDB stores none below 1e-130."""
MAX_TAGS = 16
MAX_TAG_NAME, MAX_TAG_VALUE = 128, 512
"""Characters of a tag's name and of its value. What AWS allows for its own, and OpenAI for a
batch's metadata."""


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job's options (docs/options.md), None for one that is not set; `ignored` is no option."""

    model: str | None = None
    format: str | None = None
    template: str | None = None
    delimiter: str | None = None
    system: str | None = None
    endpoint: str | None = None
    task: str | None = None
    defaults: dict[str, msgspec.Raw] | None = None
    deadline_hours: float | None = None
    max_failed_fraction: float | None = None
    max_cost: Decimal | None = None
    output_tokens: int | None = None
    schema: dict[str, msgspec.Raw] | None = None
    tags: dict[str, str] | None = None
    ignored: dict[str, str] | None = None


class WrongValueError(ValueError):
    """An option's value is invalid; the message says what it may be."""


class Option(NamedTuple):
    """What an option may be.

    Attributes:
        kind: its type, as msgspec reads it.
        words: what is said of any other value.
        is_text: whether metadata has it as text; the others are JSON there too.
        names: those that it may have; none if it has any.
        made: the value of what was read, if that is not the value.
    """

    kind: Any
    words: str
    is_text: bool = False
    names: tuple[str, ...] = ()
    made: Callable[[Any], Any] | None = None

    def parse(self, raw: Json) -> Any:
        """The value of JSON; or `WrongValueError`: it has none."""
        try:
            msgspec.json.decode(raw)  # also what a type would skip
            value = msgspec.json.decode(raw, type=self.kind)
        except UNDECODABLE:
            raise WrongValueError(self.words + nearest_name(word_of(raw), self.names)) from None
        return self.made(value) if self.made else value


def _choice(names: Iterable[str]) -> Option:
    found = tuple(names)
    return Option(Literal[found], one_of(found), is_text=True, names=found)


def one_of(names: Iterable[str]) -> str:
    """What a value may be, in words."""
    return f"It must be one of {', '.join(names)}."


def nearest_name(name: str, names: Iterable[str]) -> str:
    """The name that was probably meant, as a question; empty if none is like it."""
    found = difflib.get_close_matches(name, list(names), 1, 0.5)
    return f" Did you mean {found[0]}?" if found else ""


def _not_tiny(value: float) -> float:
    return value if value >= SMALLEST else 0.0


_DOLLARS = "It must be a number of US dollars, 0 or more."


def _dollars(raw: msgspec.Raw) -> Decimal:
    try:
        value = Decimal(bytes(raw).decode())
    except InvalidOperation:
        raise WrongValueError(_DOLLARS) from None
    if not 0 <= value <= MAX_DOLLARS:
        raise WrongValueError(_DOLLARS)
    return value if value >= SMALLEST else Decimal(0)


def _defaults(members: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    if "external_reference" in members:
        raise WrongValueError(
            "It must not contain external_reference, because each record has its own."
        )
    return members


_TEXT = Option(
    Annotated[str, Meta(min_length=1)], "It must be a string that is not empty.", is_text=True
)
_TAGS = Annotated[
    dict[
        Annotated[str, Meta(min_length=1, max_length=MAX_TAG_NAME)],
        Annotated[str, Meta(max_length=MAX_TAG_VALUE)],
    ],
    Meta(max_length=MAX_TAGS),
]
OPTIONS = {
    "model": _TEXT,
    "format": _choice(FORMATS),
    "template": _TEXT,
    "delimiter": Option(
        Literal[",", ";", "|", "tab", "\t"],
        "It must be one of , ; | tab.",
        is_text=True,
        made=lambda value: "\t" if value == "tab" else value,
    ),
    "system": _TEXT,
    "endpoint": _choice(BATCH_ENDPOINTS),
    "task": _choice(task.value for task in Task if task),
    "defaults": Option(
        dict[str, msgspec.Raw],
        'It must be a JSON object, such as {"max_tokens":100}.',
        made=_defaults,
    ),
    "deadline_hours": Option(
        Annotated[float, Meta(ge=1 / 60, le=MAX_DEADLINE_HOURS)],
        f"It must be a number of hours, from 1/60 to {MAX_DEADLINE_HOURS}.",
    ),
    "max_failed_fraction": Option(
        Annotated[float, Meta(ge=0, le=1)], "It must be a number from 0 to 1.", made=_not_tiny
    ),
    "max_cost": Option(msgspec.Raw, _DOLLARS, made=_dollars),
    "output_tokens": Option(
        Annotated[int, Meta(ge=1, le=MAX_NAMED_TOKENS)],
        f"It must be a whole number from 1 to {MAX_NAMED_TOKENS:,}.",
    ),
    "schema": Option(
        dict[str, msgspec.Raw],
        'It must be a JSON Schema: an object, such as {"type":"object","required":["mood"]}.',
    ),
    "tags": Option(
        _TAGS,
        f"It must be a JSON object of at most {MAX_TAGS} names, of 1 to {MAX_TAG_NAME} "
        f"characters, and string values, of up to {MAX_TAG_VALUE}.",
    ),
}

_LOOP = "Have the execution wait for manifest.json (examples/step-functions.asl.json)."
GONE = {
    "task_token": f"It is gone since 0.9. {_LOOP}",
    "cancel_with_task": f"It is gone since 0.9. {_LOOP}",
}
"""Options that once existed, with what to do instead; they are refused, never ignored."""


def option_name(written: str) -> str:
    """The option that is written so, if it is one: `max_cost` for `max-cost` and `Max_Cost`."""
    return written.strip().lower().replace("-", "_")


# ── where options are written ─────────────────────────────────────────────────────────────────────


def metadata_options(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The options in metadata, in any spelling, and what is `ignored`; or `UploadRefused`."""
    given, ignored = list[tuple[str, Json]](), dict[str, str]()
    for header, written in sorted(metadata.items()):
        name = option_name(header)
        if name in GONE:
            raise _bad(name, GONE[name])
        if name not in OPTIONS:
            if nearest := _begins_like(name):
                ignored[header] = nearest
        elif written.strip():
            given.append((header, _json_of(header, written.strip())))
    return _parsed(given) | ({"ignored": ignored} if ignored else {})


def written_options(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The values of options that are written as text, as on a command line; or `UsageError`."""
    given = list[tuple[str, Json]]()
    for written, text in pairs:
        _check_text(written, text)
        is_text = OPTIONS[option_name(written)].is_text
        given.append((written, msgspec.json.encode(text) if is_text else text.encode()))
    try:
        return _parsed(given)
    except UploadRefused as fault:
        raise UsageError(fault.message) from None


def _check_text(written: str, text: str) -> None:
    if option_name(written) not in OPTIONS:
        raise UsageError(unknown_option(written))
    if _LONE_SURROGATE.search(text):
        raise UsageError(f"{written}: It has a character that is not Unicode text.")
    if not text:
        raise UsageError(f"{written}: It is empty, as of a variable that is not set. Leave it out.")


def file_options(content: bytes) -> dict[str, Any]:
    """The options in an `_options.json`; or `UploadRefused` (`bad_options`)."""
    members = members_of(content.removeprefix(BOM).strip())
    if members is None or len(content) > MAX_OPTIONS_BYTES:
        words = f"It must be a JSON object of at most {MAX_OPTIONS_BYTES:,} bytes."
        raise _bad(OPTIONS_FILE, words)
    for member in members:
        if option_name(member) not in OPTIONS:
            raise _bad(OPTIONS_FILE, unknown_option(member[:60]))
    return _parsed(members.items(), f"{OPTIONS_FILE}, ")


def unknown_option(written: str) -> str:
    """What is said of an option that there is not."""
    name = option_name(written)
    if name in GONE:
        return f"{written}: {GONE[name]}"
    return f"There is no option {written!r}. {one_of(OPTIONS)}{nearest_name(name, OPTIONS)}"


def path_options(upload_key: str) -> dict[str, Any]:
    """The model that a path begins with, valid or not."""
    segments = upload_path(upload_key).split("/")
    if segments[0] not in {"@cf", "@hf"}:
        return {}
    return {"model": "/".join(segments[:-1][:3])}


def _parsed(given: Iterable[tuple[str, Json]], place: str = "") -> dict[str, Any]:
    """The options that are written so in one place, in several spellings only if they agree."""
    options, spellings = dict[str, Any](), dict[str, str]()
    for written, raw in given:
        name = option_name(written)
        if name == "format" and word_of(raw) == "gemini":
            raise _bad(f"{place}{name}", GEMINI_GONE)
        try:
            value = OPTIONS[name].parse(raw)
        except WrongValueError as error:
            raise _bad(f"{place}{name}", str(error)) from None
        other = spellings.setdefault(name, written)
        if value != options.get(name, value):
            words = "It is given twice, with different values. Write it once."
            if other != written:
                words = f"{written} differs from {other}, which is the same option. Write it once."
            raise _bad(f"{place}{name}", words)
        options[name] = value
    return options


def _bad(member: str, words: str) -> UploadRefused:
    return UploadRefused("bad_options", f"{member}: {words}")


def _begins_like(name: str) -> str:
    """The option that a name was probably meant to be; empty if it is not like any."""
    alike = [member for member in OPTIONS if name.startswith(member.partition("_")[0])]
    found = difflib.get_close_matches(name, alike, 1, 0.0) or difflib.get_close_matches(
        name, list(OPTIONS), 1, 0.75
    )
    return found[0] if found else ""


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_ENCODED_WORD = re.compile(r"=\?[A-Za-z0-9_-]+\?[bqBQ]\?[^?]*\?=")
_MAY_BE_JSON = frozenset({"template", "system"})
"""Texts that metadata may have as JSON strings too, because they may have line feeds."""


def _json_of(header: str, written: str) -> bytes:
    """The value of metadata as JSON: S3 and its tools write text as RFC 2047 encoded words."""
    name, text = option_name(header), written
    if _ENCODED_WORD.search(written):
        try:
            text = str(make_header(decode_header(written)))
        except (HeaderParseError, UnicodeDecodeError, LookupError, ValueError):
            raise _bad(name, "It cannot be decoded as RFC 2047 text.") from None
    if _LONE_SURROGATE.search(text):
        raise _bad(name, "It has a character that is not Unicode text.")
    is_json = not OPTIONS[name].is_text or (name in _MAY_BE_JSON and text.startswith('"'))
    return text.encode() if is_json else msgspec.json.encode(text)


def metadata_of(options: Mapping[str, object]) -> dict[str, str]:
    """The metadata of an upload with these options: what `metadata_options` reads back.

    Text stays as it is, anything else is JSON; what a header cannot hold becomes an encoded word
    (RFC 2047), as of S3's own tools. Or `UsageError`.
    """
    metadata = dict[str, str]()
    for written, value in options.items():
        text = _header(_metadata_text(written, value))
        if metadata.setdefault(option_name(written).replace("_", "-"), text) != text:
            raise UsageError(f"{written}: It is given twice, with different values.")
    try:
        metadata_options(metadata)
    except UploadRefused as fault:
        raise UsageError(fault.message) from None
    return metadata


def with_room(metadata: Mapping[str, str]) -> tuple[dict[str, str], bytes]:
    """Metadata that S3 has room for; its options, as an object's content, if they are too long."""
    if sum(len(name) + len(text) for name, text in metadata.items()) <= MAX_METADATA_BYTES:
        return dict(metadata), b""
    options = {name: text for name, text in metadata.items() if option_name(name) in OPTIONS}
    content = msgspec.json.encode(
        {option_name(name): msgspec.Raw(_json_of(name, text)) for name, text in options.items()}
    )
    rest = {name: text for name, text in metadata.items() if name not in options}
    return {**rest, OPTIONS_AT: hashlib.sha256(content).hexdigest()}, content


def _metadata_text(written: str, value: object) -> str:
    """The text of an option's metadata."""
    text = value if isinstance(value, str) else _encode(value).decode()
    _check_text(written, text)
    if option_name(written) in _MAY_BE_JSON and (text.startswith('"') or text != text.strip()):
        # Otherwise it would be read as JSON, or without its blanks.
        return msgspec.json.encode(text).decode()
    return text


def _header(text: str) -> str:
    is_plain = text.isascii() and text.isprintable() and text == text.strip()
    if is_plain and not _ENCODED_WORD.search(text):
        return text
    return f"=?utf-8?b?{base64.b64encode(text.encode()).decode()}?="


def options_keys(upload_key: str) -> list[str]:
    """Keys where an upload's `_options.json` may be, nearest first; only one is used."""
    folders = upload_path(upload_key).split("/")[:-1]
    depths = range(len(folders), -1, -1)
    return [f"{INBOX}{'/'.join([*folders[:depth], OPTIONS_FILE])}" for depth in depths]


def resolve(layers: Sequence[Mapping[str, Any]]) -> Options:
    """The options: each from the first layer that sets it; or `UploadRefused`: too large."""
    found: dict[str, Any] = {}
    for layer in reversed(layers):
        found |= layer
    options = Options(**found)
    size = len(encode_options(options))
    if size > MAX_OPTIONS_BYTES:
        words = f"Together they have {size:,} bytes; the maximum is {MAX_OPTIONS_BYTES:,}."
        raise _bad("options", words)
    return options


def named_options(options: Options) -> dict[str, Any]:
    """The options that are set, as a layer for `resolve`."""
    every = {member: getattr(options, member) for member in OPTIONS}
    return {member: value for member, value in every.items() if value is not None}


_encode = msgspec.json.Encoder(decimal_format="number").encode
_decode = msgspec.json.Decoder(Options).decode


def encode_options(options: Options) -> bytes:
    """A job's `options.json`."""
    return _encode(options)


def decode_options(content: bytes) -> Options:
    """A job's options from its `options.json`; or `msgspec.ValidationError`."""
    return _decode(content)

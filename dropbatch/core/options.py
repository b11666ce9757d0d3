"""What each option of a job may be.

Its value as JSON, parsed, or the words that say what it may be. Pure.
"""

from __future__ import annotations

import base64
import difflib
import re
from decimal import Decimal, InvalidOperation
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core.cost import MAX_NAMED_TOKENS
from dropbatch.core.errors import UploadRefused, UsageError
from dropbatch.core.formats.base import UNDECODABLE, Task, begins, members_of
from dropbatch.core.formats.detect import GEMINI_GONE
from dropbatch.core.formats.openai import BATCH_ENDPOINTS
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.names import upload_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


FORMAT_NAMES = tuple(FORMATS)
TASKS = tuple(task.value for task in Task if task)
MAX_DEADLINE_HOURS = 30 * 24
MAX_DOLLARS = Decimal(1_000_000_000)
SMALLEST = 1e-9
"""Smaller numbers count as 0: DynamoDB stores none below 1e-130."""
MAX_TAGS = 16
MAX_TAG_NAME, MAX_TAG_VALUE = 128, 512
"""Characters of a tag's name and of its value.

What AWS allows for its own, and OpenAI for a batch's metadata.
"""

Json = bytes | msgspec.Raw


def option_name(written: str) -> str:
    """The name of the option that is written so, if it is one.

    `max_cost` for `max-cost` and `Max_Cost`.
    """
    return written.strip().lower().replace("-", "_")


class WrongValueError(ValueError):
    """An option's value is invalid; the message says what it may be."""


def nearest_name(name: str, names: Sequence[str]) -> str:
    """The name that was probably meant, as a question; empty if none is like it."""
    found = difflib.get_close_matches(name, names, 1, 0.5)
    return f" Did you mean {found[0]}?" if found else ""


def _text(raw: Json) -> str:
    value = _decoded(raw, str, "It must be a string.")
    if not value:
        raise WrongValueError("It must not be empty.")
    return str(value)


def _format(raw: Json) -> str:
    if bytes(raw) == b'"gemini"':
        raise WrongValueError(GEMINI_GONE)
    return _choice(FORMAT_NAMES)(raw)


def _choice(names: Sequence[str]) -> Callable[[Json], str]:
    def parse(raw: Json) -> str:
        value = str(_decoded(raw, str, one_of(names)))
        if value not in names:
            raise WrongValueError(f"{one_of(names)}{nearest_name(value, names)}")
        return value

    return parse


def _delimiter(raw: Json) -> str:
    words = "It must be one of , ; | tab."
    value = _decoded(raw, str, words)
    if value not in _DELIMITERS:
        raise WrongValueError(words)
    return _DELIMITERS[value]


_DELIMITERS = {",": ",", ";": ";", "|": "|", "tab": "\t", "\t": "\t"}


def one_of(names: Sequence[str]) -> str:
    """What a value may be, in words."""
    return f"It must be one of {', '.join(names)}."


def _number(
    low: float, high: float, words: str, kind: type[float] = float
) -> Callable[[Json], float]:
    def parse(raw: Json) -> float:
        value = kind(_decoded(raw, kind, words))
        if not low <= value <= high:
            raise WrongValueError(words)
        return value if value >= SMALLEST else 0.0

    return parse


def _dollars(raw: Json) -> Decimal:
    words = "It must be a number of US dollars, 0 or more."
    try:
        value = Decimal(bytes(raw).decode())
    except (InvalidOperation, UnicodeDecodeError):
        raise WrongValueError(words) from None
    if not value.is_finite() or not 0 <= value <= MAX_DOLLARS:
        raise WrongValueError(words)
    return value if value >= SMALLEST else Decimal(0)


def _defaults(raw: Json) -> dict[str, msgspec.Raw]:
    words = 'It must be a JSON object, such as {"max_tokens":100}.'
    members = members_of(raw) if begins(raw, b"{") else None
    if members is None:
        raise WrongValueError(words)
    _decoded(raw, object, words)
    if "external_reference" in members:
        raise WrongValueError(
            "It must not contain external_reference, because each record has its own."
        )
    return members


def _tags(raw: Json) -> dict[str, str]:
    words = f"It must be a JSON object of at most {MAX_TAGS} names and string values."
    value = _decoded(raw, dict[str, str], words)
    if len(value) > MAX_TAGS:
        raise WrongValueError(words)
    if any(
        not name or len(name) > MAX_TAG_NAME or len(text) > MAX_TAG_VALUE
        for name, text in value.items()
    ):
        raise WrongValueError(
            f"Names have 1 to {MAX_TAG_NAME} characters, values up to {MAX_TAG_VALUE}."
        )
    return dict(value)


def _decoded(raw: Json, kind: Any, words: str) -> Any:  # noqa: ANN401
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNDECODABLE:
        raise WrongValueError(words) from None


PARSERS: dict[str, Callable[[Json], object]] = {
    "model": _text,
    "format": _format,
    "template": _text,
    "delimiter": _delimiter,
    "system": _text,
    "endpoint": _choice(BATCH_ENDPOINTS),
    "task": _choice(TASKS),
    "defaults": _defaults,
    "deadline_hours": _number(
        1 / 60,
        MAX_DEADLINE_HOURS,
        f"It must be a number of hours, from 1/60 to {MAX_DEADLINE_HOURS}.",
    ),
    "max_failed_fraction": _number(0, 1, "It must be a number from 0 to 1."),
    "max_cost": _dollars,
    "output_tokens": _number(
        1, MAX_NAMED_TOKENS, "It must be a whole number from 1 to 1,000,000.", int
    ),
    "tags": _tags,
}
"""The function that parses each option's JSON."""

OPTIONS = tuple(PARSERS)

_LOOP = "Have the execution wait for manifest.json (examples/step-functions.asl.json)."
GONE = {
    "task_token": f"It is gone since 0.9. {_LOOP}",
    "cancel_with_task": f"It is gone since 0.9. {_LOOP}",
}
"""Options that once existed, with what to do instead; they are refused, never ignored."""

JSON_IN_METADATA = frozenset(
    {
        "defaults",
        "tags",
        "deadline_hours",
        "max_failed_fraction",
        "max_cost",
        "output_tokens",
    }
)
"""Options whose metadata is JSON; that of the others is plain text."""


OPTIONS_FILE = "_options.json"
MAX_OPTIONS_BYTES = 64 << 10
"""Bytes of a job's resolved options as JSON."""
MAX_METADATA_BYTES = 2_048
"""S3's limit for the metadata of one object."""


class Options(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job's options; None for an option that is not set.

    Attributes:
        model: as given, valid or not.
        template: text with `{column}`s.
        delimiter: between the fields of a table's rows.
        system: system prompt for the rows of tables and the lines of text.
        endpoint: that every record of an OpenAI batch file must be for.
        task: of the model, if the catalogue has another one or none.
        defaults: members for every request that has no member of that name, as JSON.
        deadline_hours: from the job's creation.
        max_failed_fraction: of the answered records, 0 to 1.
        max_cost: US dollars.
        output_tokens: tokens of an answer to a request that names no limit, on average.
        tags: the user's own names and values.
        ignored: metadata that begins like an option and is none, each with the option that has the
            nearest name.
    """

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
    tags: dict[str, str] | None = None
    ignored: dict[str, str] | None = None


# ── where options come from ───────────────────────────────────────────────────────────────────────


def metadata_options(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The options in an object's metadata, in any spelling, and what it has `ignored`.

    An empty value sets no option.

    Args:
        metadata: by name, without `x-amz-meta-`.

    Raises:
        UploadRefused: `bad_options`.
    """
    found, ignored = _Found("x-amz-meta-"), dict[str, str]()
    for header, written in sorted(metadata.items()):
        member = option_name(header)
        if not written.strip():
            continue
        if member in GONE:
            raise _bad(f"x-amz-meta-{header}", GONE[member])
        if member not in PARSERS:
            if nearest := _begins_like(member):
                ignored[header] = nearest
            continue
        try:
            text = _unfolded(written.strip())
            is_json = member in JSON_IN_METADATA or (
                member in {"template", "system"} and text.startswith('"')
            )
            found.take(header, text.encode() if is_json else msgspec.json.encode(text))
        except (WrongValueError, UnicodeEncodeError) as error:
            raise _bad(f"x-amz-meta-{header}", str(error)) from None
    return found.options | ({"ignored": ignored} if ignored else {})


class _Found:
    """The options of one place: each may be written in several spellings, if they agree."""

    def __init__(self, prefix: str) -> None:
        self.options: dict[str, Any] = {}
        self._prefix = prefix
        self._spellings: dict[str, str] = {}

    def take(self, written: str, raw: Json) -> None:
        """Parse the value of an option; its name is as it was written."""
        member = option_name(written)
        value = PARSERS[member](raw)
        other = self._spellings.setdefault(member, written)
        if other != written and value != self.options[member]:
            raise WrongValueError(
                f"It differs from {self._prefix}{other}, which is the same option. Write it once."
            )
        self.options[member] = value


def _begins_like(name: str) -> str:
    """The option that a name was probably meant to be; empty if it is not like any."""
    alike = [member for member in OPTIONS if name.startswith(member.partition("_")[0])]
    found = difflib.get_close_matches(name, alike, 1, 0.0) or difflib.get_close_matches(
        name, OPTIONS, 1, 0.75
    )
    return found[0] if found else ""


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_ENCODED_WORD = re.compile(r"=\?[A-Za-z0-9_-]+\?[bqBQ]\?[^?]*\?=")


def _unfolded(value: str) -> str:
    """Metadata, decoded: S3 and its tools write non-ASCII text as RFC 2047 encoded words."""
    if not _ENCODED_WORD.search(value):
        return value
    try:
        return str(make_header(decode_header(value)))
    except (HeaderParseError, UnicodeDecodeError, LookupError, ValueError):
        raise WrongValueError("It cannot be decoded as RFC 2047 text.") from None


def metadata_of(
    options: Mapping[str, object], more: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """The metadata of an upload with these options.

    What `metadata_options` reads back as they were given.

    Text that a header cannot hold as it is becomes an encoded word (RFC 2047), as S3's own tools
    write it.

    Args:
        options: by name, in any spelling. Text stays as it is; anything else is written as JSON.
        more: what the upload's metadata has beside them, as it is.

    Raises:
        UsageError: an option is unknown or has a wrong value, or all of them together are too
            large.
    """
    metadata = dict(more)
    for written, value in options.items():
        name = option_name(written)
        if name in GONE:
            raise UsageError(f"{written}: {GONE[name]}")
        if name not in PARSERS:
            raise UsageError(
                f"There is no option {written!r}. {one_of(OPTIONS)}{nearest_name(name, OPTIONS)}"
            )
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if not text.isascii() and _LONE_SURROGATE.search(text):
            raise UsageError(f"{written}: It has a character that is not Unicode text.")
        if not text:
            raise UsageError(
                f"{written}: It is empty, as of a variable that is not set. Leave it out."
            )
        if name in {"template", "system"} and (text.startswith('"') or text != text.strip()):
            # Otherwise it would be read as JSON, or without its blanks.
            text = msgspec.json.encode(text).decode()
        header = name.replace("_", "-")
        if metadata.setdefault(header, _header(text)) != _header(text):
            raise UsageError(f"{written}: It is given twice, with different values.")
    try:
        metadata_options(metadata)
    except UploadRefused as fault:
        raise UsageError(as_arguments(fault.message)) from None
    size = sum(len(name) + len(value) for name, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        raise UsageError(
            f"The metadata takes {size:,} bytes, and S3 allows {MAX_METADATA_BYTES:,} for "
            "an object. "
            f"Put the options in an {OPTIONS_FILE} in the upload's folder."
        )
    return metadata


def as_arguments(message: str) -> str:
    """A message in which options are named as a program's arguments are.

    `max_cost`, not x-amz-meta-max-cost.
    """
    return re.sub("x-amz-meta-([a-z_-]+)", lambda found: f"`{found[1].replace('-', '_')}`", message)


def _header(text: str) -> str:
    if (
        text.isascii()
        and text.isprintable()
        and text == text.strip()
        and not _ENCODED_WORD.search(text)
    ):
        return text
    return f"=?utf-8?b?{base64.b64encode(text.encode()).decode()}?="


def file_options(content: bytes) -> dict[str, Any]:
    """The options in an `_options.json`.

    Raises:
        UploadRefused: `bad_options`: it is not a JSON object, or a member is unknown or has a wrong
            value.
    """
    members = members_of(content.removeprefix(b"\xef\xbb\xbf").strip())
    if members is None or len(content) > MAX_OPTIONS_BYTES:
        raise _bad(
            OPTIONS_FILE, f"It must be a JSON object of at most {MAX_OPTIONS_BYTES:,} bytes."
        )
    found = _Found("")
    for member, raw in members.items():
        if words := GONE.get(option_name(member)):
            raise _bad(f"{OPTIONS_FILE}, {member}", words)
        if option_name(member) not in PARSERS:
            nearest = nearest_name(option_name(member), OPTIONS)
            raise _bad(
                OPTIONS_FILE, f"There is no option {member[:60]!r}. {one_of(OPTIONS)}{nearest}"
            )
        try:
            found.take(member, raw)
        except WrongValueError as error:
            raise _bad(f"{OPTIONS_FILE}, {member}", str(error)) from None
    return found.options


def options_keys(upload_key: str, inbox: str) -> list[str]:
    """Keys where an upload's `_options.json` may be, nearest first.

    Only the first one that exists is used.
    """
    folders = upload_key.removeprefix(inbox).split("/")[:-1]
    return [
        f"{inbox}{'/'.join([*folders[:depth], OPTIONS_FILE])}"
        for depth in range(len(folders), -1, -1)
    ]


def path_options(upload_key: str) -> dict[str, Any]:
    """The model that a path begins with, valid or not."""
    segments = upload_path(upload_key).split("/")
    if segments[0] not in {"@cf", "@hf"}:
        return {}
    return {
        "model": "/".join(
            segments[:_MODEL_SEGMENTS] if len(segments) > _MODEL_SEGMENTS else segments[:-1]
        )
    }


_MODEL_SEGMENTS = 3


def resolve(layers: Sequence[Mapping[str, Any]]) -> Options:
    """The options: each member comes from the first layer that sets it.

    Raises:
        UploadRefused: `bad_options`: together they are too large.
    """
    found: dict[str, Any] = {}
    for layer in layers:
        for member, value in layer.items():
            found.setdefault(member, value)
    options = Options(**found)
    size = len(encode_options(options))
    if size > MAX_OPTIONS_BYTES:
        raise _bad(
            "options", f"Together they have {size:,} bytes; the maximum is {MAX_OPTIONS_BYTES:,}."
        )
    return options


_encode = msgspec.json.Encoder(decimal_format="number").encode
_decode = msgspec.json.Decoder(Options).decode


def encode_options(options: Options) -> bytes:
    """A job's `options.json`."""
    return _encode(options)


def decode_options(content: bytes) -> Options:
    """A job's options from its `options.json`.

    Raises:
        msgspec.ValidationError: it is not a valid `options.json`.
    """
    return _decode(content)


def named_options(options: Options) -> dict[str, Any]:
    """The options that are set, as a layer for `resolve`."""
    every = {member: getattr(options, member) for member in OPTIONS}
    return {member: value for member, value in every.items() if value is not None}


def _bad(member: str, words: str) -> UploadRefused:
    return UploadRefused("bad_options", f"{member}: {words}")

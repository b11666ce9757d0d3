"""What each option of a job may be.

Its value as JSON, parsed, or the words that say what it may be. Pure.
"""

from __future__ import annotations

import difflib
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core.cost import MAX_NAMED_TOKENS
from dropbatch.core.formats.base import UNDECODABLE, Task, begins, members_of
from dropbatch.core.formats.registry import FORMATS
from dropbatch.core.formats.vendors.openai import BATCH_ENDPOINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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


def _flag(raw: Json) -> bool:
    return bool(_decoded(raw, bool, "It must be true or false."))


def _decoded(raw: Json, kind: Any, words: str) -> Any:  # noqa: ANN401
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNDECODABLE:
        raise WrongValueError(words) from None


PARSERS: dict[str, Callable[[Json], object]] = {
    "model": _text,
    "format": _choice(FORMAT_NAMES),
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
    "cancel_with_task": _flag,
}
"""The function that parses each option's JSON."""

OPTIONS = tuple(PARSERS)

JSON_IN_METADATA = frozenset(
    {
        "defaults",
        "tags",
        "deadline_hours",
        "max_failed_fraction",
        "max_cost",
        "output_tokens",
        "cancel_with_task",
    }
)
"""Options whose metadata is JSON; that of the others is plain text."""

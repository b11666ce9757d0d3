"""The errors that the rules raise; `dropbatch.errors` has the whole tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class Error(Exception):
    """The base class of all errors of the library.

    By itself, a service failed or gave what nobody expects.

    Attributes:
        source: the file that it is about, if several could be meant; the message begins with it.
    """

    source = ""

    def __str__(self) -> str:
        """The message."""
        return f"{self.source}: {super().__str__()}" if self.source else super().__str__()


class UsageError(Error):
    """The call is wrong."""


class UploadRefused(Error):  # noqa: N818 - the public name says what happened
    """A fault of a whole upload, whose job fails: its code, what to do, and its line, if known."""

    def __init__(self, code: str, message: str, line: int | None = None) -> None:
        """Keep the code and the message that the manifest will show."""
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.line = line


PASSING_CODES = frozenset({3040, 3050, 3007, 3008, 3021, 971})
"""The API's codes of a failed record or batch that report a lack of capacity or time: they pass.

What a code means that refuses a call is in `shared.workers_ai.error_codes`: 3007 and 3008 are there
no lack of capacity, because what they refuse may be taken.
"""
NO_CAPACITY_WORDS = "Workers AI had no capacity for this batch."
MAX_MESSAGE_CHARACTERS = 500
"""Characters of the API's message that are kept."""
MAX_CODE = 999_999_999


def first_error(body: Mapping[str, Any]) -> tuple[int | None, str]:
    """The first code and message of an error's body: of the REST API, AI Gateway or the binding."""
    errors: list[Any] = body["errors"] if isinstance(body.get("errors"), list) else []
    gateways: list[Any] = (
        body["error"] if isinstance(body.get("error"), list) else [body.get("error")]
    )
    # the binding shows its callers that one
    bare = {**body, "message": body.get("description") or body.get("message")}
    for candidate in [*errors, *gateways, bare]:
        if isinstance(candidate, str) and candidate:
            return None, candidate[:MAX_MESSAGE_CHARACTERS]
        if isinstance(candidate, dict) and (
            _code(candidate) is not None or candidate.get("message")
        ):
            return code_of(candidate), str(candidate.get("message") or "")[:MAX_MESSAGE_CHARACTERS]
    return None, ""


def code_of(error: Mapping[str, Any]) -> int | None:
    """An error's code, a number or in digits; None for anything else, or one out of range."""
    value = _code(error)
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        value = int(value)
    # True is an int to Python
    return value if type(value) is int and 0 < value <= MAX_CODE else None


def _code(error: Mapping[str, Any]) -> object:
    return error.get("code") if error.get("code") is not None else error.get("internalCode")


ONE_A_STACK = (
    "One API token a stack since 0.9: the secret must hold one token alone, without further lines, "
    "account ids or queues=. Keep the token of the stack's account; for another account or more "
    "calls, deploy another stack with NAME=…."
)
"""What users read whose secret holds more: its first line alone could be another account's."""
_SEPARATOR = re.compile(r"[\s,]")


def holds_several(value: str) -> bool:
    """Whether a secret's value is several tokens, or one that names its account or its use."""
    text = value.strip()
    return bool(_SEPARATOR.search(text)) or text.startswith("queues=")

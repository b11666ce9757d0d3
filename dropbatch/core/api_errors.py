"""The code and the message in an error of Cloudflare's, whose places vary.

What a code means must not be here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_MESSAGE_CHARACTERS = 500
"""Characters of the API's message that are kept."""
MAX_CODE = 999_999_999


def first_error(body: Mapping[str, Any]) -> tuple[int | None, str]:
    """The first code and message of a decoded error body; None and an empty text if it has none.

    In the REST API's envelope they are in `errors`, of AI Gateway in `error`, behind the AI binding
    in the body itself.
    """
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
    """An error's code, given as a number or in digits.

    None for anything else, or a number out of range.
    """
    value = _code(error)
    if isinstance(value, str) and re.fullmatch("[0-9]{1,9}", value):
        value = int(value)
    # True is an int to Python
    return value if type(value) is int and 0 < value <= MAX_CODE else None


def _code(error: Mapping[str, Any]) -> object:
    return error.get("code") if error.get("code") is not None else error.get("internalCode")

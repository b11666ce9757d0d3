"""Gemini's batch files, of Vertex AI and of the Gemini API.

`{"key"?, "request"}` per line, and their results.

With a `key`, a result is the Gemini API's; without, it is Vertex AI's, which repeats the record.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from dropbatch.core.formats.base import (
    NULL,
    REFUSED_CODES,
    BadRecordError,
    Converted,
    LineReader,
    RecordFault,
    begins,
    json_line,
    members_of,
    one_line,
    with_defaults,
)
from dropbatch.core.formats.gemini_objects import response_object
from dropbatch.core.formats.gemini_requests import convert_request

if TYPE_CHECKING:
    from dropbatch.core.formats.base import BatchFacts, Outcome

_INVALID = (400, "INVALID_ARGUMENT")
_ERRORS: dict[str, tuple[int, str]] = {
    **dict.fromkeys(REFUSED_CODES, _INVALID),
    "expired": (504, "DEADLINE_EXCEEDED"),
    "cancelled": (499, "CANCELLED"),
}
_INTERNAL = (500, "INTERNAL")
_RESULT_MEMBERS = frozenset({"request", "response", "status", "processed_time"})


class GeminiReader(LineReader):
    """Turns lines of a batch file into requests."""

    def _convert(self, record: bytes) -> Converted | RecordFault:
        members = members_of(record) or {}
        reference = reference_of(members)
        try:
            request = members_of(members.get("request", NULL))
            if request is None:
                raise BadRecordError("request", "It must be an object: the request.")  # noqa: TRY301
            converted = convert_request(request, self._target)
        except BadRecordError as error:
            return RecordFault(error.code, error.message, reference)
        return Converted(with_defaults(converted, self._target, reference), reference)


def reference_of(record: dict[str, msgspec.Raw]) -> msgspec.Raw:
    """A record's `key`, or what it has in its place, if that is a string."""
    found = (record.get(name, NULL) for name in ("key", "custom_id", "id"))
    return next((msgspec.Raw(one_line(one)) for one in found if begins(one, b'"')), NULL)


class GeminiWriter:
    """Writes answers as Gemini's batches do."""

    def line(self, facts: BatchFacts, outcome: Outcome) -> bytes:
        """The record's line: its response, or its error."""
        record = (members_of(outcome.record) if outcome.record else None) or {}
        response: object = None
        error: dict[str, object] | None = None
        if outcome.result is not None:
            request = members_of(record.get("request", NULL)) or {}
            response = response_object(
                facts, outcome.id, outcome.result, is_list="contents" in request
            )
        else:
            code, status = _ERRORS.get(outcome.code, _INTERNAL)
            error = {"code": code, "message": outcome.message, "status": status}
        if "key" in record:
            last = {"response": response} if error is None else {"error": error}
            return json_line({"key": msgspec.Raw(one_line(record["key"])), **last})
        own = {
            name: msgspec.Raw(one_line(raw))
            for name, raw in record.items()
            if name not in _RESULT_MEMBERS
        }
        moment = datetime.fromtimestamp(facts.accepted_at, UTC).isoformat(timespec="milliseconds")
        return json_line(
            {
                **own,
                "request": msgspec.Raw(one_line(record.get("request", NULL))),
                "response": {} if response is None else response,
                "status": error["message"] if error else "",
                "processed_time": moment if facts.accepted_at else "",
            }
        )

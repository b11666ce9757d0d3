"""Anthropic's message batches: `{"custom_id", "params"}` a line, and their results."""

from __future__ import annotations

import msgspec

from dropbatch.core.formats.answers import text_value
from dropbatch.core.formats.base import (
    NULL,
    REFUSED_CODES,
    BatchFacts,
    Outcome,
    VendorReader,
    begins,
    body_of,
    json_line,
    object_of,
    one_line,
    text_reference,
)
from dropbatch.core.formats.bedrock import Given, message_object
from dropbatch.core.formats.conversion.requests import Endpoint, convert_body
from dropbatch.core.formats.openai import check_model

OTHER_RESULTS = {"expired": "expired", "cancelled": "canceled"}
"""Codes for which Anthropic has a type of result."""

_LEFT_OUT = frozenset({"mcp_servers", "context_management", "cache_control", "speed"})


class AnthropicReader(VendorReader):
    """Turns lines of a batch file into requests."""

    def _request(self, line: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        text_reference(line)
        params = body_of(line, "params")
        check_model(params, self._target, "params")
        params = {name: raw for name, raw in params.items() if name not in _LEFT_OUT}
        return convert_body(params, Endpoint.CHAT, self._target, "params")


class AnthropicWriter:
    """Writes answers as Anthropic's batches do."""

    def line(self, facts: BatchFacts, outcome: Outcome) -> bytes:
        """The record's line: its message, or how it failed."""
        custom_id = object_of(outcome.record).get("custom_id", NULL)
        reference = custom_id if outcome.record else outcome.reference
        known = msgspec.Raw(one_line(reference)) if begins(reference, b'"') else ""
        return json_line({"custom_id": known, "result": _result(facts, outcome)})


def _result(facts: BatchFacts, outcome: Outcome) -> dict[str, object]:
    if outcome.result is not None:
        given = Given.of(facts, outcome.id, outcome.result)
        made = message_object(given)
        if made is None:
            whole = given.answer._replace(text=text_value(outcome.result), is_known=True)
            made = message_object(given._replace(answer=whole))
        return {"type": "succeeded", "message": made}
    if outcome.code in OTHER_RESULTS:
        return {"type": OTHER_RESULTS[outcome.code]}
    kind = "invalid_request_error" if outcome.code in REFUSED_CODES else "api_error"
    error = {"type": kind, "message": outcome.message}
    return {
        "type": "errored",
        "error": {"type": "error", "error": error, "request_id": facts.request_id or None},
    }

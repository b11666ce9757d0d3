"""OpenAI's batch files: `{"custom_id", "method"?, "url"?, "body"}` a line, and their answers."""

from __future__ import annotations

import msgspec

from dropbatch.core.formats.base import (
    NULL,
    BadRecordError,
    BatchFacts,
    Json,
    Outcome,
    Target,
    Task,
    VendorReader,
    body_of,
    json_line,
    member_of,
    object_of,
    one_line,
    text_reference,
    value_of,
    word_of,
)
from dropbatch.core.formats.conversion.requests import INPUT_MEMBERS, Endpoint, convert_body
from dropbatch.core.formats.openai_objects import OBJECTS, base64_list, embedding_list
from dropbatch.core.models import model_id, of_other_model

STATUS_CODES: dict[str, int] = {
    **dict.fromkeys(("bad_record", "mismatched_model", "too_large", "rejected"), 400),
    "inference_failed": 500,
}
"""Codes of failed records that OpenAI would answer with a response. With any other, the line has an
error instead."""

ERROR_CODES = {"expired": "batch_expired", "cancelled": "batch_cancelled"}
"""Codes that OpenAI names differently."""

ENDPOINTS = {str(endpoint): endpoint for endpoint in Endpoint if endpoint is not Endpoint.OTHER}
"""What a `url` may end in. The first that fits is meant, so the longer name is before the
shorter."""

BATCH_ENDPOINTS = tuple(f"/v1/{name}" for name in ENDPOINTS)
"""What a batch of OpenAI's may be for; the option `endpoint`."""

OWN_INPUTS = frozenset({"text", "contexts", "audio", "query"})
"""Members of Workers AI's own requests that hold the input, and that no endpoint has."""

_ERROR_TYPES = {400: "invalid_request_error", 500: "server_error"}
_REQUEST_MEMBERS = frozenset({"reasoning", "instructions", "max_output_tokens"})
"""Members by which a request of the Responses API differs from one for embeddings. If there is no
`url`."""


_POST = msgspec.Raw(b'"POST"')


class OpenAIReader(VendorReader):
    """Turns lines of a batch file into requests."""

    def _request(self, line: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
        text_reference(line)
        body = body_of(line, "body")
        if word_of(line.get("method", _POST)) != "POST" and line["method"] != NULL:
            raise BadRecordError("method", 'It must be "POST".')
        check_model(body, self._target, "body")
        endpoint = endpoint_of(line.get("url", NULL), body, self._target.task)
        self._check_endpoint(endpoint)
        if endpoint is Endpoint.OTHER:
            self._check_input(body)
        return convert_body(body, endpoint, self._target, "body")

    def _check_endpoint(self, endpoint: Endpoint) -> None:
        """Check that a record is for the batch's endpoint, if it has one."""
        if self._target.endpoint not in {"", f"/v1/{endpoint}"}:
            raise BadRecordError(
                "url", f"It must be {self._target.endpoint}, the endpoint of the batch."
            )

    def _check_input(self, body: dict[str, msgspec.Raw]) -> None:
        """Check that a body of no endpoint is a request of Workers AI itself."""
        if not OWN_INPUTS & body.keys():
            name = "input" if self._target.task is Task.EMBEDDINGS else "messages"
            if self._target.task not in {Task.EMBEDDINGS, Task.GENERATION, Task.UNKNOWN}:
                name = INPUT_MEMBERS[self._target.shape]
            raise BadRecordError(
                f"body.{name}", "It is missing. Without it, the body is a request of no endpoint."
            )


def check_model(body: dict[str, msgspec.Raw], target: Target, path: str) -> None:
    """Check that a body names no other model of Workers AI than the job's; or `BadRecordError`."""
    model = value_of(body.get("model", NULL))
    if model is not None and not isinstance(model, str):
        raise BadRecordError(f"{path}.model", "It must be a string.")
    model = model_id(model)
    if model and model != target.model:
        raise BadRecordError(
            f"{path}.model", of_other_model(model, target.model), "mismatched_model"
        )


def endpoint_of(url: Json, body: dict[str, msgspec.Raw], task: Task) -> Endpoint:
    """The endpoint of a record, by its `url`, else its body's members; or `BadRecordError`."""
    if bytes(url) != b"null":
        path = "/" + word_of(url).partition("?")[0].strip("/")
        found = next((one for name, one in ENDPOINTS.items() if path.endswith(f"/{name}")), None)
        if found is None:
            ends = ", ".join(f"/{one}" for one in ENDPOINTS)
            raise BadRecordError(
                "url", f"It is {bytes(url)[:100].decode(errors='replace')}; it must end in {ends}."
            )
        return found
    if "messages" in body:
        return Endpoint.CHAT
    if "prompt" in body:
        return Endpoint.COMPLETIONS
    if "input" not in body:
        return Endpoint.OTHER
    if task is Task.UNKNOWN:
        is_responses = bool(_REQUEST_MEMBERS & body.keys()) or b"{" in bytes(body["input"])[:2]
        return Endpoint.RESPONSES if is_responses else Endpoint.EMBEDDINGS
    return Endpoint.EMBEDDINGS if task is Task.EMBEDDINGS else Endpoint.RESPONSES


class OpenAIWriter:
    """Writes answers as OpenAI's batches do."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def line(self, facts: BatchFacts, outcome: Outcome) -> bytes:
        """The record's line: its answer in `response`, a failure before any answer in `error`."""
        line = object_of(outcome.record)
        response = error = None
        if outcome.result is not None:
            response = _response(facts, 200, self._body(facts, outcome, line, outcome.result))
        elif status := STATUS_CODES.get(outcome.code):
            told = {
                "message": outcome.message,
                "type": _ERROR_TYPES[status],
                "param": member_of(outcome.message) if status == 400 else None,  # noqa: PLR2004
                "code": outcome.code,
            }
            response = _response(facts, status, {"error": told})
        else:
            error = {
                "code": ERROR_CODES.get(outcome.code, outcome.code),
                "message": outcome.message,
            }
        reference = line.get("custom_id", NULL) if outcome.record else outcome.reference
        return json_line(
            {
                "id": f"batch_req_{facts.job_id}_{outcome.id}",
                "custom_id": msgspec.Raw(one_line(reference)),
                "response": response,
                "error": error,
            }
        )

    def _body(
        self, facts: BatchFacts, outcome: Outcome, line: dict[str, msgspec.Raw], result: Json
    ) -> object:
        body = object_of(line.get("body", NULL))
        make = OBJECTS.get(endpoint_of(line.get("url", NULL), body, self._task))
        if make is embedding_list and word_of(body.get("encoding_format", NULL)) == "base64":
            make = base64_list
        made = make(facts, outcome.id, result) if make else None
        return made or msgspec.Raw(bytes(result))


def _response(facts: BatchFacts, status: int, body: object) -> dict[str, object]:
    return {"status_code": status, "request_id": facts.request_id, "body": body}

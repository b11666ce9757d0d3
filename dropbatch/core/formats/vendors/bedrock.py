"""Bedrock's batch files.

`{"recordId"?, "modelInput"}` per line, and their answers in the shape of the input.
"""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from dropbatch.core.formats.base import (
    NULL,
    REFUSED_CODES,
    BadRecordError,
    Converted,
    LineReader,
    RecordFault,
    Task,
    begins,
    encode,
    is_object,
    json_line,
    members_of,
    one_line,
    with_defaults,
)
from dropbatch.core.formats.conversion.requests import Endpoint, convert_body
from dropbatch.core.formats.vendors.bedrock_outputs import model_output

if TYPE_CHECKING:
    from dropbatch.core.formats.base import BatchFacts, Json, Outcome, Target

MAX_OUTPUT_NAME_BYTES = 60
"""Bytes of the name of an output file that is named after its upload."""

TAKEN_NAMES = frozenset({"manifest.json.out"})
"""Names that such a file cannot have."""

_ID_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ID_LENGTH = 11
_TITAN_EMBEDDINGS = frozenset({"normalize", "embeddingTypes"})
"""Members that Titan's embedding models take and its text models do not."""


class _Line(msgspec.Struct, rename={"record_id": "recordId", "model_input": "modelInput"}):
    record_id: msgspec.Raw = NULL
    model_input: msgspec.Raw = NULL


_decode_line = msgspec.json.Decoder(_Line).decode


class BedrockReader(LineReader):
    """Turns lines of a batch file into requests."""

    def _convert(self, record: bytes) -> Converted | RecordFault:
        line = _decode_line(record)
        is_text = begins(line.record_id, b'"')
        try:
            if not is_text and bytes(line.record_id) != b"null":
                raise BadRecordError("recordId", "It must be a string, or be left out.")  # noqa: TRY301
            request = self._request(members_of(line.model_input))
        except BadRecordError as error:
            return RecordFault(error.code, error.message, line.record_id if is_text else NULL)
        return Converted(with_defaults(request, self._target, line.record_id), line.record_id)

    def _request(self, model_input: dict[str, msgspec.Raw] | None) -> dict[str, Json]:
        if model_input is None:
            raise BadRecordError("modelInput", "It must be an object: the request.")
        return convert_body(
            model_input, endpoint_of(model_input, self._target), self._target, "modelInput"
        )


def endpoint_of(model_input: dict[str, msgspec.Raw], target: Target) -> Endpoint:
    """What a `modelInput` was written for, in the terms of OpenAI's endpoints."""
    if "messages" in model_input:
        return Endpoint.CHAT
    if "texts" in model_input:
        return Endpoint.EMBEDDINGS
    if "inputText" in model_input:
        is_text = target.task is Task.GENERATION or "textGenerationConfig" in model_input
        if is_text or (
            target.task is not Task.EMBEDDINGS and not _TITAN_EMBEDDINGS & model_input.keys()
        ):
            return Endpoint.COMPLETIONS if is_text else Endpoint.OTHER
        return Endpoint.EMBEDDINGS
    if "input" in model_input:
        return Endpoint.EMBEDDINGS if target.task is Task.EMBEDDINGS else Endpoint.RESPONSES
    if "prompt" in model_input:
        return Endpoint.COMPLETIONS
    return Endpoint.OTHER


class BedrockWriter:
    """Writes answers as Bedrock's batches do."""

    def line(self, facts: BatchFacts, outcome: Outcome) -> bytes:
        """The record's line: its input, and its output or its error."""
        line = _decode_line(outcome.record) if is_object(outcome.record) else _Line()
        model_input = msgspec.Raw(one_line(line.model_input))
        if outcome.result is not None:
            output = model_output(
                members_of(line.model_input) or {}, facts, outcome.id, outcome.result
            )
            last = {"modelOutput": output}
        else:
            last = {
                "error": {"errorCode": error_code(outcome.code), "errorMessage": outcome.message}
            }
        known = begins(line.record_id, b'"')
        record_id = (
            msgspec.Raw(one_line(line.record_id)) if known else made_up_id(facts, outcome.id)
        )
        return json_line({"modelInput": model_input, **last, "recordId": record_id})


def error_code(code: str) -> int:
    """Bedrock's number for one of Dropbatch's codes."""
    if code in REFUSED_CODES:
        return HTTPStatus.BAD_REQUEST
    return HTTPStatus.REQUEST_TIMEOUT if code == "expired" else HTTPStatus.INTERNAL_SERVER_ERROR


def made_up_id(facts: BatchFacts, id_: int) -> str:
    """The `recordId` of a record that has none: 11 letters and digits, the same in every run."""
    number = int.from_bytes(hashlib.sha256(f"{facts.job_id}/{id_}".encode()).digest()[:8])
    letters = []
    for _ in range(_ID_LENGTH):
        number, letter = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[letter])
    return "".join(letters)


def output_name(upload_key: str) -> str:
    """The name of the output file: the upload's with `.out`, as in Bedrock."""
    name = upload_key.rpartition("/")[2]
    for ending in (".gz", ".zst"):
        if name.lower().endswith(ending):
            name = name[: -len(ending)]
            break
    name = f"{name}.out"
    return (
        "output.jsonl.out"
        if len(name.encode()) > MAX_OUTPUT_NAME_BYTES or name in TAKEN_NAMES
        else name
    )


def manifest_out(
    total: int, succeeded: int, failed: int, input_tokens: int | None, output_tokens: int | None
) -> bytes:
    """`manifest.json.out`: Bedrock's counts of a job; tokens that were not reported are 0."""
    return encode(
        {
            "totalRecordCount": total,
            "processedRecordCount": succeeded + failed,
            "successRecordCount": succeeded,
            "errorRecordCount": failed,
            "inputTokenCount": input_tokens or 0,
            "outputTokenCount": output_tokens or 0,
        }
    )

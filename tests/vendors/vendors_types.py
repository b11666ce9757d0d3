"""Reads requests and result lines with the vendors' own types, and prints how many each took."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

# It would download the map, which no test should.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from anthropic.types.messages import MessageBatchIndividualResponse, batch_create_params
from botocore.session import Session
from botocore.validate import ParamValidator
from litellm.batches import batch_utils
from openai import types as openai
from openai.types.chat import ChatCompletion, CompletionCreateParams
from openai.types.responses import Response, response_create_params
from pydantic import TypeAdapter

OPENAI_REQUESTS = {
    "/v1/chat/completions": TypeAdapter(CompletionCreateParams),
    "/v1/embeddings": TypeAdapter(openai.EmbeddingCreateParams),
    "/v1/responses": TypeAdapter(response_create_params.ResponseCreateParams),
}
OPENAI_OBJECTS = {
    "chat.completion": ChatCompletion,
    "response": Response,
    "list": openai.CreateEmbeddingResponse,
    "text_completion": openai.Completion,
}
ANTHROPIC_REQUEST = TypeAdapter(batch_create_params.Request)
CONVERSE = Session().get_service_model("bedrock-runtime", "2023-09-30").operation_model("Converse")


def read_request(format_: str, record: dict[str, Any]) -> str:
    """Read a request; says with what."""
    if format_ == "openai":
        OPENAI_REQUESTS[record["url"]].validate_python(record["body"])
        return f"openai {record['url']}"
    if format_ == "anthropic":
        ANTHROPIC_REQUEST.validate_python(record)
        return "anthropic Request"
    if "inferenceConfig" in record["modelInput"]:
        fits_converse({"modelId": "a", **record["modelInput"]}, CONVERSE.input_shape)
        return "converse input"
    return ""


def read_line(format_: str, line: dict[str, Any]) -> str:
    """Read a result line; says with what."""
    if format_ == "openai":
        body = (line["response"] or {}).get("body", {})
        if "object" not in body:
            return ""
        OPENAI_OBJECTS[body["object"]].model_validate(body, strict=True)
        return f"openai {body['object']}"
    if format_ == "anthropic":
        MessageBatchIndividualResponse.model_validate(line, strict=True)
        return "anthropic MessageBatchIndividualResponse"
    output = line.get("modelOutput", {})
    if "stopReason" in output:
        fits_converse(output, CONVERSE.output_shape)
        return "converse output"
    return ""


def fits_converse(value: dict[str, Any], shape: Any) -> None:  # botocore has no types
    """End if a value has an unknown or missing member, or one of another type."""
    report = ParamValidator().validate(value, shape)
    unknown = value.keys() - shape.members.keys()
    if report.has_errors() or unknown:
        raise ValueError(f"{report.generate_report()} {sorted(unknown)}")


def read_as_litellm(format_: str, record: dict[str, Any]) -> str:
    """Read a result line as LiteLLM does: whether it succeeded, its completion, and its tokens."""
    line = record["line"]
    succeeded = "request" in record
    if batch_utils._batch_response_was_successful(line, format_) != succeeded:
        raise ValueError("LiteLLM sees another end")
    body = batch_utils._get_response_from_batch_job_output_file(line, format_)
    if not succeeded:
        return "litellm failures"
    if body.get("object") == "chat.completion":
        response = litellm.ModelResponse(**body)
        if (response.choices[0].message.content, response.usage.prompt_tokens) != ("Bad.", 9):
            raise ValueError("LiteLLM reads another answer")
        return "litellm completions"
    # Of Bedrock's outputs, LiteLLM reads the tokens of messages and of Converse.
    if format_ == "anthropic" or "stopReason" in body or body.get("type") == "message":
        if batch_utils._get_batch_job_usage_from_response_body(body, format_).prompt_tokens != 9:
            raise ValueError("LiteLLM reads other tokens")
        return "litellm tokens"
    return "litellm others"


def read_lines(path: Path) -> Counter[str]:
    """How many result lines of a file each type took."""
    read: Counter[str] = Counter()
    for number, (format_, line) in enumerate(json.loads(path.read_text("utf-8"))):
        try:
            read[read_line(format_, line)] += 1
        except Exception as error:
            raise SystemExit(f"{number}: {error}") from error
    return read


def read_files(files: Path, expected: Path) -> Counter[str]:
    """How many records of the vendors' files, and how many lines that are expected."""
    read: Counter[str] = Counter()
    for name, lines in json.loads(files.read_text("utf-8")).items():
        for number, text in enumerate(lines, 1):
            try:
                read[read_request(name.partition("-")[0], json.loads(text))] += 1
            except Exception as error:
                raise SystemExit(f"{name}:{number}: {error}") from error
    for name, one in json.loads(expected.read_text("utf-8")).items():
        if one["format"] not in {"openai", "anthropic", "bedrock"}:
            continue
        for number, record in enumerate(one["records"], 1):
            try:
                read[read_line(one["format"], record["line"])] += 1
                read[read_as_litellm(one["format"], record)] += 1
            except Exception as error:
                raise SystemExit(f"{name}:{number}: {error}") from error
    return read


if __name__ == "__main__":
    paths = [Path(one) for one in sys.argv[1:]]
    counted = read_files(*paths) if paths[1:] else read_lines(*paths)
    del counted[""]
    print(json.dumps(counted, indent=1))

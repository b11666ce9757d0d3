"""Bedrock's batch files: what is sent for a record, and the line that answers it."""

import json

import botocore.session
import pytest
from botocore.parsers import create_parser
from botocore.validate import ParamValidator

from dropbatch.core.formats.base import Outcome, RecordFault, member_of
from dropbatch.core.formats.bedrock import manifest_out, output_name
from dropbatch.core.formats.table import Form, file_names, writer_of
from tests.support import converted
from tests.support.converted import FACTS, GPT, LLAMA, M3, target_of, written

FORM = Form("bedrock")

TEXT = {"response": "Hi", "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
CUT = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "length"}]}
CALL = {"response": None, "tool_calls": [{"id": "c", "name": "f", "arguments": {"x": 1}}]}

MESSAGES = {
    "anthropic_version": "bedrock-2023-05-31",
    "messages": [{"role": "user", "content": "Hello"}],
}
CONVERSE = {"messages": [{"role": "user", "content": [{"text": "Hello"}]}]}
IMAGE = {"image": {"format": "jpeg", "source": {"bytes": "AAAA"}}}
SEEN = {"role": "user", "content": [IMAGE]}


def convert(model, model_input, **members):
    return converted.convert(model, model_input, "bedrock", **members)


def sent(model, model_input):
    return converted.sent(model, model_input, "bedrock")


def line_of(model_input, result=None, *, id_=5, code="", message="", **members):
    record = written(model_input, "bedrock", **members)
    return converted.line_of(record, result, "bedrock", code=code, message=message, id_=id_)


def output_of(model_input, result):
    return line_of(model_input, result)["modelOutput"]


# ── what is sent ──────────────────────────────────────────────────────────────────────────────────
def test_converse_becomes_chat_request():
    spec = {"name": "f", "description": "d", "inputSchema": {"json": {"type": "object"}}}
    limits = {"maxTokens": 9, "temperature": 0.5, "topP": 0.9, "stopSequences": ["."]}
    model_input = {
        **CONVERSE,
        "system": [{"text": "Be brief."}],
        "inferenceConfig": limits,
        "toolConfig": {"tools": [{"toolSpec": spec}], "toolChoice": {"any": {}}},
    }
    schema = {"type": "object", "properties": {}}
    function = {"name": "f", "description": "d", "parameters": schema}

    request = sent(LLAMA, model_input)
    assert [one["content"] for one in request.pop("messages")] == ["Be brief.", "Hello"]
    assert request.pop("tools") == [{"type": "function", "function": function}]
    limits = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "stop": ["."]}
    assert request == limits | {"tool_choice": "required"}


def test_titan_is_text_or_embeddings_by_models_task():
    config = {"textGenerationConfig": {"maxTokenCount": 9, "topP": 1}}
    assert sent(LLAMA, {"inputText": "x", **config}) == {"prompt": "x", "max_tokens": 9, "top_p": 1}
    request = {"input": "x", "max_output_tokens": 9, "top_p": 1}
    assert sent(GPT, {"inputText": "x", **config}) == request
    assert sent(M3, {"inputText": "x"}) == {"text": "x"}


@pytest.mark.parametrize(
    ("model_input", "members", "member"),
    [
        ({**MESSAGES, "stream": True}, {}, "modelInput.stream"),
        ({"inputText": "x", "dimensions": 256}, {}, "modelInput.dimensions"),
        ({"texts": [1]}, {}, "modelInput.text"),
        ("x", {}, "modelInput"),
        (MESSAGES, {"recordId": 5}, "recordId"),
        ({**MESSAGES, "system": 5}, {}, "modelInput.system"),
        ({"messages": [SEEN]}, {}, "modelInput.messages[0].content[0]"),
    ],
)
def test_record_that_does_not_fit_is_bad(model_input, members, member):
    embeds = not isinstance(model_input, str) and model_input.keys() & {"inputText", "texts"}
    fault = convert(M3 if embeds else LLAMA, model_input, **members)
    assert isinstance(fault, RecordFault)
    assert (fault.code, member_of(fault.message)) == ("bad_record", member)


# ── what comes back ───────────────────────────────────────────────────────────────────────────────
def test_model_input_is_copied_as_it_is_written():
    record = b'{"modelInput":{"prompt" : "\\u00e9", "max_gen_len": 1.50}}'
    outcome = Outcome(0, b"null", record, b'{"response":"Hi"}')
    line = writer_of(FORM, target_of(LLAMA)).line(FACTS, outcome)
    assert b'"modelInput":{"prompt" : "\\u00e9", "max_gen_len": 1.50},' in line


@pytest.mark.parametrize("result", [TEXT, CUT, CALL])
def test_converse_answers_are_what_botocore_knows(result):
    output = output_of(CONVERSE, result)
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    shape = service.operation_model("Converse").output_shape
    assert output.keys() == {*shape.required_members}
    assert not ParamValidator().validate(output, shape).has_errors()
    reply = {"status_code": 200, "headers": {}, "body": json.dumps(output).encode()}
    parsed = create_parser("rest-json").parse(reply, shape)
    del parsed["ResponseMetadata"]
    assert parsed == output
    assert output["metrics"] == {"latencyMs": 0}
    assert output["stopReason"] in shape.members["stopReason"].enum


@pytest.mark.parametrize(
    ("code", "number"),
    [
        ("bad_record", 400),
        ("rejected", 400),
        ("too_large", 400),
        ("expired", 408),
        ("inference_failed", 500),
        ("missing_response", 500),
        ("cancelled", 500),
        ("internal", 500),
    ],
)
def test_failed_record_has_error_instead_of_output(code, number):
    line = line_of(MESSAGES, code=code, message="why", recordId="CALL0000001")
    error = {"errorCode": number, "errorMessage": "why"}
    assert line == {"modelInput": MESSAGES, "error": error, "recordId": "CALL0000001"}


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("inbox/a/calls.jsonl", "calls.jsonl.out"),
        ("inbox/calls.jsonl.gz", "calls.jsonl.out"),
        ("inbox/calls.jsonl.ZST", "calls.jsonl.out"),
        ("inbox/" + "x" * 56, "x" * 56 + ".out"),
        ("inbox/" + "x" * 57, "output.jsonl.out"),
        ("inbox/" + "ä" * 29, "output.jsonl.out"),
        ("inbox/manifest.json", "output.jsonl.out"),
    ],
)
def test_output_is_named_after_upload(key, name):
    assert output_name(key) == name
    assert file_names(FORM, key).output == name


def test_manifest_counts_as_bedrocks_does():
    assert json.loads(manifest_out(10, 7, 3, 100, None)) == {
        "totalRecordCount": 10,
        "processedRecordCount": 10,
        "successRecordCount": 7,
        "errorRecordCount": 3,
        "inputTokenCount": 100,
        "outputTokenCount": 0,
    }

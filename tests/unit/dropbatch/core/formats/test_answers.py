"""Images, requests of the Responses API, urls, Bedrock's shapes, and what answers keep."""

import csv
import json

import pytest
from openai.types.responses import Response

from dropbatch.core.formats.base import BatchFacts, Outcome
from dropbatch.core.formats.table import Form, writer_of
from tests.support.converted import (
    CALL,
    DATA,
    GPT,
    HELLO,
    KIMI,
    LLAMA,
    SCOUT,
    body_of,
    fault,
    line_of,
    sent,
    target_of,
    written,
)


@pytest.mark.parametrize("model", [SCOUT, KIMI])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": DATA}},
        {"type": "image_url", "image_url": DATA},
        {"type": "input_image", "image_url": DATA},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"image": {"format": "png", "source": {"bytes": "AAAA"}}},
    ],
)
def test_image_in_record_is_sent_as_data_url(model, part):
    (message,) = sent(model, {"messages": [{"role": "user", "content": [part]}]})["messages"]
    assert message["content"] == [{"type": "image_url", "image_url": {"url": DATA}}]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "image_url", "image_url": "https://example.com/a.png"},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
        {"type": "input_image", "file_id": "file_1"},
        {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k"}}}},
        {"image": {"format": "png", "source": {"s3Uri": "s3://b/k"}}},
    ],
)
def test_image_somewhere_else_is_bad(part):
    path, message = fault(SCOUT, {"messages": [{"role": "user", "content": [part]}]})
    assert path == "body.messages[0].content[0]"
    assert "data URLs" in message


def test_chat_answer_to_responses_request_is_response():
    message = {"content": "low", "reasoning_content": "hm", "tool_calls": [CALL]}
    result = {"choices": [{"message": message, "finish_reason": "length"}]}
    body = body_of(KIMI, {"input": "Hi"}, result, "/v1/responses")
    response = Response.model_validate(body, strict=True)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert (response.output_text, response.status) == ("low", "incomplete")
    assert response.output[2].call_id == "call_1"
    assert response.incomplete_details.reason == "max_output_tokens"


def output_of(model_input, result):
    return line_of(written(model_input, "bedrock"), result, "bedrock")["modelOutput"]


THOUGHT = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}
CUT_OFF = {"output": [THOUGHT], "incomplete_details": {"reason": "max_output_tokens"}}


def chat_that_ended(reason):
    return {"choices": [{"message": {"content": "Hi"}, "finish_reason": reason}]}


@pytest.mark.parametrize(
    ("result", "finish"),
    [
        (chat_that_ended("MAX_TOKENS"), "length"),
        (chat_that_ended("abort"), "length"),
        (chat_that_ended("safety"), "content_filter"),
        (chat_that_ended("eos_token"), "stop"),
        (CUT_OFF | {"incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        (CUT_OFF | {"incomplete_details": None, "status": "incomplete"}, "length"),
        (CUT_OFF | {"incomplete_details": None, "status": "failed"}, "length"),
        (CUT_OFF | {"incomplete_details": None, "status": "completed"}, "stop"),
        ({"response": "Hi", "finish_reason": "max_tokens"}, "length"),
    ],
)
def test_answer_that_was_cut_off_does_not_look_complete(result, finish):
    assert body_of(GPT, {"messages": [HELLO]}, result)["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{\n  "at": "noon",\r\n  "days": [\n    1\n  ]\n}', {"at": "noon", "days": [1]}),
        ('{"at": "noon\nor later"}', {"arguments": '{"at": "noon\nor later"}'}),
        ("at noon\n", {"arguments": "at noon\n"}),
        ("[\n1\n]", {"arguments": "[\n1\n]"}),
    ],
)
@pytest.mark.parametrize("shape", ["own", "chat", "responses"])
def test_arguments_of_any_text_are_object_on_one_line(arguments, expected, shape):
    """A model writes its arguments as text: indented, or not as JSON."""
    call = {"name": "tide", "arguments": arguments}
    message = {"content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]}
    answer = {
        "own": {"response": None, "tool_calls": [call]},
        "chat": {"choices": [{"message": message}]},
        "responses": {"output": [{"type": "function_call", "call_id": "c", **call}]},
    }[shape]
    chat, converse = {"messages": HELLO}, [{"role": "user", "content": [{"text": "x"}]}]
    anthropic = line_of(written(chat, "anthropic"), answer, "anthropic")
    claude = output_of({"anthropic_version": "b", **chat}, answer)
    nova = output_of({"messages": converse}, answer)
    line = writer_of(Form("csv", b"text"), target_of(LLAMA)).line(
        BatchFacts("j", LLAMA), Outcome(0, b'"a"', b"x", json.dumps(answer).encode())
    )
    assert line.count(b"\n") == 1
    (row,) = csv.reader([line.decode()])
    found = [
        anthropic["result"]["message"]["content"][-1]["input"],
        claude["content"][-1]["input"],
        nova["output"]["message"]["content"][-1]["toolUse"]["input"],
        json.loads(row[1])[0]["arguments"],
    ]
    assert found == [expected] * 4

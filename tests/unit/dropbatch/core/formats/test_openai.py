"""OpenAI's batch files: what is sent for a record, and the line that answers it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion

from dropbatch.core.formats.table import Form, reader_of
from tests.support.converted import (
    GPT,
    HELLO,
    KIMI,
    LLAMA,
    M3,
    answers,
    body_of,
    fault,
    line_of,
    sent,
    target_of,
    written,
)

FORM = Form("openai")


def test_unknown_members_are_sent_as_written():
    turns = b'"messages":[{"role":"user","content":"\\u00e9"}]'
    raw = b'{"custom_id":"a","body":{%b,"odd" : {"x" : 1.50}}}' % turns
    (converted,) = reader_of(FORM, target_of(LLAMA)).convert([raw])
    parts = [turns, b'"odd":{"x" : 1.50}', b'"external_reference":"a"']
    assert len(converted.request) == len(b"{%b}" % b",".join(parts))
    assert all(part in converted.request for part in parts)


@pytest.mark.parametrize(
    ("body", "member"),
    [
        ({"messages": [HELLO], "stream": True}, "body.stream"),
        ({"messages": [HELLO], "stream": 0}, "body.stream"),
        ({"messages": [HELLO], "n": 2}, "body.n"),
        ({"messages": [HELLO], "n": True}, "body.n"),
        ({"messages": [HELLO], "dimensions": 64}, "body.dimensions"),
        ({"messages": [HELLO], "modalities": ["text", "audio"]}, "body.audio"),
        ({"messages": [HELLO], "audio": {"voice": "x"}}, "body.audio"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "body.messages[0].content[0]",
        ),
        ({"messages": "Hello"}, "body.messages"),
        ({"messages": [1]}, "body.messages[0]"),
        ({"prompt": [1, 2, 3]}, "body.prompt"),
        ({"prompt": ["a", "b"]}, "body.prompt"),
        ({"model": 5, "messages": [HELLO]}, "body.model"),
        ({"input": 5}, "body.input"),
    ],
)
def test_what_workers_ai_does_not_do_makes_record_bad(body, member):
    assert fault(LLAMA, body)[0] == member


CHAT_URLS = [
    *("/v1/chat/completions", "/chat/completions", "v1/chat/completions/", "/v4/chat/completions"),
    *("/openai/v1/chat/completions", "https://api.example.com/v1/chat/completions?api-version=1"),
]


@pytest.mark.parametrize("url", [None, *CHAT_URLS])
def test_end_of_url_decides(url):
    assert sent(LLAMA, {"messages": [HELLO]}, url=url) == {"messages": [HELLO]}


@pytest.mark.parametrize(
    "members", [{"url": "/v1/moderations"}, {"url": 5}, {"method": "GET"}, {"custom_id": 5}]
)
def test_line_without_request_is_bad(members):
    assert fault(LLAMA, {"messages": [HELLO]}, **members)[0] == next(iter(members))


def test_prompt_becomes_message_if_needed():
    assert sent(LLAMA, {"prompt": "x"}) == {"prompt": "x"}
    assert sent(LLAMA, {"prompt": ["x"]}) == {"prompt": "x"}
    assert sent(KIMI, {"prompt": "x"}) == {"messages": [{"role": "user", "content": "x"}]}
    assert sent(GPT, {"prompt": "x"}) == {"input": "x"}


@pytest.mark.parametrize(("model", "is_plain"), [(LLAMA, True), (KIMI, False)])
def test_schema_is_given_to_each_model_as_it_takes_it(model, is_plain):
    plain, schema = {"type": "json_schema", "json_schema": {"type": "object"}}, {"type": "object"}
    wrapped, named = (
        plain | {"json_schema": {"name": name, "schema": schema}} for name in ("s", "answer")
    )
    for form, wanted in ((wrapped, wrapped), (plain, named)):
        request = sent(model, {"messages": [HELLO], "response_format": form})
        assert request["response_format"] == (plain if is_plain else wanted)


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
HI = {"role": "assistant", "content": "Hi", "reasoning_content": "hm"}
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 5,
    "choices": [{"index": 0, "message": HI, "finish_reason": "length"}],
    "usage": {**USAGE, "neurons": 0.5},
}
RESPONSE = {
    "id": "resp_1",
    "output": [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]},
    ],
    "usage": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7},
}
CHAT_RESULTS = {
    "workers": {"response": "Hi", "usage": USAGE, "tool_calls": [{}]},
    "completion": COMPLETION,
    "text completion": {"choices": [{"text": "Hi", "finish_reason": None}], "usage": USAGE},
    "responses": RESPONSE,
    "nested": {"result": {"response": "Hi", "usage": USAGE}},
    "string": "Hi",
}


@pytest.mark.parametrize("name", CHAT_RESULTS)
def test_any_chat_answer_becomes_chat_completion(name):
    body = body_of(LLAMA, {"messages": [HELLO]}, CHAT_RESULTS[name])
    named = body["object"], body["created"], body["model"]
    assert named == ("chat.completion", 1_795_253_400, LLAMA)
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "Hi"
    assert choice["finish_reason"] == ("length" if name == "completion" else "stop")
    assert body["usage"] == (dict.fromkeys(USAGE, 0) if name == "string" else USAGE)


def test_tool_calls_of_workers_ai_become_openais():
    call = {"name": "f", "arguments": {"x": 1}}
    body = body_of(LLAMA, {"messages": [HELLO]}, {"response": None, "tool_calls": [call]})
    parse("/v1/chat/completions", body)
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (made,) = choice["message"]["tool_calls"]
    assert made["function"] == {"name": "f", "arguments": '{"x":1}'}
    assert made["type"] == "function"
    assert choice["message"]["content"] is None


INVALID = (400, "invalid_request_error", "body.n")
FAILURES = {
    **dict.fromkeys(("bad_record", "mismatched_model", "too_large", "rejected"), INVALID),
    "inference_failed": (500, "server_error", None),
}


@pytest.mark.parametrize("code", FAILURES)
def test_refused_record_has_error_response(code):
    message = "Line 18: body.n: it is 2"
    line = line_of(written({"messages": [HELLO]}), code=code, message=message)
    status, kind, param = FAILURES[code]
    error = {"message": message, "type": kind, "param": param, "code": code}
    assert (line["response"]["status_code"], line["response"]["body"]) == (status, {"error": error})
    assert (line["error"], line["custom_id"]) == (None, "a")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("expired", "batch_expired"),
        ("cancelled", "batch_cancelled"),
        ("missing_response", "missing_response"),
        ("internal", "internal"),
        ("cost_limit", "cost_limit"),
        ("invalid_json", "invalid_json"),
    ],
)
def test_record_without_answer_has_error_alone(code, told):
    record = b'{"custom_id":"a",' if code == "invalid_json" else written({"messages": [HELLO]})
    line = line_of(record, code=code, message="why")
    assert (line["response"], line["error"]) == (None, {"code": told, "message": "why"})
    assert line["custom_id"] == (None if code == "invalid_json" else "a")


CHAT_TYPES = {"/v1/chat/completions": ChatCompletion, "/v1/completions": Completion}
REQUESTS = {
    "/v1/chat/completions": {"messages": [HELLO]},
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x"},
}


def parse(url, body):
    """Parse a body strictly, as the SDK's types are declared."""
    CHAT_TYPES[url].model_validate(body, strict=True)


@given(url=st.sampled_from(sorted(REQUESTS)), result=answers)
def test_any_answer_gives_a_line_the_sdk_parses(url, result):
    body = body_of(LLAMA if url != "/v1/embeddings" else M3, REQUESTS[url], result, url)
    if url in CHAT_TYPES:
        parse(url, body)

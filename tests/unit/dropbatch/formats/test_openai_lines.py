"""OpenAI's batch files: the line that answers a record."""

import base64
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.formats.base import BatchFacts, Outcome, member_of
from dropbatch.formats.registry import Form, target_of, writer_of

FORM = Form("openai")
FACTS = BatchFacts("20261121T093000Z-5f3a9c1e", "@cf/meta/llama-3.3-70b-instruct-fp8-fast", "req-1", 1_795_253_400.5)

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
GPT_OSS = "@cf/openai/gpt-oss-20b"
BGE = "@cf/baai/bge-m3"

HELLO = [{"role": "user", "content": "Hello"}]


def record(body, **members):
    return json.dumps({"custom_id": "a", **members, "body": body}).encode()


def line_of(written, result=None, code="", message="", facts=FACTS, id_=17):
    result = None if result is None else json.dumps(result, separators=(",", ":")).encode()
    writer = writer_of(FORM, target_of(facts.model))
    line = writer.line(facts, Outcome(id_, b"null", written, result, code, message))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return json.loads(line)


def body_of(body, result, model=LLAMA, **members):
    facts = BatchFacts(FACTS.job_id, model, FACTS.request_id, FACTS.accepted_at)
    return line_of(record(body, **members), result, facts=facts)["response"]["body"]


USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 5,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hi", "reasoning_content": "hm"},
            "finish_reason": "length",
        }
    ],
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


def test_line_names_record_and_its_batch():
    line = line_of(record({"messages": HELLO}), {"response": "Hi"})
    assert list(line) == ["id", "custom_id", "response", "error"]
    assert line["id"] == "batch_req_20261121T093000Z-5f3a9c1e_17"
    assert (line["custom_id"], line["error"]) == ("a", None)
    assert (line["response"]["status_code"], line["response"]["request_id"]) == (200, "req-1")


@pytest.mark.parametrize("name", CHAT_RESULTS)
def test_any_chat_answer_becomes_chat_completion(name):
    body = body_of({"messages": HELLO}, CHAT_RESULTS[name])
    assert (body["object"], body["created"], body["model"]) == ("chat.completion", 1_795_253_400, LLAMA)
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "Hi"
    assert choice["finish_reason"] == ("length" if name == "completion" else "stop")
    assert body["usage"] == (dict.fromkeys(USAGE, 0) if name == "string" else USAGE)


def test_unknown_message_members_stay():
    assert body_of({"messages": HELLO}, COMPLETION)["choices"][0]["message"]["reasoning_content"] == "hm"


@pytest.mark.parametrize("structured", [{"a": [1, "é"]}, [1, 2]])
def test_structured_answer_is_json_text(structured):
    body = body_of({"messages": HELLO}, {"response": structured})
    assert json.loads(body["choices"][0]["message"]["content"]) == structured


def test_answer_of_unknown_shape_is_json_text():
    body = body_of({"messages": HELLO}, {"odd": 1})
    assert body["choices"][0]["message"]["content"] == '{"odd":1}'


def test_tool_calls_of_workers_ai_become_openais():
    call = {"name": "f", "arguments": {"x": 1}}
    body = body_of({"messages": HELLO}, {"response": None, "tool_calls": [call]})
    parse("/v1/chat/completions", body)
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (made,) = choice["message"]["tool_calls"]
    assert made["function"] == {"name": "f", "arguments": '{"x":1}'}
    assert made["type"] == "function"
    assert choice["message"]["content"] is None


@pytest.mark.parametrize("result", [{"shape": [2, 2], "data": [[1, 2.5], [3, 4]]}, {"response": [[1, 2.5], [3, 4]]}])
def test_embeddings_become_list(result):
    body = body_of({"input": ["x", "y"]}, result, BGE, url="/v1/embeddings")
    parse("/v1/embeddings", body)
    assert (body["object"], body["model"]) == ("list", BGE)
    assert [(one["object"], one["index"], one["embedding"]) for one in body["data"]] == [
        ("embedding", 0, [1, 2.5]),
        ("embedding", 1, [3, 4]),
    ]
    assert body["usage"] == {"prompt_tokens": 0, "total_tokens": 0}


def test_base64_embeddings_are_float32():
    body = body_of({"input": "x", "encoding_format": "base64"}, {"data": [[1, 2.5]]}, BGE, url="/v1/embeddings")
    assert struct.unpack("<2f", base64.b64decode(body["data"][0]["embedding"])) == (1.0, 2.5)


def test_result_without_embedding_stays_native():
    ranked = {"response": [{"id": 0, "score": 0.5}]}
    assert body_of({"input": "x"}, ranked, BGE, url="/v1/embeddings") == ranked


FAILURES = {
    "bad_record": (400, "invalid_request_error", "body.n"),
    "mismatched_model": (400, "invalid_request_error", "body.n"),
    "too_large": (400, "invalid_request_error", "body.n"),
    "rejected": (400, "invalid_request_error", "body.n"),
    "inference_failed": (500, "server_error", None),
}


@pytest.mark.parametrize("code", FAILURES)
def test_refused_record_has_error_response(code):
    message = "Line 18: body.n: it is 2"
    line = line_of(record({"messages": HELLO}), code=code, message=message)
    status, kind, param = FAILURES[code]
    assert line["response"]["status_code"] == status
    assert line["response"]["body"] == {"error": {"message": message, "type": kind, "param": param, "code": code}}
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
    written = b'{"custom_id":"a",' if code == "invalid_json" else record({"messages": HELLO})
    line = line_of(written, code=code, message="why")
    assert (line["response"], line["error"]) == (None, {"code": told, "message": "why"})
    assert line["custom_id"] == (None if code == "invalid_json" else "a")


def test_message_that_names_no_member_has_no_param():
    assert member_of("The record has 12 bytes: shorten it.") is None
    assert member_of("body.messages[3].content[0]: It must be a string.") == "body.messages[3].content[0]"


# ── the SDK's own types ──────────────────────────────────────────────────────────────────────────────────────────────

SDK_TYPES = {
    "/v1/chat/completions": ("openai.types.chat", "ChatCompletion"),
    "/v1/completions": ("openai.types", "Completion"),
    "/v1/embeddings": ("openai.types", "CreateEmbeddingResponse"),
    "/v1/responses": ("openai.types.responses", "Response"),
}
REQUESTS = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": "x"},
}


def parse(url, body):
    """Parse a body strictly, as the SDK's types are declared."""
    module, name = SDK_TYPES[url]
    return getattr(pytest.importorskip(module), name).model_validate(body, strict=True)


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
@pytest.mark.parametrize("name", CHAT_RESULTS)
def test_sdk_parses_each_text_answer(url, name):
    parsed = parse(url, body_of(REQUESTS[url], CHAT_RESULTS[name], GPT_OSS, url=url))
    text = {
        "/v1/chat/completions": lambda: parsed.choices[0].message.content,
        "/v1/completions": lambda: parsed.choices[0].text,
        "/v1/responses": lambda: parsed.output_text,
    }[url]()
    assert text == "Hi"


MEMBERS = [
    "response",
    "choices",
    "message",
    "content",
    "text",
    "tool_calls",
    "function",
    "name",
    "arguments",
    "output",
    "type",
    "usage",
    "data",
    "finish_reason",
    "role",
    "refusal",
    "id",
    "prompt_tokens",
    "result",
]
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(-9, 9), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=5)),
    max_leaves=20,
)


@given(url=st.sampled_from(sorted(REQUESTS)), result=json_values.filter(lambda one: one is not None))
def test_any_answer_gives_a_line_the_sdk_parses(url, result):
    body = body_of(REQUESTS[url], result, LLAMA if url != "/v1/embeddings" else BGE, url=url)
    if url in {"/v1/chat/completions", "/v1/completions"}:
        parse(url, body)

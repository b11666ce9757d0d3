"""OpenAI's batch files: what is sent for a record, and the line that answers it."""

import base64
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.formats.base import BatchFacts, Converted, Outcome, RecordFault, member_of
from shared.formats.registry import Form, reader_of, target_of, writer_of

FILES = Path(__file__).parents[1] / "files"
FORM = Form("openai")
FACTS = BatchFacts("20261121T093000Z-5f3a9c1e", "@cf/meta/llama-3.3-70b-instruct-fp8-fast", "req-1", 1_795_253_400.5)

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
SCOUT = "@cf/meta/llama-4-scout-17b-16e-instruct"
GPT_OSS = "@cf/openai/gpt-oss-20b"
BGE = "@cf/baai/bge-m3"
KIMI = "@cf/moonshotai/kimi-k2.6"

HELLO = [{"role": "user", "content": "Hello"}]


def record(body, **members):
    return json.dumps({"custom_id": "a", **members, "body": body}).encode()


def convert(model, body, **members):
    target = target_of(model, defaults=members.pop("defaults", None))
    (converted,) = reader_of(FORM, target).convert([record(body, **members)])
    return converted


def sent(model, body, **members):
    """The request that a record becomes, without its reference."""
    converted = convert(model, body, **members)
    assert isinstance(converted, Converted), converted
    request = json.loads(converted.request)
    assert request.pop("external_reference") == "a"
    return request


def fault(model, body, **members):
    converted = convert(model, body, **members)
    assert isinstance(converted, RecordFault), converted
    return converted.code, member_of(converted.message)


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


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_members_that_are_not_for_the_model_are_left_out():
    extra = {"model": "gpt-4o", "user": "u", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "n": 1}
    assert sent(LLAMA, {"messages": HELLO, **extra, "stream": False}) == {"messages": HELLO}


def test_members_that_nobody_knows_are_sent_as_written():
    raw = b'{"custom_id":"a","body":{"messages":[{"role":"user","content":"\\u00e9"}],"odd" : {"x" : 1.50}}}'
    (converted,) = reader_of(FORM, target_of(LLAMA)).convert([raw])
    request = b'{"messages":[{"role":"user","content":"\\u00e9"}],"odd":{"x" : 1.50},"external_reference":"a"}'
    assert sorted(converted.request.strip(b"{}")) == sorted(request.strip(b"{}"))
    assert b'"\\u00e9"' in converted.request
    assert b'{"x" : 1.50}' in converted.request


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_the_limit_of_an_answer_is_max_tokens(name):
    assert sent(LLAMA, {"messages": HELLO, name: 9})["max_tokens"] == 9


def test_max_tokens_as_written_counts_before_another_name_for_it():
    assert sent(LLAMA, {"max_completion_tokens": 9, "messages": HELLO, "max_tokens": 7})["max_tokens"] == 7


def test_parts_of_text_are_joined_with_a_line_feed():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts, "name": "x"}, HELLO[0]]
    assert sent(LLAMA, {"messages": messages})["messages"] == [
        {"role": "user", "content": "one\ntwo", "name": "x"},
        HELLO[0],
    ]


def test_content_of_another_kind_is_sent_as_written():
    messages = [{"role": "user", "content": [{"type": "new"}]}]
    assert sent(LLAMA, {"messages": messages})["messages"] == messages


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def test_an_image_is_sent_to_a_model_that_sees_and_is_bad_for_one_that_reads():
    messages = [{"role": "user", "content": [{"type": "text", "text": "What?"}, IMAGE]}]
    assert sent(SCOUT, {"messages": messages})["messages"] == messages
    assert fault(LLAMA, {"messages": messages}) == ("bad_record", "body.messages[0].content[1]")


@pytest.mark.parametrize(
    ("body", "member"),
    [
        ({"messages": HELLO, "stream": True}, "body.stream"),
        ({"messages": HELLO, "stream": 0}, "body.stream"),
        ({"messages": HELLO, "n": 2}, "body.n"),
        ({"messages": HELLO, "n": True}, "body.n"),
        ({"messages": HELLO, "dimensions": 64}, "body.dimensions"),
        ({"messages": HELLO, "modalities": ["text", "audio"]}, "body.audio"),
        ({"messages": HELLO, "audio": {"voice": "x"}}, "body.audio"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "body.messages[0].content[0]"),
        ({"messages": "Hello"}, "body.messages"),
        ({"messages": [1]}, "body.messages[0]"),
        ({"prompt": [1, 2, 3]}, "body.prompt"),
        ({"prompt": ["a", "b"]}, "body.prompt"),
        ({"model": 5, "messages": HELLO}, "body.model"),
        ({"input": 5}, "body.input"),
    ],
)
def test_what_workers_ai_does_not_do_makes_the_record_bad(body, member):
    assert fault(LLAMA, body) == ("bad_record", member)


@pytest.mark.parametrize("body", [{"stream": None}, {"n": None}, {"dimensions": None}, {"audio": None}])
def test_null_asks_for_nothing(body):
    assert sent(LLAMA, {"messages": HELLO, **body}) == {"messages": HELLO}


def test_another_model_of_workers_ai_is_a_mismatch_but_a_foreign_name_is_not():
    assert fault(LLAMA, {"messages": HELLO, "model": SCOUT}) == ("mismatched_model", "body.model")
    assert sent(LLAMA, {"messages": HELLO, "model": LLAMA}) == {"messages": HELLO}
    assert sent(LLAMA, {"messages": HELLO, "model": "gpt-4o-mini"}) == {"messages": HELLO}


@pytest.mark.parametrize("url", ["/v1/chat/completions", "/chat/completions", "v1/chat/completions/", None])
def test_the_url_may_leave_out_its_version(url):
    assert sent(LLAMA, {"messages": HELLO}, url=url) == {"messages": HELLO}


@pytest.mark.parametrize("members", [{"url": "/v1/moderations"}, {"url": 5}, {"method": "GET"}, {"custom_id": 5}])
def test_a_line_that_is_not_a_request_is_bad(members):
    code, member = fault(LLAMA, {"messages": HELLO}, **members)
    assert (code, member) == ("bad_record", next(iter(members)))


def test_a_line_without_an_object_for_body_is_bad_and_keeps_its_custom_id():
    converted = convert(LLAMA, "Hello")
    assert (converted.code, member_of(converted.message), bytes(converted.reference)) == ("bad_record", "body", b'"a"')


@pytest.mark.parametrize("texts", ["one", ["one", "two"], []])
def test_embeddings_are_of_text(texts):
    body = {"input": texts, "encoding_format": "float", "model": "text-embedding-3-small"}
    assert sent(BGE, body, url="/v1/embeddings") == {"text": texts}
    assert sent(BGE, body) == {"text": texts}


@pytest.mark.parametrize("tokens", [[1, 2], [[1], [2]], ["one", 2], 5, None])
def test_embeddings_of_tokens_are_bad(tokens):
    assert fault(BGE, {"input": tokens}, url="/v1/embeddings") == ("bad_record", "body.input")


def test_a_record_for_another_task_than_the_models_is_bad():
    assert fault(BGE, {"messages": HELLO}) == ("bad_record", "body")
    assert fault(LLAMA, {"input": "x"}, url="/v1/embeddings") == ("bad_record", "body")


def test_a_prompt_becomes_a_message_for_a_model_that_takes_nothing_else():
    assert sent(LLAMA, {"prompt": "x"}) == {"prompt": "x"}
    assert sent(LLAMA, {"prompt": ["x"]}) == {"prompt": "x"}
    assert sent(KIMI, {"prompt": "x"}) == {"messages": [{"role": "user", "content": "x"}]}
    assert sent(GPT_OSS, {"prompt": "x"}) == {"input": "x"}


def test_chat_becomes_input_for_a_model_of_the_responses_api():
    schema = {"name": "s", "schema": {"type": "object"}, "strict": True}
    body = {
        "messages": HELLO,
        "max_completion_tokens": 9,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": schema},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
    }
    assert sent(GPT_OSS, body) == {
        "input": HELLO,
        "max_output_tokens": 9,
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "json_schema", **schema}},
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
    }


def test_responses_are_sent_as_they_are():
    body = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}], "instructions": "i"}
    assert sent(GPT_OSS, body, url="/v1/responses") == body
    assert sent(GPT_OSS, body) == body


@pytest.mark.parametrize(("model", "is_plain"), [(LLAMA, True), (KIMI, False)])
def test_a_schema_is_given_to_each_model_as_it_takes_it(model, is_plain):
    wrapped = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    plain = {"type": "json_schema", "json_schema": {"type": "object"}}
    assert sent(model, {"messages": HELLO, "response_format": wrapped})["response_format"] == (
        plain if is_plain else wrapped
    )
    named = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}}
    assert sent(model, {"messages": HELLO, "response_format": plain})["response_format"] == (
        plain if is_plain else named
    )


def test_defaults_are_added_where_the_request_has_no_member_of_that_name():
    defaults = {"max_tokens": b"5", "seed": b"1"}
    assert sent(LLAMA, {"messages": HELLO, "max_completion_tokens": 9}, defaults=defaults) == {
        "messages": HELLO,
        "max_tokens": 9,
        "seed": 1,
    }


# ── what comes back ──────────────────────────────────────────────────────────────────────────────────────────────────

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


def test_a_line_names_the_record_and_its_batch():
    line = line_of(record({"messages": HELLO}), {"response": "Hi"})
    assert list(line) == ["id", "custom_id", "response", "error"]
    assert line["id"] == "batch_req_20261121T093000Z-5f3a9c1e_17"
    assert (line["custom_id"], line["error"]) == ("a", None)
    assert (line["response"]["status_code"], line["response"]["request_id"]) == (200, "req-1")


@pytest.mark.parametrize("name", CHAT_RESULTS)
def test_any_chat_answer_becomes_a_chat_completion(name):
    body = body_of({"messages": HELLO}, CHAT_RESULTS[name])
    assert (body["object"], body["created"], body["model"]) == ("chat.completion", 1_795_253_400, LLAMA)
    (choice,) = body["choices"]
    assert choice["message"]["content"] == "Hi"
    assert choice["finish_reason"] == ("length" if name == "completion" else "stop")
    assert body["usage"] == (dict.fromkeys(USAGE, 0) if name == "string" else USAGE)


def test_members_of_a_message_that_openai_does_not_know_stay():
    assert body_of({"messages": HELLO}, COMPLETION)["choices"][0]["message"]["reasoning_content"] == "hm"


@pytest.mark.parametrize("structured", [{"a": [1, "é"]}, [1, 2]])
def test_a_structured_answer_is_json_text(structured):
    body = body_of({"messages": HELLO}, {"response": structured})
    assert json.loads(body["choices"][0]["message"]["content"]) == structured


def test_an_answer_of_unknown_shape_is_json_text():
    body = body_of({"messages": HELLO}, {"odd": 1})
    assert body["choices"][0]["message"]["content"] == '{"odd":1}'


def test_tool_calls_of_workers_ai_become_openais():
    call = {"name": "f", "arguments": {"x": 1}}
    (choice,) = body_of({"messages": HELLO}, {"response": None, "tool_calls": [call]})["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (made,) = choice["message"]["tool_calls"]
    assert made["function"] == {"name": "f", "arguments": '{"x":1}'}
    assert made["type"] == "function"
    assert choice["message"]["content"] is None


@pytest.mark.parametrize("result", [{"shape": [2, 2], "data": [[1, 2.5], [3, 4]]}, {"response": [[1, 2.5], [3, 4]]}])
def test_embeddings_become_a_list(result):
    body = body_of({"input": ["x", "y"]}, result, BGE, url="/v1/embeddings")
    assert (body["object"], body["model"]) == ("list", BGE)
    assert [(one["object"], one["index"], one["embedding"]) for one in body["data"]] == [
        ("embedding", 0, [1, 2.5]),
        ("embedding", 1, [3, 4]),
    ]
    assert body["usage"] == {"prompt_tokens": 0, "total_tokens": 0}


def test_embeddings_are_little_endian_float32_in_base64_where_asked():
    body = body_of({"input": "x", "encoding_format": "base64"}, {"data": [[1, 2.5]]}, BGE, url="/v1/embeddings")
    assert struct.unpack("<2f", base64.b64decode(body["data"][0]["embedding"])) == (1.0, 2.5)


def test_a_result_that_is_not_an_embedding_stays_the_apis_own():
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
def test_a_record_that_was_refused_has_a_response_with_an_error(code):
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
def test_a_record_without_an_answer_has_an_error_alone(code, told):
    written = b'{"custom_id":"a",' if code == "invalid_json" else record({"messages": HELLO})
    line = line_of(written, code=code, message="why")
    assert (line["response"], line["error"]) == (None, {"code": told, "message": "why"})
    assert line["custom_id"] == (None if code == "invalid_json" else "a")


def test_a_message_that_names_no_member_has_no_param():
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
def test_the_sdk_parses_each_text_answer(url, name):
    parsed = parse(url, body_of(REQUESTS[url], CHAT_RESULTS[name], GPT_OSS, url=url))
    text = {
        "/v1/chat/completions": lambda: parsed.choices[0].message.content,
        "/v1/completions": lambda: parsed.choices[0].text,
        "/v1/responses": lambda: parsed.output_text,
    }[url]()
    assert text == "Hi"


def test_the_sdk_parses_tool_calls():
    body = body_of({"messages": HELLO}, {"response": None, "tool_calls": [{"name": "f", "arguments": {"x": 1}}]})
    (call,) = parse("/v1/chat/completions", body).choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("f", '{"x":1}')


def test_the_sdk_parses_embeddings():
    body = body_of({"input": "x"}, {"data": [[1, 2.5]]}, BGE, url="/v1/embeddings")
    assert parse("/v1/embeddings", body).data[0].embedding == [1, 2.5]


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
def test_any_answer_gives_one_line_that_the_sdk_parses_if_it_is_text(url, result):
    body = body_of(REQUESTS[url], result, LLAMA if url != "/v1/embeddings" else BGE, url=url)
    if url in {"/v1/chat/completions", "/v1/completions"}:
        parse(url, body)


# ── their files ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("openai-guide", LLAMA),
        ("openai-guide", GPT_OSS),
        ("openai-guide-embeddings", BGE),
        ("openai-guide-responses", GPT_OSS),
        ("openai-cookbook-movies", KIMI),
        ("openai-cookbook-captions", SCOUT),
    ],
)
def test_openais_own_examples_become_requests(name, model):
    records = (FILES / f"{name}.jsonl").read_bytes().splitlines()
    converted = reader_of(FORM, target_of(model)).convert(records)
    assert [type(one) for one in converted] == [Converted] * len(records)
    for request, written in zip(converted, records, strict=True):
        members = json.loads(request.request)
        assert members["external_reference"] == json.loads(written)["custom_id"]
        assert not {"model", "user", "encoding_format"} & members.keys()

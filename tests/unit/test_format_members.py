"""The table of members: each request made from other vendors' bodies is one that the published schema accepts."""

import json
from itertools import chain

import pytest

from local.workers_ai import Behaviour
from local.workers_ai.schemas import alternatives
from local.workers_ai.validate import problem
from shared.errors import UploadError
from shared.formats.base import BatchFacts, Converted, Outcome, RecordFault, member_of
from shared.formats.registry import Form, reader_of, target_of, writer_of
from shared.formats.schemas import SCHEMAS
from shared.model_catalog import find_model

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
SCOUT = "@cf/meta/llama-4-scout-17b-16e-instruct"
QWEN = "@cf/qwen/qwen3-30b-a3b-fp8"
KIMI = "@cf/moonshotai/kimi-k2.6"
DEEPSEEK = "@cf/deepseek-ai/deepseek-v4-flash-0731"
GPT = "@cf/openai/gpt-oss-20b"
BGE = "@cf/baai/bge-small-en-v1.5"
M3 = "@cf/baai/bge-m3"
CHAT = (LLAMA, SCOUT, QWEN, KIMI, DEEPSEEK, GPT)
HELLO = {"role": "user", "content": "Hello"}
DATA = "data:image/png;base64,AAAA"
CALL = {"id": "call_1", "type": "function", "function": {"name": "tide", "arguments": '{"at":"noon"}'}}
CALLED = [
    HELLO,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "low"}]},
]
LENGTH = "embeddingConfig.outputEmbeddingLength"
TOOL = {"type": "function", "function": {"name": "tide"}}


def convert(model, body, format_="openai", defaults=None, **members):
    record = {"custom_id": "a", **members, "body": body} if format_ == "openai" else {"modelInput": body}
    target = target_of(model, defaults={name: json.dumps(value).encode() for name, value in (defaults or {}).items()})
    (one,) = reader_of(Form(format_), target).convert([json.dumps(record).encode()])
    return one


def sent(model, body, format_="openai", **members):
    """The request that a body becomes; the published schema accepts it."""
    one = convert(model, body, format_, **members)
    assert isinstance(one, Converted), one
    request = json.loads(one.request)
    request.pop("external_reference", None)
    assert problem(model, request, "", Behaviour()) is None
    return request


def fault(model, body, format_="openai", **members):
    one = convert(model, body, format_, **members)
    assert isinstance(one, RecordFault), one
    assert one.code == "bad_record"
    return member_of(one.message), one.message


def body_of(model, body, result, url=None):
    record = json.dumps({"custom_id": "a", "url": url, "body": body}).encode()
    line = writer_of(Form("openai"), target_of(model)).line(
        BatchFacts("j", model, "r", 1), Outcome(0, b'"a"', record, json.dumps(result).encode())
    )
    return json.loads(line)["response"]["body"]


# ── the table and the published schemas ──────────────────────────────────────────────────────────────────────────────

PUBLISHED = (*CHAT, BGE, M3, "@cf/meta/m2m100-1.2b")


@pytest.mark.parametrize("model", PUBLISHED)
def test_the_table_has_the_members_of_the_schema(model):
    known = set(chain.from_iterable(one.known for one in alternatives(model)))
    assert SCHEMAS[find_model(model).schema].members == known


def around(limits):
    """Values at, and just beyond, a member's limits, and whether each is within them."""
    if limits.words:
        return [*((word, True) for word in limits.words), ("minimal?", False)]
    step = 1 if limits.whole else 0.25
    if limits.least is None:
        return [(0, True), (-5, True), ("1", False)]
    return [(limits.least, True), (limits.most, True), (limits.least - step, False), (limits.most + step, False)]


@pytest.mark.parametrize("model", PUBLISHED)
def test_each_limit_is_that_of_the_schema(model):
    base = {"text": "a"} if model in {BGE, M3} else {"input": "a"} if model == GPT else {"messages": [HELLO]}
    for name, limits in SCHEMAS[find_model(model).schema].limits.items():
        outer, _, inner = name.partition(".")
        for value, is_within in around(limits):
            assert limits.accepts(value) == is_within
            request = base | {outer: {inner: value} if inner else value}
            assert (problem(model, request, "", Behaviour()) is None) == is_within, (name, value)


# ── null content and tools ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", CHAT)
def test_a_conversation_with_tools_is_what_each_model_takes(model):
    body = {"messages": CALLED, "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "tide"}}}
    request = sent(model, body)
    if model == GPT:
        assert request["input"] == [
            HELLO,
            {"type": "function_call", "call_id": "call_1", "name": "tide", "arguments": '{"at":"noon"}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "low"},
        ]
        assert request["tool_choice"] == {"type": "function", "name": "tide"}
        assert request["tools"] == [{"type": "function", "name": "tide"}]
    else:
        id_ = "74196fe72" if model == SCOUT else "call_1"
        assert request["messages"][1] == {"role": "assistant", "content": "", "tool_calls": [CALL | {"id": id_}]}
        assert request["messages"][2] == {"role": "tool", "tool_call_id": id_, "content": "low"}


def test_content_that_is_missing_is_empty():
    assert (
        sent(QWEN, {"messages": [HELLO, {"role": "assistant", "tool_calls": [CALL]}]})["messages"][1]["content"] == ""
    )


@pytest.mark.parametrize(
    ("model", "role"), [(LLAMA, "system"), (QWEN, "system"), (KIMI, "developer"), (GPT, "developer")]
)
def test_the_developer_is_the_system_where_the_schema_has_no_such_role(model, role):
    request = sent(model, {"messages": [{"role": "developer", "content": "Be brief."}, HELLO]})
    assert request.get("messages", request.get("input"))[0] == {"role": role, "content": "Be brief."}


@pytest.mark.parametrize("model", CHAT)
@pytest.mark.parametrize("converse", [False, True])
def test_anthropics_blocks_and_converses_become_calls_and_results(model, converse):
    used = {"toolUseId": "t", "name": "tide", "input": {"at": 1}}
    result = {"toolUseId": "t", "content": [{"json": {"tide": "low"}}, {"text": "ok"}]}
    blocks = [{"reasoningContent": {}}, {"text": "Let me see."}, {"toolUse": used}, {"cachePoint": {"type": "default"}}]
    answer = [{"toolResult": result}, {"text": "And?"}]
    if not converse:
        blocks = [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Let me see.", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_use", "id": "t", "name": "tide", "input": {"at": 1}},
        ]
        inner = [{"type": "text", "text": '{"tide":"low"}'}, {"type": "text", "text": "ok"}]
        answer = [{"type": "tool_result", "tool_use_id": "t", "content": inner}, {"type": "text", "text": "And?"}]
    messages = [HELLO, {"role": "assistant", "content": blocks}, {"role": "user", "content": answer}]
    request = sent(model, {"messages": messages, "system": [{"text": "Hi"}, {"cachePoint": {}}]}, "bedrock")
    if model == GPT:
        assert [item.get("type", item.get("role")) for item in request["input"]] == [
            *("system", "user", "assistant", "function_call", "function_call_output", "user")
        ]
        return
    system, _, calling, tool, user = request["messages"]
    assert (system["content"], calling["content"], user) == ("Hi", "Let me see.", {"role": "user", "content": "And?"})
    id_ = calling["tool_calls"][0]["id"]
    assert len(id_) == (9 if model == SCOUT else 1)
    assert calling["tool_calls"] == [
        {"id": id_, "type": "function", "function": {"name": "tide", "arguments": '{"at":1}'}}
    ]
    assert tool == {"role": "tool", "tool_call_id": id_, "content": '{"tide":"low"}\nok'}


# ── members that are null, renamed, left out, or beyond a range ──────────────────────────────────────────────────────


@pytest.mark.parametrize("model", CHAT)
def test_null_members_are_not_sent(model):
    nulls = dict.fromkeys(("top_k", "top_p", "seed", "stop", "response_format", "tools", "n", "logprobs"))
    assert not nulls.keys() & sent(model, {"messages": [HELLO], **nulls}).keys()


@pytest.mark.parametrize("model", CHAT)
def test_plain_text_needs_no_format(model):
    assert (
        not {"response_format", "text"} & sent(model, {"messages": [HELLO], "response_format": {"type": "text"}}).keys()
    )


@pytest.mark.parametrize("model", CHAT)
def test_a_schema_without_its_type_is_a_schema(model):
    schema = {"type": "object", "properties": {}}
    request = sent(model, {"messages": [HELLO], "response_format": {"name": "s", "schema": schema, "strict": True}})
    asked = request["text"]["format"] if model == GPT else request["response_format"]
    assert asked["type"] == "json_schema"
    inner = asked if model == GPT else asked["json_schema"]
    assert inner.get("schema", inner) == schema


@pytest.mark.parametrize(
    ("model", "member", "value", "limits"),
    [
        (LLAMA, "top_k", 250, "an integer from 1 to 50"),
        (LLAMA, "seed", 0, "an integer from 1 to 9999999999"),
        (LLAMA, "frequency_penalty", -0.5, "a number from 0 to 2"),
        (SCOUT, "presence_penalty", -0.5, "a number from 0 to 2"),
        (QWEN, "top_p", 0, "a number from 0.001 to 1"),
        (KIMI, "temperature", 2.5, "a number from 0 to 2"),
        (KIMI, "reasoning_effort", "minimal", "one of low, medium, high"),
        (KIMI, "stop", list("abcde"), "at most 4 sequences"),
        (KIMI, "n", 129, "an integer from 1 to 128"),
        (KIMI, "max_tokens", "9", "an integer"),
    ],
)
def test_a_value_beyond_the_models_range_is_bad_and_the_message_has_the_range(model, member, value, limits):
    path, message = fault(model, {"messages": [HELLO], member: value})
    assert path == f"body.{member}"
    assert limits in message
    assert model in message


def test_a_range_is_told_of_the_member_that_the_record_has():
    converse = {"messages": [{"role": "user", "content": [{"text": "a"}]}], "inferenceConfig": {"topK": 250}}
    assert fault(LLAMA, converse, "bedrock")[0] == "modelInput.inferenceConfig.topK"
    assert fault(GPT, {"messages": [HELLO], "reasoning_effort": "minimal"})[0] == "body.reasoning.effort"


def test_efforts_with_an_alias_are_sent_as_what_they_mean():
    assert sent(DEEPSEEK, {"messages": [HELLO], "reasoning_effort": "minimal"})["reasoning_effort"] == "low"
    assert sent(KIMI, {"messages": [HELLO], "reasoning_effort": "low"})["reasoning_effort"] == "low"


def test_several_answers_are_asked_for_where_the_schema_allows_it():
    assert sent(KIMI, {"messages": [HELLO], "n": 3})["n"] == 3
    assert fault(LLAMA, {"messages": [HELLO], "n": 3})[0] == "body.n"
    choices = [{"index": i, "message": {"role": "assistant", "content": str(i)}} for i in range(3)]
    assert [
        one["message"]["content"] for one in body_of(KIMI, {"messages": [HELLO]}, {"choices": choices})["choices"]
    ] == [*("0", "1", "2")]


@pytest.mark.parametrize("model", CHAT)
def test_thinking_is_switched_off_where_the_model_has_a_switch(model):
    request = sent(model, {"messages": [HELLO], "thinking": {"type": "disabled"}})
    has_switch = model in {KIMI, DEEPSEEK}
    assert request.get("chat_template_kwargs") == ({"enable_thinking": False} if has_switch else None)
    assert "thinking" not in sent(model, {"messages": [HELLO], "thinking": {"type": "enabled", "budget_tokens": 5}})


@pytest.mark.parametrize(
    "body",
    [
        {"inputText": "a", "dimensions": 384},
        {"inputText": "a", "dimensions": None, "normalize": True, "embeddingTypes": ["float"]},
        {"inputText": "a", "embeddingConfig": {"outputEmbeddingLength": 384}},
        {"texts": ["a"], "input_type": "search_document", "output_dimension": 384, "embedding_types": ["float"]},
    ],
)
def test_the_models_own_length_may_be_asked_for(body):
    assert list(sent(BGE, body, "bedrock")) == ["text"]


@pytest.mark.parametrize(
    ("body", "member"),
    [
        ({"inputText": "a", "dimensions": 1024}, "dimensions"),
        (
            {"inputText": "a", "embeddingConfig": {"outputEmbeddingLength": 256}},
            "embeddingConfig.outputEmbeddingLength",
        ),
        ({"texts": ["a"], "output_dimension": 1536}, "output_dimension"),
        ({"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types"),
        ({"texts": ["a"], "embedding_types": ["float", "int8"]}, "embedding_types"),
        ({"inputText": "a", "embeddingTypes": ["binary"]}, "embeddingTypes"),
        ({"inputText": "a", "normalize": False}, "normalize"),
        ({"texts": ["a"] * 101}, "texts"),
    ],
)
def test_another_length_or_kind_of_embedding_is_bad(body, member):
    path, message = fault(BGE, body, "bedrock")
    assert path == f"modelInput.{member}"
    assert "384" in message or "float" in message or "normalized" in message or "100" in message


def test_truncation_is_asked_for_where_the_model_has_a_switch():
    assert sent(M3, {"texts": ["a"], "truncate": "END"}, "bedrock") == {"text": ["a"], "truncate_inputs": True}
    assert sent(BGE, {"texts": ["a"], "truncate": "END"}, "bedrock") == {"text": ["a"]}


# ── images ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
def test_an_image_in_the_record_is_sent_as_a_data_url(model, part):
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
def test_an_image_somewhere_else_is_bad(part):
    path, message = fault(SCOUT, {"messages": [{"role": "user", "content": [part]}]})
    assert path == "body.messages[0].content[0]"
    assert "data URLs" in message


# ── the Responses API for chat models ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", [one for one in CHAT if one != GPT])
def test_a_responses_request_becomes_chat(model):
    body = {
        "model": "gpt-5",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "How is the tide?"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "tide", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "low"},
        ],
        "max_output_tokens": 50,
        "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "object"}}},
        "tools": [{"type": "function", "name": "tide", "parameters": {"type": "object", "properties": {}}}],
        "reasoning": {"effort": "low"},
        "store": False,
    }
    request = sent(model, body, url="/v1/responses")
    assert request["max_tokens"] == 50
    assert [one["role"] for one in request["messages"]] == ["system", "user", "assistant", "tool"]
    assert request["messages"][1]["content"] == "How is the tide?"
    assert request["tools"][0]["function"]["name"] == "tide"
    assert request["response_format"]["type"] == "json_schema"
    assert sent(model, {"input": "Hi"}, url="/v1/responses")["messages"] == [{"role": "user", "content": "Hi"}]


def test_a_chat_answer_to_a_responses_request_is_a_response():
    message = {"role": "assistant", "content": "low", "reasoning_content": "hm", "tool_calls": [CALL]}
    result = {"choices": [{"message": message, "finish_reason": "length"}], "usage": {"prompt_tokens": 2}}
    body = body_of(KIMI, {"input": "Hi"}, result, "/v1/responses")
    response = pytest.importorskip("openai.types.responses").Response.model_validate(body, strict=True)
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
    assert (response.output_text, response.output[2].call_id, response.status) == ("low", "call_1", "incomplete")
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize(
    ("more", "member"),
    [
        ({"previous_response_id": "resp_1"}, "body.previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "body.tools[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "body.input[0]"),
    ],
)
def test_what_chat_has_no_place_for_is_bad(more, member):
    assert fault(LLAMA, {"input": "Hi", **more}, url="/v1/responses")[0] == member


# ── url, model, and bodies of no endpoint ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "url",
    [
        "/v4/chat/completions",
        "/openai/v1/chat/completions",
        "https://api.example.com/v1/chat/completions?api-version=1",
    ],
)
def test_the_end_of_the_url_decides(url):
    assert sent(LLAMA, {"messages": [HELLO]}, url=url) == {"messages": [HELLO]}


def test_a_url_of_no_endpoint_is_shown_with_what_is_accepted():
    path, message = fault(LLAMA, {"input": "a"}, url="/v1/rerank")
    assert (path, '"/v1/rerank"' in message, "/chat/completions" in message) == ("url", True, True)


@pytest.mark.parametrize(("model", "member"), [(LLAMA, "messages"), (BGE, "input"), ("@cf/meta/m2m100-1.2b", "text")])
def test_a_body_of_no_endpoint_is_bad_with_the_member_that_is_missing(model, member):
    assert fault(model, {"model": "gpt-4o", "max_tokens": 5})[0] == f"body.{member}"


def test_a_model_may_have_litellms_prefix():
    assert sent(LLAMA, {"messages": [HELLO], "model": f"workers-ai/{LLAMA}"}) == {"messages": [HELLO]}
    assert convert(LLAMA, {"messages": [HELLO], "model": f"workers-ai/{QWEN}"}).code == "mismatched_model"


# ── Bedrock ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def output_of(model_input, result):
    line = writer_of(Form("bedrock"), target_of(LLAMA)).line(
        BatchFacts("j", LLAMA, "r", 1),
        Outcome(0, b"null", json.dumps({"modelInput": model_input}).encode(), json.dumps(result).encode()),
    )
    return json.loads(line)["modelOutput"]


@pytest.mark.parametrize("model", CHAT)
def test_a_prompt_alone_is_what_the_model_takes(model):
    request = sent(model, {"prompt": "Hi"}, "bedrock")
    assert request in ({"prompt": "Hi"}, {"input": "Hi"}, {"messages": [{"role": "user", "content": "Hi"}]})
    assert ("messages" in request) == (model in {KIMI, DEEPSEEK})


def test_mistral_and_messages_of_other_models_are_answered_in_their_shapes():
    assert output_of({"prompt": "Hi", "max_tokens": 5}, {"response": "Ho"}) == {
        "outputs": [{"text": "Ho", "stop_reason": "stop"}]
    }
    body = output_of({"messages": [HELLO], "max_tokens": 5}, {"response": "Ho"})
    assert body["choices"][0]["message"]["content"] == "Ho"
    pytest.importorskip("openai.types.chat").ChatCompletion.model_validate(body, strict=True)


def test_additional_members_of_converse_are_unpacked():
    model_input = {
        "messages": [{"role": "user", "content": [{"text": "a"}]}],
        "additionalModelRequestFields": {"top_k": 5, "thinking": {"type": "enabled"}},
    }
    assert sent(LLAMA, model_input, "bedrock") == {"messages": [{"role": "user", "content": "a"}], "top_k": 5}


# ── what answers keep ────────────────────────────────────────────────────────────────────────────────────────────────

TOKEN = {"token": "Hi", "logprob": -0.5, "bytes": [72, 105], "top_logprobs": []}


def test_what_openai_has_a_place_for_is_kept():
    choice = {
        "message": {"role": "assistant", "content": "Hi", "reasoning": "hm"},
        "logprobs": {"content": [TOKEN]},
        "finish_reason": "stop",
    }
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 4,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    body = body_of(KIMI, {"messages": [HELLO]}, {"choices": [choice], "usage": usage, "system_fingerprint": "fp"})
    parsed = pytest.importorskip("openai.types.chat").ChatCompletion.model_validate(body, strict=True)
    assert parsed.choices[0].logprobs.content[0].logprob == -0.5
    assert (parsed.usage.prompt_tokens_details.cached_tokens, parsed.system_fingerprint) == (3, "fp")
    assert parsed.usage.completion_tokens_details.reasoning_tokens == 2
    assert body["choices"][0]["message"]["reasoning"] == "hm"


CUT_OFF = {
    "output": [{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]}],
    "incomplete_details": {"reason": "max_output_tokens"},
    "usage": {"input_tokens": 3, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 9}},
}


def test_a_model_that_was_cut_off_while_reasoning_gave_no_text():
    body = body_of(GPT, {"messages": [HELLO]}, CUT_OFF)
    (choice,) = body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "length")
    assert choice["message"]["reasoning_content"] == "hm"
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 9}


def test_a_call_is_answered_by_its_call_id():
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "tide", "arguments": "{}"}
    (choice,) = body_of(GPT, {"messages": [HELLO]}, {"output": [call]})["choices"]
    assert choice["message"]["tool_calls"][0]["id"] == "call_1"


def test_a_tables_answer_shows_the_calls():
    writer = writer_of(Form("csv", b"id,text"), target_of(LLAMA))
    result = json.dumps({"response": "", "tool_calls": [{"name": "tide", "arguments": {"at": 1}}]}).encode()
    line = writer.line(BatchFacts("j", LLAMA), Outcome(0, b"null", b"1,a", result))
    assert line == b'1,a,"[{""name"":""tide"",""arguments"":{""at"":1}}]",,\n'


def test_an_error_line_of_a_batch_that_was_never_accepted_has_a_request_id():
    writer = writer_of(Form("openai"), target_of(LLAMA))
    line = json.loads(writer.line(BatchFacts("j", LLAMA), Outcome(0, b'"a"', b"{}", None, "bad_record", "no")))
    assert line["response"]["request_id"] == ""


# ── defaults ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_defaults_have_the_names_that_the_model_takes():
    assert sent(GPT, {"messages": [HELLO], "max_tokens": 5}, defaults={"max_tokens": 100})["max_output_tokens"] == 5
    assert "max_tokens" not in sent(GPT, {"messages": [HELLO]}, defaults={"max_tokens": 100})
    assert sent(LLAMA, {"messages": [HELLO]}, defaults={"max_gen_len": 7, "stream": False})["max_tokens"] == 7


@pytest.mark.parametrize("defaults", [{"stream": True}, {"n": 3}, {"top_k": 250}, {"messages": []}, {"system": "a"}])
def test_defaults_that_no_request_may_have_end_the_upload(defaults):
    with pytest.raises(UploadError) as raised:
        convert(LLAMA, {"messages": [HELLO]}, defaults=defaults)
    assert raised.value.code == "bad_options"
    assert f"defaults.{next(iter(defaults))}" in raised.value.message

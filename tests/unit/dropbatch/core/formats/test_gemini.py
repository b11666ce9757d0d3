"""Gemini's batch files: what is sent for a record, and the line that answers it."""

import pytest

from dropbatch.core.formats.base import BatchFacts, RecordFault, member_of
from tests.support import converted
from tests.support.converted import BGE, FACTS, GPT, HELLO, KIMI, LLAMA, written
from tests.support.vendors import vendors_read

NEVER_ACCEPTED = BatchFacts(FACTS.job_id, LLAMA)
CONTENTS = [{"role": "user", "parts": [{"text": "Hello"}]}]
TEXT = {"response": "Hi", "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}
CALL = {"response": None, "tool_calls": [{"id": "c", "name": "f", "arguments": {"x": 1}}]}
THOUGHT = {
    "choices": [
        {"message": {"content": "Hi", "reasoning_content": "hm"}, "finish_reason": "length"}
    ],
    "usage": {
        "prompt_tokens": 3,
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 5},
    },
}
SEVERAL = {"choices": [{"message": {"content": text}} for text in ("a", "b")]}
VECTORS = {"data": [[1, 2], [3, 4]]}


def convert(request, model=LLAMA, **members):
    return converted.convert(model, request, "gemini", **members)


def sent(request, model=LLAMA):
    return converted.sent(model, request, "gemini")


def line_of(result=None, code="", message="", request=None, facts=FACTS, **members):
    record = written(request or {"contents": CONTENTS}, "gemini", **members)
    return converted.line_of(record, result, "gemini", code=code, message=message, facts=facts)


# ── what is sent ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("members", [{"key": "a"}, {"custom_id": "a"}, {"id": "a", "x": 1}])
def test_key_or_what_is_in_its_place_is_reference(members):
    assert bytes(convert({"contents": CONTENTS}, **members).reference) == b'"a"'
    assert bytes(convert({"contents": CONTENTS}).reference) == b"null"


@pytest.mark.parametrize("snake", [False, True])
def test_request_becomes_chat(snake):
    config = {
        "maxOutputTokens": 9,
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 20,
        "stopSequences": ["."],
    }
    request = {
        "systemInstruction": {"parts": [{"text": "Be"}, {"text": "brief."}]},
        "generationConfig": config,
    }
    if snake:
        config = {
            "max_output_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 20,
            "stop_sequences": ["."],
        }
        request = {
            "system_instruction": {"parts": [{"text": "Be"}, {"text": "brief."}]},
            "generation_config": config,
        }
    assert sent({"contents": CONTENTS, **request, "safetySettings": []}) == {
        "messages": [{"role": "system", "content": "Be\nbrief."}, HELLO],
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "stop": ["."],
    }


@pytest.mark.parametrize(
    "contents",
    ["Hello", CONTENTS[0], [{"parts": [{"text": "Hello"}]}], [{"parts": {"text": "Hello"}}]],
)
def test_contents_may_be_written_shortly(contents):
    assert sent({"contents": contents})["messages"] == [HELLO]


@pytest.mark.parametrize("model", [LLAMA, KIMI, GPT])
def test_calls_and_their_answers_become_messages(model):
    contents = [
        *CONTENTS,
        {
            "role": "model",
            "parts": [
                {"text": "hm", "thought": True},
                {"functionCall": {"name": "f", "args": {"x": 1}}},
            ],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"y": 2}}}]},
    ]
    tools = [
        {
            "functionDeclarations": [
                {
                    "name": "f",
                    "parameters": {"type": "OBJECT", "properties": {"x": {"type": "STRING"}}},
                }
            ]
        }
    ]
    config = {"functionCallingConfig": {"mode": "ANY"}}
    request = sent({"contents": contents, "tools": tools, "toolConfig": config}, model)
    assert request["tool_choice"] == "required"
    if model == GPT:
        assert [item.get("type", item.get("role")) for item in request["input"]] == [
            *("user", "function_call", "function_call_output")
        ]
        return
    _, called, answered = request["messages"]
    assert called["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x":1}'}
    assert answered["content"] == '{"y":2}'
    assert answered["tool_call_id"] == called["tool_calls"][0]["id"]
    assert request["tools"][0]["function"]["parameters"] == {
        "type": "object",
        "properties": {"x": {"type": "string"}},
    }


def test_response_schema_is_json_schema():
    config = {
        "responseMimeType": "application/json",
        "responseSchema": {
            "type": "OBJECT",
            "properties": {"a": {"type": "ARRAY", "items": {"type": "STRING"}}},
        },
    }
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
    asked = sent({"contents": CONTENTS, "generationConfig": config})["response_format"]
    assert asked == {"type": "json_schema", "json_schema": schema}
    del config["responseSchema"]
    assert sent({"contents": CONTENTS, "generationConfig": config})["response_format"] == {
        "type": "json_object"
    }


@pytest.mark.parametrize(
    ("written", "schema"),
    [
        ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "STRING", "nullable": False}, {"type": "string"}),
        (
            {"type": "STRING", "enum": ["A"], "nullable": True},
            {"type": ["string", "null"], "enum": ["A", None]},
        ),
        (
            {"anyOf": [{"type": "INTEGER"}], "nullable": True},
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        ),
        (
            {"any_of": [{"type": "NULL"}, {"type": "INTEGER"}]},
            {"anyOf": [{"type": "null"}, {"type": "integer"}]},
        ),
        (
            {"type": "ARRAY", "maxItems": "3", "min_items": "1"},
            {"type": "array", "maxItems": 3, "minItems": 1},
        ),
        (
            {"type": "STRING", "max_length": 9, "minLength": "٣"},
            {"type": "string", "maxLength": 9, "minLength": "٣"},
        ),
        ({"type_": "NUMBER", "format_": "double"}, {"type": "number", "format": "double"}),
        ({"type": "TYPE_UNSPECIFIED", "title": "T"}, {"title": "T"}),
        ({"type": ["STRING", "NULL"]}, {"type": ["string", "null"]}),
        (
            {"type": "OBJECT", "additional_properties": False},
            {"type": "object", "additionalProperties": False},
        ),
        (
            {
                "type": "OBJECT",
                "properties": {"type": {"type": "STRING"}, "max_items": {"type": "INTEGER"}},
            },
            {
                "type": "object",
                "properties": {"type": {"type": "string"}, "max_items": {"type": "integer"}},
            },
        ),
        (
            {
                "properties": {"propertyOrdering": {"type": "STRING"}},
                "property_ordering": ["propertyOrdering"],
            },
            {"properties": {"propertyOrdering": {"type": "string"}}},
        ),
        (
            {"default": {"type": "A", "max_items": "1"}},
            {"default": {"type": "A", "max_items": "1"}},
        ),
        (
            {"$defs": {"a_b": {"type": "STRING"}}, "$ref": "#/$defs/a_b"},
            {"$defs": {"a_b": {"type": "string"}}, "$ref": "#/$defs/a_b"},
        ),
    ],
    ids=str,
)
def test_schema_is_translated_whole(written, schema):
    for name in ("responseSchema", "response_schema"):
        config = {"responseMimeType": "application/json", name: written}
        asked = sent({"contents": CONTENTS, "generationConfig": config})["response_format"]
        assert asked == {"type": "json_schema", "json_schema": schema}
    tools = [{"function_declarations": [{"name": "f", "description": "d", "parameters": written}]}]
    assert (
        sent({"contents": CONTENTS, "tools": tools}, KIMI)["tools"][0]["function"]["parameters"]
        == schema
    )


def test_candidates_are_asked_for_if_allowed():
    request = {"contents": CONTENTS, "generationConfig": {"candidateCount": 2}}
    assert sent(request, KIMI)["n"] == 2
    assert member_of(convert(request).message) == "request.generationConfig.candidateCount"


def test_thinking_budget_of_0_switches_thinking_off():
    request = {"contents": CONTENTS, "generationConfig": {"thinkingConfig": {"thinkingBudget": 0}}}
    assert sent(request, KIMI)["chat_template_kwargs"] == {"enable_thinking": False}


def test_contents_are_texts_for_embedding_model():
    assert sent(
        {"content": {"parts": [{"text": "a"}, {"text": "b"}]}, "output_dimensionality": 384}, BGE
    ) == {"text": "a\nb"}
    assert sent({"contents": [*CONTENTS, {"parts": [{"text": "b"}]}], "taskType": "X"}, BGE) == {
        "text": ["Hello", "b"]
    }


@pytest.mark.parametrize(
    ("request_", "model", "member"),
    [
        ("x", LLAMA, "request"),
        ({"contents": 5}, LLAMA, "request.contents"),
        ({"contents": [{"parts": [{"inlineData": {}}]}]}, LLAMA, "request.contents[0].parts[0]"),
        ({"contents": [{"parts": [{"file_data": {}}]}]}, LLAMA, "request.contents[0].parts[0]"),
        ({"contents": [{"role": "user"}]}, LLAMA, "request.contents[0]"),
        ({"contents": CONTENTS, "tools": [{"googleSearch": {}}]}, LLAMA, "request.tools[0]"),
        (
            {"contents": CONTENTS, "generationConfig": {"topK": 64}},
            LLAMA,
            "request.generationConfig.topK",
        ),
        (
            {"contents": CONTENTS, "generationConfig": {"responseModalities": ["IMAGE"]}},
            LLAMA,
            None,
        ),
        (
            {"content": {"parts": [{"text": "a"}]}, "outputDimensionality": 768},
            BGE,
            "request.outputDimensionality",
        ),
    ],
)
def test_record_that_does_not_fit_is_bad(request_, model, member):
    one = convert(request_, model)
    assert isinstance(one, RecordFault)
    assert (one.code, member_of(one.message)) == (
        "bad_record",
        member or "request.generationConfig.responseModalities",
    )


# ── what comes back ───────────────────────────────────────────────────────────────────────────────


def test_line_with_key_is_gemini_apis():
    line = line_of(TEXT, key="a")
    assert list(line) == ["key", "response"]
    (candidate,) = line["response"]["candidates"]
    assert candidate == {
        "content": {"role": "model", "parts": [{"text": "Hi"}]},
        "finishReason": "STOP",
        "index": 0,
    }
    assert line["response"]["usageMetadata"] == {
        "promptTokenCount": 3,
        "candidatesTokenCount": 4,
        "totalTokenCount": 7,
    }
    assert line_of(code="bad_record", message="why", key="a") == {
        "key": "a",
        "error": {"code": 400, "message": "why", "status": "INVALID_ARGUMENT"},
    }


def test_line_without_key_is_vertex_ais():
    line = line_of(TEXT, custom_id="a")
    assert list(line) == ["custom_id", "request", "response", "status", "processed_time"]
    assert (line["status"], line["request"]) == ("", {"contents": CONTENTS})
    assert line["processed_time"] == "2026-11-21T09:30:00.500+00:00"
    failed = line_of(code="rejected", message="why")
    assert (failed["response"], failed["status"]) == ({}, "why")
    assert line_of(code="bad_record", message="why", facts=NEVER_ACCEPTED)["processed_time"] == ""


def test_calls_reasoning_and_candidates_are_kept():
    (candidate,) = line_of(CALL, key="a")["response"]["candidates"]
    assert candidate["content"]["parts"] == [
        {"functionCall": {"id": "c", "name": "f", "args": {"x": 1}}}
    ]
    response = line_of(THOUGHT, key="a")["response"]
    assert response["candidates"][0]["content"]["parts"] == [
        {"text": "hm", "thought": True},
        {"text": "Hi"},
    ]
    assert response["candidates"][0]["finishReason"] == "MAX_TOKENS"
    assert response["usageMetadata"]["thoughtsTokenCount"] == 5
    several = line_of(SEVERAL, key="a")["response"]["candidates"]
    assert [one["content"]["parts"][0]["text"] for one in several] == ["a", "b"]


def test_embeddings():
    one = line_of(VECTORS, key="a", request={"content": {"parts": []}})["response"]
    assert one == {"embedding": {"values": [1, 2]}, "tokenCount": 0}
    assert line_of(VECTORS, key="a")["response"] == {
        "embeddings": [{"values": [1, 2]}, {"values": [3, 4]}]
    }


RESULTS = {"text": TEXT, "call": CALL, "thought": THOUGHT, "several": SEVERAL, "string": "Hi"}


@pytest.mark.slow
def test_each_line_is_valid_for_googles_own_types():
    answered = [
        line_of(result, **members) for result in RESULTS.values() for members in ({"key": "a"}, {})
    ]
    vectors = [
        line_of(VECTORS, key="a", request={"content": {"parts": []}}),
        line_of(VECTORS, key="a"),
    ]
    failed = [
        line_of(code=code, message="why", key="a")
        for code in ("bad_record", "expired", "cancelled", "internal")
    ]
    assert vendors_read("gemini", [*answered, *vectors, *failed]) == {
        "gemini GenerateContentResponse": len(answered),
        "gemini SingleEmbedContentResponse": 1,
        "gemini EmbedContentResponse": 1,
        "gemini JobError": len(failed),
    }

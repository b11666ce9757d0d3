"""The table of members."""

import pytest

from dropbatch.core.formats.base import value_of
from dropbatch.core.models import find_model
from dropbatch.core.requests import schema_of
from dropbatch.errors import UploadRefused
from local.workers_ai import Behaviour
from local.workers_ai.models.schemas import problem
from tests.support.converted import (
    BGE,
    CHAT,
    DEEPSEEK,
    GPT,
    HELLO,
    KIMI,
    LLAMA,
    M3,
    SCOUT,
    TOOL,
    convert,
    fault,
    sent,
)

QWEN_38, GEMMA = "@cf/qwen/qwen3.8-27b", "@cf/google/gemma-4-26b-a4b-it"
PUBLISHED = (*CHAT, QWEN_38, BGE, M3, "@cf/meta/m2m100-1.2b")


def around(limits):
    """Values at, and just beyond, a member's limits, and whether each is within them."""
    if limits.words:
        return [*((word, True) for word in limits.words), ("minimal?", False)]
    step = 1 if limits.whole else 0.25
    if limits.least is None:
        return [(0, True), (-5, True), ("1", False)]
    most = limits.most or 10**9
    return [
        (limits.least, True),
        (most, True),
        (limits.least - step, False),
        (most + step, limits.most is None),
        (str(limits.least), False),
    ]


@pytest.mark.parametrize("model", PUBLISHED)
def test_each_limit_is_that_of_schema(model):
    base = {BGE: {"text": "a"}, M3: {"text": "a"}, GPT: {"input": "a"}}
    base = base.get(model, {"messages": [HELLO]})
    for name, limits in schema_of(find_model(model)).limits.items():
        outer, _, inner = name.partition(".")
        for value, is_within in around(limits):
            assert limits.accepts(value) == is_within
            request = base | {outer: {inner: value} if inner else value}
            assert (problem(model, request, "", Behaviour()) is None) == is_within, (name, value)


CONVERSE_CALL = [
    {"reasoningContent": {}},
    {"text": "Let me see."},
    {"toolUse": {"toolUseId": "t", "name": "tide", "input": {"at": 1}}},
    {"cachePoint": {"type": "default"}},
]
CONVERSE_RESULT = [
    {"toolResult": {"toolUseId": "t", "content": [{"json": {"tide": "low"}}, {"text": "ok"}]}},
    {"text": "And?"},
]
CLAUDE_CALL = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "text", "text": "Let me see.", "cache_control": {"type": "ephemeral"}},
    {"type": "tool_use", "id": "t", "name": "tide", "input": {"at": 1}},
]
TEXTS = [{"type": "text", "text": text} for text in ('{"tide":"low"}', "ok", "And?")]
CLAUDE_RESULT = [{"type": "tool_result", "tool_use_id": "t", "content": TEXTS[:2]}, TEXTS[2]]


@pytest.mark.parametrize("model", CHAT)
@pytest.mark.parametrize("converse", [False, True])
def test_tool_blocks_become_calls_and_results(model, converse):
    messages = [
        HELLO,
        {"role": "assistant", "content": CONVERSE_CALL if converse else CLAUDE_CALL},
        {"role": "user", "content": CONVERSE_RESULT if converse else CLAUDE_RESULT},
    ]
    system = [{"text": "Hi"}, {"cachePoint": {}}]
    request = sent(model, {"messages": messages, "system": system}, "bedrock")
    if model == GPT:
        kinds = [item.get("type", item.get("role")) for item in request["input"]]
        calls = ["function_call", "function_call_output"]
        assert kinds == ["system", "user", "assistant", *calls, "user"]
        return
    system, _, calling, tool, user = request["messages"]
    assert (system["content"], calling["content"]) == ("Hi", "Let me see.")
    assert user == {"role": "user", "content": "And?"}
    id_ = calling["tool_calls"][0]["id"]
    assert len(id_) == (9 if model == SCOUT else 1)
    function = {"name": "tide", "arguments": '{"at":1}'}
    assert calling["tool_calls"] == [{"id": id_, "type": "function", "function": function}]
    assert tool == {"role": "tool", "tool_call_id": id_, "content": '{"tide":"low"}\nok'}


# ── members that are null, renamed, left out, or beyond a range ───────────────────────────────────
@pytest.mark.parametrize(
    "model",
    ["@cf/zai-org/glm-9", "@cf/deepseek-ai/deepseek-r1-distill-qwen-32b", "@cf/somebody/something"],
)
def test_effort_is_passed_where_none_are_known(model):
    request = {"messages": [HELLO], "reasoning_effort": "utmost"}
    made = value_of(convert(model, request).request)
    assert made == request | {"external_reference": "a"}


@pytest.mark.parametrize("model", CHAT)
def test_thinking_is_switched_off_if_possible(model):
    request = sent(model, {"messages": [HELLO], "thinking": {"type": "disabled"}})
    switched = {"enable_thinking": False} if model in {KIMI, DEEPSEEK} else None
    assert request.get("chat_template_kwargs") == switched
    enabled = {"type": "enabled", "budget_tokens": 5}
    assert "thinking" not in sent(model, {"messages": [HELLO], "thinking": enabled})


SHORTER = {"outputEmbeddingLength": 256}


@pytest.mark.parametrize(
    ("body", "member"),
    [
        ({"inputText": "a", "dimensions": 1024}, "dimensions"),
        ({"inputText": "a", "embeddingConfig": SHORTER}, "embeddingConfig.outputEmbeddingLength"),
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


# ── defaults ──────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    "defaults", [{"stream": True}, {"n": 3}, {"top_k": 250}, {"messages": []}, {"system": "a"}]
)
def test_defaults_that_no_request_may_have_end_upload(defaults):
    with pytest.raises(UploadRefused) as raised:
        convert(LLAMA, {"messages": [HELLO]}, defaults=defaults)
    assert raised.value.code == "bad_options"
    assert f"defaults.{next(iter(defaults))}" in raised.value.message


MORE, BEST = "additionalModelRequestFields", {"effort": "best"}


@pytest.mark.parametrize(
    ("model", "body", "member"),
    [
        (LLAMA, {"input": "a", "max_output_tokens": 1.5}, "body.max_output_tokens"),
        (KIMI, {"input": "a", "reasoning": BEST}, "body.reasoning.effort"),
        (KIMI, {"messages": [HELLO], "max_completion_tokens": 1.5}, "body.max_completion_tokens"),
        (GPT, {"messages": [HELLO], "reasoning_effort": "best"}, "body.reasoning_effort"),
        (GPT, {"messages": [HELLO], MORE: {"reasoning": BEST}}, f"body.{MORE}.reasoning.effort"),
        (GPT, {"input": "a", "reasoning": BEST}, "body.reasoning.effort"),
    ],
)
def test_value_beyond_range_is_named_as_written(model, body, member):
    assert fault(model, body)[0] == member


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}


SEEN = {"text": "see"}
RETURNED = {"type": "tool_result", "tool_use_id": "t"}
BLOCKS = [
    (RETURNED | {"content": [{"type": "text", **SEEN}, IMAGE]}, "image"),
    (RETURNED | {"content": [{}, {"type": "document"}]}, "document"),
    ({"toolResult": {"toolUseId": "t", "content": [SEEN, {"image": {"format": "png"}}]}}, "image"),
]


@pytest.mark.parametrize("model", [LLAMA, SCOUT, GPT])
@pytest.mark.parametrize(("block", "kind"), BLOCKS)
def test_image_that_a_tool_returned_is_not_sent_as_its_base64(model, block, kind):
    """It would be billed as text, and mean nothing."""
    path, message = fault(
        model, {"messages": [HELLO, {"role": "user", "content": [block]}]}, "bedrock"
    )
    assert path.endswith("messages[1].content[0].content[1]")
    assert f"no {kind}" in message


@pytest.mark.parametrize("model", [LLAMA, GPT])
@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "code_interpreter", "container": {"type": "auto"}},
        {"systemTool": {"name": "nova_grounding"}},
        {},
    ],
)
def test_tool_that_is_no_function_is_refused(model, tool):
    path, message = fault(model, {"messages": [HELLO], "tools": [TOOL, tool]})
    assert path.endswith("tools[1]")
    assert "functions, no other tools" in message

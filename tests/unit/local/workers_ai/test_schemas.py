"""The local Workers AI refuses what the published schemas refuse."""

import pytest

from dropbatch.core import requests
from local.workers_ai import Behaviour
from local.workers_ai.models.catalogue import MODELS
from local.workers_ai.models.schemas import problem
from tests.support.converted import BGE, DEEPSEEK, GPT, KIMI, LLAMA, M3, QWEN, SCOUT

WHISPER = "@cf/openai/whisper-large-v3-turbo"
HELLO = {"role": "user", "content": "hello"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLS = {"role": "assistant", "tool_calls": [CALL]}
LINK = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
SCHEMA = {"type": "object", "properties": {}}


def chat(*messages, **more):
    return {"messages": list(messages or (HELLO,)), **more}


@pytest.mark.parametrize(
    ("model", "request_", "place"),
    [
        (
            LLAMA,
            chat(HELLO, CALLS | {"content": None}),
            "'/requests/3/messages/1/content', 'string' not in 'null'",
        ),
        (QWEN, chat(HELLO, CALLS | {"content": None}), "/requests/3/messages/1/content"),
        (QWEN, chat(HELLO, CALLS), "content"),
        (
            LLAMA,
            chat({"role": "user", "content": [{"type": "text", "text": "a"}]}),
            "/messages/0/content",
        ),
        *(
            (model, chat(**{name: None}), f"/{name}")
            for model in (LLAMA, QWEN)
            for name in ("top_k", "top_p", "seed")
        ),
        *((model, chat(top_k=250), "/top_k") for model in (LLAMA, SCOUT, QWEN)),
        *((model, chat(seed=0), "/seed") for model in (LLAMA, SCOUT, QWEN)),
        (LLAMA, chat(frequency_penalty=-0.5), "/frequency_penalty"),
        (SCOUT, chat(presence_penalty=-0.5), "/presence_penalty"),
        (QWEN, chat(top_p=0), "/top_p"),
        (LLAMA, chat(temperature=5.5), "/temperature"),
        (KIMI, chat(temperature=2.5), "/temperature"),
        (LLAMA, chat(response_format={"type": "text"}), "/response_format/type"),
        (
            KIMI,
            chat(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}),
            "/json_schema",
        ),
        (KIMI, chat(reasoning_effort="minimal"), "/reasoning_effort"),
        (DEEPSEEK, chat(reasoning_effort="minimal"), "/reasoning_effort"),
        (KIMI, chat({"role": "robot", "content": "a"}), "/role"),
        (KIMI, chat(HELLO, CALLS, {"role": "tool", "content": "1"}), "tool_call_id"),
        (KIMI, chat(n=200), "/n"),
        (KIMI, chat(stop=list("abcde")), "/stop"),
        (SCOUT, chat({"role": "user", "content": [LINK]}), "/image_url/url"),
        (QWEN, chat(tools=[{"type": "function", "function": {"name": "f"}}]), "/tools/0/function"),
        (GPT, {"input": "a", "reasoning": {"effort": "minimal"}}, "/reasoning/effort"),
        (GPT, {"input": None}, "/input"),
        (BGE, {"text": [""]}, "/text/0"),
        (BGE, {"text": ["a"] * 101}, "/text"),
        (M3, {"text": "a", "contexts": [{"text": "a"}]}, "2 matches"),
        (LLAMA, chat(prompt="a"), "2 matches"),
        (WHISPER, {"audio": {"body": "a"}}, "/audio"),
    ],
)
def test_schemas_refuse_with_place(model, request_, place):
    assert place in problem(model, request_, "/requests/3", Behaviour())


def test_what_is_not_published_is_switch():
    request = chat(stop="a", seed=3)
    assert problem(LLAMA, request, "", Behaviour()) is None
    assert "oneOf" in problem(LLAMA, request, "", Behaviour(batch_messages=False))
    assert "'/stop'" in problem(LLAMA, request, "", Behaviour(unknown_members="refuse"))


def test_model_has_one_schema_with_source():
    schemas = requests.content()["schemas"]
    assert sorted(model for one in schemas.values() for model in one["models"]) == sorted(MODELS)
    for one in schemas.values():
        assert one["source"] is None or one["source"].keys() == {"page", "file", "commit", "read"}

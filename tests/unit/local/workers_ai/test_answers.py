"""Answers of the local Workers AI."""

import importlib.util
import math

import pytest

from local.workers_ai import expected_result
from local.workers_ai.models.catalogue import MODELS

LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
SCHEMA = {
    "type": "object",
    "properties": {
        "companies": {"type": "array", "items": {"type": "string"}},
        "count": {"type": "integer"},
        "mood": {"enum": ["good", "bad"]},
    },
}
installed = pytest.mark.skipif(
    importlib.util.find_spec("wordllama") is None, reason="wordllama is not installed"
)
every_choice = pytest.mark.parametrize(
    "choice", ["hash", "words", pytest.param("wordllama", marks=installed)]
)


@every_choice
@pytest.mark.parametrize("model", [model for model in MODELS.values() if model.dimension])
def test_embeddings_have_dimension_and_unit_length(model, choice):
    result = expected_result(model.name, {"text": ["one", "two words"]}, embedder_choice=choice)
    assert result["shape"] == [2, model.dimension]
    assert [len(row) for row in result["data"]] == [model.dimension] * 2
    for row in result["data"]:
        assert math.isclose(sum(number * number for number in row), 1, abs_tol=1e-4)


def test_llama_answers_with_text_or_schema():
    assert expected_result(LLAMA, {"prompt": "hello"})["response"].endswith("hello")
    asked = {"prompt": "hello", "response_format": {"type": "json_schema", "json_schema": SCHEMA}}
    result = expected_result(LLAMA, asked)
    assert result["response"] == {"companies": ["hello"], "count": 5, "mood": "good"}
    assert result["tool_calls"] == [{}]


def test_chat_models_answer_with_completions():
    request = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}
    result = expected_result("@cf/moonshotai/kimi-k2.6", request)
    assert result["choices"][0]["message"]["content"].endswith("hello")
    assert result["usage"]["total_tokens"] == sum(
        result["usage"][name] for name in ("prompt_tokens", "completion_tokens")
    )
    assert (
        expected_result("@cf/qwen/qwen3-30b-a3b-fp8", {"prompt": "hello"})["object"]
        == "text_completion"
    )


def test_gpt_oss_answers_with_responses_object():
    result = expected_result(
        "@cf/openai/gpt-oss-20b", {"input": [{"role": "user", "content": "hello"}]}
    )
    assert [entry["type"] for entry in result["output"]] == ["reasoning", "message"]
    assert result["output"][1]["content"][0]["text"].endswith("hello")

"""Answers of the local Workers AI.

Each family's shape, and that the same request always has the same answer.
"""

import importlib.util
import math

import pytest

from local.workers_ai import expected_result
from local.workers_ai.models import embed
from local.workers_ai.models.catalogue import MODELS
from local.workers_ai.models.embed import embedder

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


def vector(text, model="@cf/baai/bge-small-en-v1.5", choice="hash"):
    return expected_result(model, {"text": text}, embedder_choice=choice)["data"][0]


def cosine(one, other):
    def product(left, right):
        return sum(a * b for a, b in zip(left, right, strict=True))

    return product(one, other) / math.sqrt(product(one, one) * product(other, other))


@every_choice
@pytest.mark.parametrize("model", [model for model in MODELS.values() if model.dimension])
def test_embeddings_have_dimension_and_unit_length(model, choice):
    result = expected_result(model.name, {"text": ["one", "two words"]}, embedder_choice=choice)
    assert result["shape"] == [2, model.dimension]
    assert [len(row) for row in result["data"]] == [model.dimension] * 2
    for row in result["data"]:
        assert math.isclose(sum(number * number for number in row), 1, abs_tol=1e-4)


@every_choice
def test_vector_depends_on_text_alone(choice):
    company = {"text": ["a much longer text " * 50, "one", "another"]}
    result = expected_result("@cf/baai/bge-small-en-v1.5", company, embedder_choice=choice)
    assert result["data"][1] == vector("one", choice=choice)


@installed
def test_like_texts_are_near_in_every_dimension():
    cosines = []
    for model in (
        "@cf/baai/bge-small-en-v1.5",
        "@cf/baai/bge-base-en-v1.5",
        "@cf/baai/bge-large-en-v1.5",
    ):
        cat, kitten, tax = (
            vector(text, model, "wordllama")
            for text in (
                "the cat sleeps on the sofa",
                "a kitten naps on a couch",
                "quarterly tax return forms",
            )
        )
        assert cosine(cat, kitten) > cosine(cat, tax) + 0.2
        cosines.append(cosine(cat, kitten))
    assert max(cosines) - min(cosines) < 1e-4


def test_hashed_words_put_like_texts_nearer():
    asked, stem, unlike = (
        vector(text, choice="words")
        for text in (
            "change the password of a user",
            "Changes user passwords.",
            "Describes the launch templates of a fleet",
        )
    )
    assert cosine(asked, stem) > cosine(asked, unlike) + 0.3


@pytest.mark.parametrize(
    "error", [ImportError("no such module"), ImportError("built for another Python")]
)
def test_hashed_words_replace_missing_wordllama(monkeypatch, error):
    def fail(name):
        raise error

    embed._wordllama.cache_clear()
    monkeypatch.setattr(embed.importlib, "import_module", fail)
    try:
        assert embedder("auto").name == (
            "hashes of words (no model: wordllama is not installed here)"
        )
    finally:
        embed._wordllama.cache_clear()


@every_choice
def test_bge_m3_scores_contexts_against_query(choice):
    request = {"query": "cats", "contexts": [{"text": "tax forms"}, {"text": "cats"}]}
    response = expected_result("@cf/baai/bge-m3", request, embedder_choice=choice)["response"]
    assert [entry["id"] for entry in response] == [0, 1]
    assert response[0]["score"] < response[1]["score"] <= 1.00001


def test_bge_m3_embeds_contexts_without_query():
    result = expected_result("@cf/baai/bge-m3", {"contexts": [{"text": "a"}, {"text": "b"}]})
    assert result["shape"] == [2, 1024]
    assert len(result["response"]) == 2


def test_empty_choice_of_texts_needs_no_vectors():
    assert embedder("hash").rows([], 384) == []


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


def test_token_limit_truncates_text_and_is_reported():
    request = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    (choice,) = expected_result("@cf/moonshotai/kimi-k2.6", request)["choices"]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["content"]) == 8


def test_gpt_oss_answers_with_responses_object():
    result = expected_result(
        "@cf/openai/gpt-oss-20b", {"input": [{"role": "user", "content": "hello"}]}
    )
    assert [entry["type"] for entry in result["output"]] == ["reasoning", "message"]
    assert result["output"][1]["content"][0]["text"].endswith("hello")


def test_reference_is_not_part_of_question():
    assert expected_result(LLAMA, {"prompt": "a", "external_reference": "r"}) == expected_result(
        LLAMA, {"prompt": "a"}
    )


@pytest.mark.parametrize(
    ("model", "request_"),
    [
        ("@cf/openai/whisper-large-v3-turbo", {"audio": "QUJD"}),
        ("@cf/deepgram/aura-1", {"text": "hello"}),
        ("@cf/baai/bge-reranker-base", {"query": "a", "contexts": [{"text": "b"}]}),
    ],
)
def test_other_families_answer_same_every_time(model, request_):
    assert expected_result(model, request_) == expected_result(model, request_) != {}

"""What is known of models, what answers cost, and how large first batches are."""

import json
from datetime import date
from decimal import Decimal

import msgspec
import pytest

from dropbatch.core import prices
from dropbatch.core.formats.base import Shape, Task
from dropbatch.core.models import MODEL_ID, Efforts, catalog, facts_of, find_model, nearest_model
from dropbatch.core.options import Options
from dropbatch.core.plan import SplitPlan, StackLimits, first_plan, make_reader, plan_upload
from dropbatch.core.read.form import Beginning
from tests.support.converted import target_of

# ── what is known of models, and what their answers cost ──────────────────────────────────────────
BGE = "@cf/baai/bge-small-en-v1.5"
LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
M2M = "@cf/meta/m2m100-1.2b"


def test_every_price_has_its_day_and_its_source():
    for model in catalog().models:
        assert MODEL_ID.fullmatch(model.id)
        assert (model.input_price is None) == (model.priced_at == "") == (model.price_source == "")
        assert model.output_price is None or model.input_price is not None
        if model.priced_at:
            date.fromisoformat(model.priced_at)
            source = catalog().sources[model.price_source]
            assert source.startswith("https://developers.cloudflare.com/")


@pytest.mark.parametrize(
    ("model", "task", "shape"),
    [
        (BGE, Task.EMBEDDINGS, Shape.TEXT),
        (M2M, Task.TRANSLATION, Shape.TEXT),
        (LLAMA, Task.GENERATION, Shape.PROMPT),
        ("@cf/openai/gpt-oss-120b", Task.GENERATION, Shape.INPUT),
        ("@cf/moonshotai/kimi-k9", Task.GENERATION, Shape.MESSAGES),
        ("@cf/qwen/qwen3-embedding-0.6b", Task.EMBEDDINGS, Shape.TEXT),
        ("@cf/google/EmbeddingGemma-300m", Task.EMBEDDINGS, Shape.TEXT),
        ("@cf/baai/bge-reranker-base", Task.CLASSIFICATION, Shape.UNKNOWN),
        ("@cf/meta/llama-guard-3-8b", Task.CLASSIFICATION, Shape.MESSAGES),
        ("@cf/deepseek-ai/deepseek-r1-distill-qwen-32b", Task.GENERATION, Shape.MESSAGES),
        ("@cf/openai/whisper-large-v3-turbo", Task.TRANSCRIPTION, Shape.AUDIO),
        ("@cf/somebody/something", Task.UNKNOWN, Shape.UNKNOWN),
    ],
)
def test_model_is_known_by_its_id_or_its_family(model, task, shape):
    target = target_of(model)
    assert (target.task, target.shape) == (task, shape)


@pytest.mark.parametrize(
    ("model", "task", "request_"),
    [
        ("@cf/somebody/something", "embeddings", {"text": "a"}),
        ("@cf/qwen/qwen-vectors", "embeddings", {"text": "a"}),
        (BGE, "generation", {"messages": [{"role": "user", "content": "a"}]}),
        (BGE, "", {"text": "a"}),
        (BGE, "embeddings", {"text": "a"}),
    ],
)
def test_task_of_option_precedes_what_is_known(model, task, request_):
    options = Options(model=model, task=task or None)
    first = first_plan(options, StackLimits(), by_default=False)
    beginning = Beginning("plain", b"a\n", complete=True)
    planned = plan_upload(first, options, "inbox/a.txt", beginning, StackLimits())
    assert planned.plan.known_model.task == (task or "embeddings")
    (made,) = make_reader(planned.plan, planned.options, b"").convert([b"a"])
    assert json.loads(made.request) == request_


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────
def test_cost_is_its_tokens_times_their_prices():
    cost = prices.cost_of(find_model(LLAMA), prices.Tokens(1_000_000, 2_000_000))
    assert cost == prices.Cost(Decimal("4.799"), "2026-07-09", estimated=False)
    told = {"amount": "4.7990", "currency": "USD", "priced_at": "2026-07-09", "estimated": False}
    assert cost.to_manifest() == told
    assert prices.cost_of(find_model(BGE), prices.Tokens(3_000_000, None)).amount == Decimal(
        "0.0606"
    )


@pytest.mark.parametrize(
    ("model", "max_tokens", "tokens"),
    [
        (BGE, None, prices.Tokens(251, 0)),
        (M2M, None, prices.Tokens(251, 251)),
        (LLAMA, None, prices.Tokens(251, 5 * 256)),
        (LLAMA, 77, prices.Tokens(251, 77)),
        ("@cf/a/b", None, prices.Tokens(251, 5 * prices.DEFAULT_OUTPUT_TOKENS)),
    ],
)
def test_tokens_are_estimated_from_bytes_and_limits(model, max_tokens, tokens):
    assert prices.estimate_tokens(find_model(model), 1001, 5, max_tokens) == tokens


def test_model_that_is_not_alike_is_not_suggested():
    assert nearest_model("@cf/qwen/qwen3-embedding-0.6b") == ""
    assert nearest_model("@cf/moonshot/kimi-2.6") == "@cf/moonshotai/kimi-k2.6"


def test_job_keeps_what_it_was_planned_with():
    known = find_model("@cf/moonshotai/kimi-k2.6")
    efforts = Efforts(("deep",), aliases={"max": "deep"})
    other = msgspec.structs.replace(known, input_price=Decimal(7), efforts=efforts, context=5)
    kept = msgspec.structs.replace(other, batch=None, price_source="", answer_bytes=0)
    assert SplitPlan(known.id, 1, 1, "", facts=facts_of(other)).known_model == kept
    assert len(facts_of(known)) < 400


# ── estimates of a job with a limit, and its first batches ────────────────────────────────────────
KIMI = find_model("@cf/moonshotai/kimi-k2.6")
LLAMA_MODEL = find_model("@cf/meta/llama-3.3-70b-instruct-fp8-fast")
BGE_MODEL = find_model("@cf/baai/bge-small-en-v1.5")
M2M_MODEL = find_model("@cf/meta/m2m100-1.2b")
TOKEN = 4_000
"""Billionths of a dollar for a token that Kimi writes."""


@pytest.mark.parametrize(
    ("model", "size", "records", "answer_tokens", "cost"),
    [
        (KIMI, 0, 1, 0, 10_000 * TOKEN),
        (KIMI, 0, 2, 500, 1_000 * TOKEN),
        (LLAMA_MODEL, 0, 1, 0, 576_768),
        (BGE_MODEL, 4_000, 9, 500, 20_200),
        (find_model("@cf/some/model"), 100, 2, 0, 0),
    ],
)
def test_estimate_counts_each_answer_as_long_as_it_may_be(
    model, size, records, answer_tokens, cost
):
    assert prices.estimate(model, b"", size, records, answer_tokens) == cost


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        ('"max_tokens":100', 100),
        ('"max_completion_tokens":100', 100),
        ('"max_output_tokens" : 100', 100),
        ('"max_tokens":16,"max_completion_tokens":100', 100),
        ('"max_completion_tokens":16,"max_tokens":16', 16),
        ('"max_tokens":1e3', 1_000),
        ('"max_tokens":10.5', 11),
        ('"max_tokens":1e999', 1_000_000),
        ('"max_tokens":0', 500),
        ('"max_tokens":-5', 500),
        ('"max_tokens":null', 500),
        ('"max_tokens":"16"', 500),
        ('"max_tokens":[16]', 500),
        ('"tools":[{"max_tokens":16}]', 500),
        ('"text":"\\"max_tokens\\":16"', 500),
        ('"a":1', 500),
    ],
)
def test_limit_of_a_record_is_what_itself_names(written, tokens):
    """Beside one that names 100 and one that names none."""
    body = b'{"requests":[{"max_tokens":100},{"prompt":"a"},{%s}]}' % written.encode()
    json.loads(body)

    assert prices.estimate(KIMI, body, 0, 3, 500) == (100 + 500 + tokens) * TOKEN


@pytest.mark.parametrize(
    ("model", "named", "answer_tokens", "expected"),
    [
        (KIMI, 0, 0, (12, 263_157)),  # At 10,000 tokens they cost half.
        (KIMI, 16, 0, (12, 263_157)),
        (KIMI, 20_000, 0, (6, 263_157)),
        (KIMI, 0, 500, (31, 263_157)),
        (KIMI, 1_000, 500, (15, 263_157)),
        (LLAMA_MODEL, 0, 0, (108, 853_242)),
        (BGE_MODEL, 0, 0, (None, 12_376_237)),
        (M2M_MODEL, 0, 0, (None, 365_497)),
    ],
)
def test_first_batches_are_parts_of_limit(model, named, answer_tokens, expected):
    assert prices.first_batch(model, Decimal(1), named, answer_tokens) == expected

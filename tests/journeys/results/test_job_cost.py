"""What a manifest says that a job cost.

Tokens under every name, and what was accepted and never collected.
"""

from decimal import Decimal

import pytest

from dropbatch.core.models import find_model
from dropbatch.core.prices import Tokens, cost_of

GPT = "@cf/openai/gpt-oss-120b"
KIMI = "@cf/moonshotai/kimi-k2.6"
INPUTS = [{"input": "Why is the sky blue? " * 20} for _ in range(3)]
CHATS = [
    {"messages": [{"role": "user", "content": "Why is the sky blue? " * 20}]} for _ in range(3)
]


def amount(world):
    return Decimal(world.manifest()["cost"]["amount"])


def exact(model, tokens):
    return cost_of(find_model(model), tokens).to_manifest()["amount"]


@pytest.mark.parametrize(("model", "records"), [(GPT, INPUTS), (KIMI, CHATS)])
@pytest.mark.parametrize("names", ["prompt", "input", "both"])
def test_tokens_count_under_every_name(world, api, model, records, names):
    api.switch(usage_names=names)
    world.run("a.jsonl", records, model=model)

    usage, cost = world.manifest()["usage"], world.manifest()["cost"]
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert cost["amount"] == exact(
        model, Tokens(usage["prompt_tokens"], usage["completion_tokens"])
    )
    assert (cost["estimated"], cost["uncollected_batches"]) == (False, 0)


def test_cached_tokens_have_their_own_price(world, api):
    api.switch(cached_share=0.5)
    world.run("a.jsonl", CHATS, model=KIMI)

    usage = world.manifest()["usage"]
    tokens = Tokens(usage["prompt_tokens"], usage["completion_tokens"], usage["cached_tokens"])
    assert 0 < usage["cached_tokens"] < usage["prompt_tokens"]
    assert world.manifest()["cost"]["amount"] == exact(KIMI, tokens)
    assert amount(world) < Decimal(exact(KIMI, Tokens(tokens.input, tokens.output)))

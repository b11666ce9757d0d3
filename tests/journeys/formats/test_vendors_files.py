"""Files modelled on the vendors' own examples run from drop to results."""

import json
import pydoc
from array import array
from base64 import b64decode
from pathlib import Path

import pytest

FILES = json.loads((Path(__file__).parents[2] / "files/vendors.json").read_text("utf-8"))
"""Batch files by name, each as its lines."""
BGE = "@cf/baai/bge-m3"
LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
KIMI = "@cf/moonshotai/kimi-k2.6"
GPT = "@cf/openai/gpt-oss-120b"
VISION = "@cf/meta/llama-4-scout-17b-16e-instruct"

MODELS = {
    "anthropic-guide": LLAMA,
    "anthropic-tools": KIMI,
    "openai-guide": LLAMA,
    "openai-guide-embeddings": BGE,
    "openai-guide-responses": GPT,
    "openai-cookbook-captions": VISION,
    "openai-cookbook-movies": LLAMA,
    "bedrock-guide-converse": LLAMA,
    "bedrock-guide-embeddings": BGE,
    "bedrock-guide-llama": LLAMA,
    "bedrock-guide-messages": LLAMA,
    "bedrock-guide-titan": LLAMA,
}
TYPES = {
    "chat.completion": "chat.ChatCompletion",
    "list": "CreateEmbeddingResponse",
    "response": "responses.Response",
}
"""The types of OpenAI's own package, in `openai.types`, by what a body says it is."""


def test_each_file_is_run():
    assert sorted(MODELS) == sorted(FILES)


EVERY_DAY = {"openai-guide", "openai-guide-embeddings", "bedrock-guide-messages"}


@pytest.mark.parametrize(
    "name",
    [name if name in EVERY_DAY else pytest.param(name, marks=pytest.mark.slow) for name in MODELS],
)
def test_vendors_file_is_answered_in_its_own_form(world, name):
    content = "".join(f"{line}\n" for line in FILES[name]).encode()
    records = [json.loads(line) for line in content.splitlines() if line.strip()]

    world.upload(f"{name}.jsonl", content, model=MODELS[name])
    world.settle(minutes=240)

    manifest = world.manifest()
    assert (manifest["format"], manifest["counts"]["failed"]) == (name.partition("-")[0], 0)
    if manifest["format"] == "anthropic":
        lines = world.lines()
        assert [line["custom_id"] for line in lines] == [record["custom_id"] for record in records]
        assert all(line["result"]["message"]["content"] for line in lines)
    elif manifest["format"] == "openai":
        lines = world.lines()
        assert [line["custom_id"] for line in lines] == [record["custom_id"] for record in records]
        for line in lines:
            body = line["response"]["body"]
            for one in body["data"] if body["object"] == "list" else ():
                if isinstance(one["embedding"], str):
                    one["embedding"] = array("f", b64decode(one["embedding"])).tolist()
            # Its import takes 2 s, which no other test should wait for.
            pydoc.locate(f"openai.types.{TYPES[body['object']]}").model_validate(body, strict=False)
    else:
        lines = world.lines(f"{name}.jsonl.out")
        assert [line["modelInput"] for line in lines] == [
            record["modelInput"] for record in records
        ]
        assert all(line["modelOutput"] for line in lines)

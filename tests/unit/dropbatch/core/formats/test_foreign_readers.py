"""What other programs read in the lines that tests/files/foreign expects.

The vendors' own types, LiteLLM.

Most of their packages are not among the tests' own: scripts in tests/vendors read the lines in
environments of theirs, which `make test-slow` installs.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.support.vendors import VENDORS, run

FILES = Path(__file__).parents[4] / "files"
EXPECTED = json.loads((FILES / "foreign/expected.json").read_text("utf-8"))


def records_of(format_):
    return [
        record for one in EXPECTED.values() if one["format"] == format_ for record in one["records"]
    ]


def lines_of(format_):
    return [record["line"] for record in records_of(format_)]


def bodies():
    answered = [line["response"]["body"] for line in lines_of("openai") if line["response"]]
    return [body for body in answered if "object" in body]


def test_openai_package_reads_each_body():
    types = {
        "chat.completion": ChatCompletion,
        "response": Response,
        "list": CreateEmbeddingResponse,
        "text_completion": Completion,
    }
    for body in bodies():
        types[body["object"]].model_validate(body, strict=True)


@pytest.mark.slow
def test_vendors_types_and_litellm_read_results():
    read = run("vendors_types.py", FILES, FILES / "foreign/expected.json", python=VENDORS)

    requests = Counter(
        path.stem.partition("-")[0]
        for path in FILES.glob("*.jsonl")
        for _ in path.read_text("utf-8").splitlines()
    )
    counted = Counter(f"openai {body['object']}" for body in bodies())
    assert {name: read[name] for name in counted} == counted
    assert (
        sum(count for name, count in read.items() if name.startswith("openai /v1/"))
        == requests["openai"]
    )
    assert read["anthropic Request"] == requests["anthropic"]
    assert read["anthropic MessageBatchIndividualResponse"] == len(lines_of("anthropic"))
    assert read["converse input"] > 0
    assert read["converse output"] == sum(
        "stopReason" in line.get("modelOutput", ()) for line in lines_of("bedrock")
    )
    litellm = sum(count for name, count in read.items() if name.startswith("litellm"))
    assert litellm == sum(len(records_of(name)) for name in ("openai", "anthropic", "bedrock"))
    assert min(read["litellm completions"], read["litellm failures"], read["litellm tokens"]) > 5

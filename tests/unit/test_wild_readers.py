"""What other programs read in the lines that tests/files/wild expects. Their packages are not among the tests' own."""

import json
from pathlib import Path

import pytest

EXPECTED = json.loads((Path(__file__).parents[1] / "files" / "wild" / "expected.json").read_text("utf-8"))


def lines_of(format_):
    return [record["line"] for one in EXPECTED.values() if one["format"] == format_ for record in one["records"]]


def bodies():
    answered = [line["response"]["body"] for line in lines_of("openai") if line["response"]]
    return [body for body in answered if "object" in body]


@pytest.mark.slow
def test_litellm_reads_each_chat_completion():
    litellm = pytest.importorskip("litellm")
    completions = [body for body in bodies() if body["object"] == "chat.completion"]
    assert len(completions) > 10
    for body in completions:
        response = litellm.ModelResponse(**body)
        assert response.choices[0].message.content == "Bad."
        assert response.usage.prompt_tokens == 9


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["openai", "anthropic", "bedrock"])
def test_litellm_sees_what_succeeded_and_its_tokens(provider):
    utils = pytest.importorskip("litellm.batches.batch_utils")
    records = [one for wanted in EXPECTED.values() if wanted["format"] == provider for one in wanted["records"]]
    for record in records:
        line = record["line"]
        assert utils._batch_response_was_successful(line, provider) == ("request" in record)
        body = utils._get_response_from_batch_job_output_file(line, provider)
        # Of Bedrock's outputs, LiteLLM reads the tokens of messages and of Converse.
        knows = provider != "bedrock" or body.get("object") != "chat.completion"
        if knows and "messages" in record.get("request", ()) and "prompt" not in line.get("modelInput", ()):
            assert utils._get_batch_job_usage_from_response_body(body, provider).prompt_tokens == 9


def test_the_openai_package_reads_each_body():
    types = {
        "chat.completion": pytest.importorskip("openai.types.chat").ChatCompletion,
        "response": pytest.importorskip("openai.types.responses").Response,
        "list": pytest.importorskip("openai.types").CreateEmbeddingResponse,
        "text_completion": pytest.importorskip("openai.types").Completion,
    }
    for body in bodies():
        types[body["object"]].model_validate(body, strict=True)


@pytest.mark.slow
def test_the_anthropic_package_reads_each_line():
    messages = pytest.importorskip("anthropic.types.messages")
    assert lines_of("anthropic")
    for line in lines_of("anthropic"):
        messages.MessageBatchIndividualResponse.model_validate(line, strict=True)


@pytest.mark.slow
def test_the_google_genai_package_reads_each_response():
    types = pytest.importorskip("google.genai.types")
    assert lines_of("gemini")
    for line in lines_of("gemini"):
        response = line.get("response") or {}
        if "embedding" in response:
            types.SingleEmbedContentResponse.model_validate(response)
        else:
            types.GenerateContentResponse.model_validate(response)

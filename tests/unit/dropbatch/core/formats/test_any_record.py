"""Any records at all, and those that vendors' packages write."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.formats.base import BatchFacts, Converted, Outcome
from dropbatch.core.formats.table import Form, describer_of, reader_of, writer_of
from local.workers_ai import Behaviour
from local.workers_ai.models.schemas import problem
from tests.support.converted import CHAT, GPT, KIMI, LLAMA, M3, SCOUT, target_of

# ── any records at all ────────────────────────────────────────────────────────────────────────────
MODELS = [
    *(M3, LLAMA, SCOUT, GPT, KIMI),
    *("@cf/meta/m2m100-1.2b", "@cf/openai/whisper-large-v3-turbo", "@cf/somebody/something"),
]
NAMES = [
    *("custom_id", "method", "url", "body", "recordId", "modelInput", "external_reference"),
    *("model", "messages", "role", "content", "type", "text", "prompt", "input", "inputText"),
    *("texts", "system", "stream", "n", "tools", "toolConfig", "toolSpec", "inputSchema"),
    *("input_schema", "name", "tool_choice", "function", "inferenceConfig"),
    *("textGenerationConfig", "maxTokens", "max_gen_len", "max_completion_tokens", "source"),
    *("image", "response_format", "json_schema", "schema", "reasoning_effort", "modalities"),
    *("audio", "anthropic_version", "params", "request", "key", "contents", "parts"),
    *("generationConfig", "functionCall", "tool_calls", "thinking", "image_url", "input_audio"),
    *("encoding_format", "usage", "response", "data", "choices", "message", "bytes"),
]
words = [
    *("", "é\n", "POST", "/v1/embeddings", "/v1/responses"),
    *("text", "image", "input_audio", "base64", M3),
]
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 2), st.floats(-2, 2), st.sampled_from(words)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)
lines = {
    "openai": st.one_of(
        objects,
        st.fixed_dictionaries(
            {"custom_id": st.just("a"), "body": objects}, optional={"url": st.sampled_from(words)}
        ),
    ),
    "anthropic": st.one_of(
        objects, st.fixed_dictionaries({"custom_id": st.just("a"), "params": objects})
    ),
    "bedrock": st.one_of(
        objects, st.fixed_dictionaries({"modelInput": objects}, optional={"recordId": values})
    ),
}
written = st.tuples(st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (",\r", ":\r ")]))


def write(record, style):
    is_ascii, separators = style
    return json.dumps(record, ensure_ascii=is_ascii, separators=separators).encode()


@pytest.mark.parametrize("format_", sorted(lines))
@given(data=st.data(), model=st.sampled_from(MODELS), style=written, result=values)
def test_any_record_has_request_or_fault_and_one_line(format_, data, model, style, result):
    form, target = Form(format_), target_of(model, defaults={"seed": b"1"})
    records = data.draw(
        st.lists(lines[format_].map(lambda record: write(record, style)), max_size=4)
    )
    converted = reader_of(form, target).convert(records)
    assert len(converted) == len(records)
    writer, facts = writer_of(form, target), BatchFacts("j", model, "r", 1.0)
    for id_, (record, one) in enumerate(zip(records, converted, strict=True)):
        if isinstance(one, Converted):
            request = msgspec.json.decode(one.request)
            assert request["seed"] == 1 or "seed" in json.loads(record)
            assert json.loads(bytes(one.reference)) == request.get("external_reference")
            outcome = Outcome(id_, one.reference, record, write(result, (True, (",", ":"))))
        else:
            assert one.code in {"bad_record", "mismatched_model"}
            outcome = Outcome(id_, one.reference, record, None, one.code, one.message)
        line = writer.line(facts, outcome)
        assert (line.count(b"\n"), line[-1:], line.count(b"\r")) == (1, b"\n", 0)
        json.loads(line)
        assert json.loads(describer_of(form)(record)) == json.loads(record)


@given(records=st.lists(st.binary(max_size=12).filter(lambda one: b"\n" not in one), max_size=5))
def test_any_bytes_are_line_of_text_or_no_text(records):
    converted = reader_of(Form("text"), target_of(M3, "<{text}>")).convert(records)
    for record, one in zip(records, converted, strict=True):
        try:
            text = record.decode().removeprefix("\ufeff")
        except UnicodeDecodeError:
            assert one.code == "invalid_utf8"
        else:
            assert json.loads(one.request) == {"text": f"<{text}>"}


# ── requests as the vendors' packages write them ──────────────────────────────────────────────────
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "utmost", "", 5, None)


@pytest.mark.parametrize("model", [*CHAT, "@cf/qwen/qwen3.8-27b", "@cf/google/gemma-4-26b-a4b-it"])
def test_no_effort_is_sent_that_schema_refuses(model):
    """Models of the older schemas have no efforts: they pass over the member."""
    unknown = "ignore" if model in CHAT[:3] else "refuse"
    for effort in EFFORTS:
        for body in (
            {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": effort},
            {"input": "x", "reasoning": {"effort": effort}},
        ):
            record = json.dumps({"custom_id": "a", "body": body}).encode()
            (one,) = reader_of(Form("openai"), target_of(model)).convert([record])
            if isinstance(one, Converted):
                assert (
                    problem(model, json.loads(one.request), "", Behaviour(unknown_members=unknown))
                    is None
                ), effort

"""Any records at all, and those that vendors' packages write."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import BatchFacts, Converted, Outcome
from dropbatch.core.formats.table import FORMATS, Form, describer_of, reader_of, writer_of
from dropbatch.core.models import find_model
from dropbatch.core.options import Options
from dropbatch.core.plan import Checkpoint, StackLimits, first_plan, make_reader, plan_upload
from dropbatch.core.read.cut import read_batches
from dropbatch.core.read.form import Beginning
from dropbatch.core.requests import alternatives, content
from local.workers_ai import Behaviour
from local.workers_ai.models.schemas import problem
from tests.support.converted import CHAT, GPT, KIMI, LLAMA, M3, SCOUT, target_of
from tests.support.examples import examples

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
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.sampled_from(words),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)
named, url = {"custom_id": st.just("a")}, {"url": st.sampled_from(words)}
lines = {
    "openai": objects | st.fixed_dictionaries(named | {"body": objects}, optional=url),
    "anthropic": objects | st.fixed_dictionaries(named | {"params": objects}),
    "bedrock": objects
    | st.fixed_dictionaries({"modelInput": objects}, optional={"recordId": values}),
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
                request, behaviour = json.loads(one.request), Behaviour(unknown_members=unknown)
                assert problem(model, request, "", behaviour) is None, effort


READ_MODELS = [
    model
    for schema in content()["schemas"].values()
    for model in schema["models"]
    if find_model(model).schema in content()["schemas"]
]
"""Those whose schema is read."""
ALL_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "utmost", "")
terms = st.sampled_from(
    ["", "a", "user", "system", "tool", "robot", "es", "cls", "text", *ALL_EFFORTS]
)
numbers = st.integers(-2, 130) | st.sampled_from([0.0005, 0.5, 1.5, 2.5, 5.5])
plain = st.none() | st.booleans() | numbers | terms
inside = st.sampled_from(["role", "content", "text", "type", "effort", "name"])
contents = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(inside, inner, max_size=3),
    max_leaves=6,
)
turns = st.fixed_dictionaries(
    {"role": terms}, optional={"content": terms | contents, "tool_calls": contents}
)
inputs = st.fixed_dictionaries(
    {},
    optional={
        "text": terms | st.lists(terms, max_size=2) | st.just(["a"] * 101),
        "prompt": terms | plain,
        "messages": st.lists(turns, max_size=2)
        | st.just([{"role": "user", "content": "a"}])
        | plain,
        "input": terms | st.just([]) | plain,
        "contexts": st.lists(st.fixed_dictionaries({}, optional={"text": terms}), max_size=2),
        "query": terms,
        "audio": terms,
        "target_lang": terms,
        "reasoning_effort": st.sampled_from(ALL_EFFORTS) | st.none(),
        "reasoning": st.fixed_dictionaries(
            {}, optional={"effort": st.sampled_from(ALL_EFFORTS), "summary": terms}
        ),
    },
)
MEMBERS = sorted(
    {name for schema in content()["schemas"] for one in alternatives(schema) for name in one.known}
)
bodies = st.tuples(inputs, st.dictionaries(st.sampled_from(MEMBERS), contents, max_size=2)).map(
    lambda two: two[1] | two[0]
)
cells = st.sampled_from(["", " ", "a", '"a, b"', '""', "[]", "{", "5", "1.0"])
RECORDS = {
    "native": bodies,
    "objects": bodies.map(lambda body: {"id": 1, **body}),
    "openai": bodies.map(lambda body: {"custom_id": "a", "body": body}),
    "anthropic": bodies.map(lambda body: {"custom_id": "a", "params": body}),
    "bedrock": bodies.map(lambda body: {"recordId": "a", "modelInput": body}),
}
LINES = {
    **{name: record.map(json.dumps) for name, record in RECORDS.items()},
    "csv": st.tuples(*[cells] * 6).map(",".join),
    "tsv": st.tuples(cells, cells).map("\t".join),
    "text": st.sampled_from(["a", "b c", "{", '"', " \u00a0"]),
}
HEADERS = {"csv": "id,text,max_tokens,stop,target_lang,messages\n", "tsv": "id\ttext\n"}


def sent(format_, model, lines):
    """The requests that are sent of an upload."""
    text = (HEADERS.get(format_, "") + "".join(f"{line}\n" for line in lines)).encode()
    limits, options = StackLimits(), Options(model=model, format=format_)
    first = first_plan(options, limits, by_default=False)
    beginning = Beginning("plain", text, complete=True)
    planned = plan_upload(first, options, "inbox/a", beginning, limits)
    reader = make_reader(planned.plan, planned.options, planned.header)
    place = Checkpoint(planned.plan.start, planned.plan.start_line)
    for one in read_batches(planned.plan, place, 0, [text[place.offset :]], reader):
        yield from json.loads(one.body)["requests"] if one.body else ()


def test_every_format_and_schema_is_drawn():
    assert LINES.keys() == FORMATS.keys()
    assert {find_model(model).schema for model in READ_MODELS} == {
        find_model(one).schema for one in READ_MODELS
    } - {""}
    assert len(READ_MODELS) >= 14


@pytest.mark.parametrize("format_", LINES)
@examples(20)
@given(data=st.data(), model=st.sampled_from(READ_MODELS))
def test_no_drawn_record_is_sent_and_refused(format_, data, model):
    lines = data.draw(st.lists(LINES[format_], min_size=1, max_size=4))
    try:
        for request in sent(format_, model, lines):
            assert problem(model, request, "", Behaviour()) is None, request
    except UploadRefused:
        pass  # none of it is sent


@examples(60)
@given(body=bodies.filter(lambda one: [] not in one.values()), model=st.sampled_from(READ_MODELS))
def test_native_record_is_sent_if_schema_takes_it(body, model):
    """Empty arrays aside: an input of none is refused though the schema takes it."""
    if (efforts := find_model(model).efforts) and not efforts.values:
        body.pop("reasoning_effort", None)  # Their schemas do not name it.
    is_taken = problem(model, body, "", Behaviour()) is None
    assert list(sent("native", model, [json.dumps(body)])) == [body] * is_taken

"""Requests without an input."""

import json
from dataclasses import replace
from itertools import product

import pytest

from dropbatch.core.models import Model, facts_of, find_model
from dropbatch.core.plan import Checkpoint, SplitPlan
from dropbatch.core.read.cut import read_batches
from dropbatch.core.read.inputs import Inputs
from local.workers_ai import Behaviour
from local.workers_ai.models.schemas import problem
from tests.support.converted import BGE, GPT, HELLO, KIMI, LLAMA, SCOUT

GEMMA = "@cf/google/gemma-4-26b-a4b-it"
MODELS = (
    "@cf/baai/bge-base-en-v1.5",
    "@cf/baai/bge-m3",
    "@cf/meta/m2m100-1.2b",
    "@cf/meta/llama-3.3-70b-instruct-fp8-fast",
    "@cf/meta/llama-4-scout-17b-16e-instruct",
    "@cf/qwen/qwen3-30b-a3b-fp8",
    "@cf/moonshotai/kimi-k2.6",
    "@cf/deepseek-ai/deepseek-v4-flash-0731",
    "@cf/openai/gpt-oss-120b",
)
VALUES = (
    *("", "a", " ", None, 5, True, {}, [], ["a"], ["a", ""], [""], ["a", 5]),
    [{"role": "user", "content": "a"}],
    [{"content": "a"}],
    [{"role": "user", "content": "a"}, {"content": "b"}],
    [{"role": None, "content": "a"}],
)
MEMBERS = ("text", "prompt", "messages", "input", "contexts", "instruction")


@pytest.mark.parametrize("model", MODELS)
def test_judged_as_by_published_schema(model):
    found = find_model(model)
    inputs, behaviour = Inputs(found), Behaviour(batch_messages=True)
    judged = {True: 0, False: 0}
    for member, value in product(MEMBERS, VALUES):
        request = {member: value} | ({"target_lang": "es"} if "m2m" in model else {})
        refused = problem(model, request, "", behaviour)
        fault = inputs.fault(json.dumps(request).encode())

        is_refused = refused is not None or value == []
        assert (fault is not None) == is_refused, (request, fault, refused)
        judged[fault is None] += 1
    assert judged[True]
    assert judged[False]


def message_of(fault):
    assert fault is None or fault.code == "bad_record"
    return fault.message if fault else ""


@pytest.mark.parametrize(
    ("schema", "request_", "message"),
    [
        ("bge", {"text": ""}, "text: It must not be empty."),
        ("bge", {"text": ["a", ""]}, "text[1]: It must not be empty."),
        ("bge", {"instruction": "a"}, "text: It is missing. The model takes text."),
        ("bge-m3", {"input": "a"}, "text: It is missing. The model takes text or contexts."),
        ("chat", {"text": "a"}, "messages: It is missing. The model takes messages or prompt."),
        ("chat", {"prompt": ""}, "prompt: It must not be empty."),
        (
            "chat",
            {"messages": [{"role": "user", "content": ""}, {"content": "a"}]},
            "messages[1].role: It is missing.",
        ),
        ("chat", {"messages": [{"role": "user"}]}, "messages[0].content: It is missing."),
        (
            "chat",
            {"messages": [], "prompt": "a"},
            "prompt: It is beside messages. The model takes messages or prompt.",
        ),
        ("chat", {"prompt": "a", "temperature": 3}, "temperature: Expected `float` <= 2.0."),
        ("bge", {"text": ["a"] * 101}, "text: Expected `array` of length <= 100."),
        ("m2m100", {"text": "a"}, "target_lang: It is missing."),
        ("chat", {"messages": "a"}, "messages: It has the wrong type."),
        ("responses", {"prompt": "a"}, "input: It is missing. The model takes input."),
        ("", {"anything": ""}, ""),
    ],
)
def test_fault_names_its_member(schema, request_, message):
    assert message_of(Inputs(Model(schema=schema)).fault(json.dumps(request_).encode())) == message


@pytest.mark.parametrize(
    ("model", "request_", "message"),
    [
        (
            KIMI,
            {"prompt": "a", "reasoning_effort": "low"},
            "reasoning_effort: It must be one of high, none.",
        ),
        (
            GPT,
            {"input": "a", "reasoning": {"effort": "max"}},
            "reasoning.effort: It must be one of low, medium, high.",
        ),
        (
            GEMMA,
            {"prompt": "a", "reasoning_effort": "low"},
            "reasoning_effort: It must be left out.",
        ),
        (KIMI, {"prompt": "a", "reasoning_effort": "none"}, ""),
        ("@cf/zai-org/glm-9", {"prompt": "a", "reasoning_effort": "utmost"}, ""),
        (LLAMA, {"prompt": "a", "image": "AAAA"}, f"image: {LLAMA} takes only text, no images."),
        (LLAMA, {"messages": [HELLO], "image": [1]}, f"image: {LLAMA} takes only text, no images."),
        (BGE, {"text": "a", "image": "AAAA"}, f"image: {BGE} takes only text, no images."),
        (SCOUT, {"prompt": "a", "image": "AAAA"}, ""),
        (
            GPT,
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            f"input[0].content[0].type: {GPT} takes only text, no images.",
        ),
        (
            GPT,
            {"input": "a", "max_output_tokens": "9"},
            "max_output_tokens: It has the wrong type.",
        ),
        (GPT, {"input": "a", "temperature": 9}, "temperature: Expected `float` <= 2.0."),
        (LLAMA, {"prompt": "a", "max_tokens": -1}, "max_tokens: Expected `int` >= 0."),
    ],
)
def test_what_is_known_of_models_judges_requests(model, request_, message):
    inputs = Inputs(find_model(model))
    assert message_of(inputs.fault(json.dumps(request_).encode())) == message


PLAN = SplitPlan("@cf/baai/bge-m3", 100, 1_000_000, "a", "jsonl", "plain")


def cut_of(*records, plan=PLAN):
    (found,) = read_batches(plan, Checkpoint(), 0, [b"".join(record + b"\n" for record in records)])
    return found


OTHER = (
    "The job's model is @cf/baai/bge-m3. Upload records for @cf/baai/bge-base-en-v1.5 as a "
    "separate file."
)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("model", "sent"),
    [
        *(
            (name, True)
            for name in (PLAN.model, f"workers-ai/{PLAN.model}", "gpt-4o", "", None, "@cf/x")
        ),
        *(
            (name, False)
            for name in ("@cf/baai/bge-base-en-v1.5", "workers-ai/@cf/baai/bge-base-en-v1.5")
        ),
    ],
)
@pytest.mark.parametrize("count", [0, 40])
def test_record_that_names_another_model_is_not_sent(known, model, sent, count):
    plan = PLAN if known else replace(PLAN, facts=facts_of(Model()))
    record = json.dumps({"text": "a", "model": model, "external_reference": "r"}).encode()
    good = [b'{"text":"a","other":{"model":"@cf/a/b"}}'] * count

    found = cut_of(*good, record, plan=plan)

    faults = [(one.code, one.message) for one in found.rows.faults.values()]
    assert faults == [] if sent else [("mismatched_model", f"Line {count + 1}: model: {OTHER}")]
    assert found.sendable == count + sent
    assert bytes(found.rows.references[-1]) == b'"r"'


def fault_of(model, request_):
    """What is said of a native request."""
    return message_of(Inputs(find_model(model)).fault(json.dumps(request_).encode()))


STREAMED = "stream: answers are written to a file, so nothing can be streamed. Leave it out."
SEVERAL = "n: Workers AI gives one answer per request. Write a record for each answer you want."
EARLIER = "A batch has no earlier answers. Write the whole conversation in the record."
LLAMA, BGE_M3 = "@cf/meta/llama-3.3-70b-instruct-fp8-fast", "@cf/baai/bge-m3"
LENGTH = f"dimensions: {BGE_M3} returns embeddings of 1024 numbers. Write that, or leave it out."


@pytest.mark.parametrize(
    ("model", "request_", "message"),
    [
        (LLAMA, {"prompt": "a", "stream": True}, STREAMED),
        (KIMI, {"prompt": "a", "stream": True}, STREAMED),
        ("@cf/example/x", {"anything": "a", "stream": True}, STREAMED),
        (LLAMA, {"prompt": "a", "n": 5}, SEVERAL),
        (LLAMA, {"prompt": "a", "n": True}, SEVERAL),
        (KIMI, {"prompt": "a", "n": 5}, ""),
        (BGE_M3, {"text": "a", "dimensions": 256}, LENGTH),
        (GPT, {"input": "a", "previous_response_id": "r"}, f"previous_response_id: {EARLIER}"),
        (GPT, {"input": "a", "conversation": {}}, f"conversation: {EARLIER}"),
        (LLAMA, {"messages": []}, "messages: It must not be empty."),
        (BGE_M3, {"text": []}, "text: It must not be empty."),
        (BGE_M3, {"contexts": []}, "contexts: It must not be empty."),
        (GPT, {"input": []}, "input: It must not be empty."),
        (LLAMA, {"prompt": "a", "stream": False, "n": 1}, ""),
        (LLAMA, {"prompt": "a", "n": None, "images": ["a"]}, ""),
        (LLAMA, {"prompt": "a", "stream": None}, STREAMED),
        (KIMI, {"prompt": "a", "stream": None}, ""),
        ("@cf/example/x", {"anything": "a", "stream": None}, ""),
        (BGE_M3, {"text": "a", "dimensions": 1024}, ""),
        (GPT, {"input": "a", "previous_response_id": None}, ""),
        ("@cf/example/x", {"anything": "a", "stream": False, "n": 5}, ""),
    ],
)
def test_native_request_without_a_right_answer_is_bad(model, request_, message):
    assert fault_of(model, request_) == message


@pytest.mark.parametrize("text", [b"", b'"text":"",'], ids=["no input", "an empty one"])
def test_no_depth_of_nesting_stops_the_cut(text):
    """Of the functions that read a record, some can follow one level more than others."""
    for depth in range(850, 1_000):
        record = b'{%b"x":%b1%b}' % (text, b"[" * depth, b"]" * depth)
        assert cut_of(record).sendable == 0, depth

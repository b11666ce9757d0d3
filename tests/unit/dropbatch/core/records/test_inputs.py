"""Requests without an input: found before they are sent, exactly where the published schema refuses them."""

import json
from dataclasses import replace
from itertools import product

import pytest

from dropbatch.core.formats.model_catalog import find_model
from dropbatch.core.formats.schemas import SCHEMAS
from dropbatch.core.records.cut import cut
from dropbatch.core.records.inputs import FORMS, Inputs
from dropbatch.core.records.plan import Checkpoint, SplitPlan
from local.workers_ai import Behaviour
from local.workers_ai.models.schemas import problem

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
OF_INPUT = ("required properties", "missing required field `role`", "length >= 1", "Type mismatch")
"""What the API says of requests whose input is missing, empty, or no text."""


@pytest.mark.parametrize("model", MODELS)
def test_judged_as_by_published_schema(model):
    inputs, behaviour = Inputs(find_model(model).schema), Behaviour(batch_messages=True)
    judged = {True: 0, False: 0}
    for member, value in product(MEMBERS, VALUES):
        request = {member: value} | ({"target_lang": "es"} if "m2m" in model else {})
        refused = problem(model, request, "", behaviour) or ""
        fault = inputs.fault(json.dumps(request).encode())

        if not refused:
            assert fault == "", request
        elif any(words in refused for words in OF_INPUT) and "content" not in refused and "contexts" not in request:
            assert fault != "", (request, refused)
        judged[fault == ""] += 1
    assert judged[True]
    assert judged[False]


def test_every_schema_is_known():
    assert FORMS.keys() == SCHEMAS.keys()


@pytest.mark.parametrize(
    ("schema", "request_", "message"),
    [
        ("bge", {"text": ""}, "text: It must not be empty."),
        ("bge", {"text": ["a", ""]}, "text[1]: It must not be empty."),
        ("bge", {"instruction": "a"}, "text: It is missing. The model takes text."),
        ("bge-m3", {"input": "a"}, "text: It is missing. The model takes text or contexts."),
        ("chat", {"text": "a"}, "messages: It is missing. The model takes messages or prompt."),
        ("chat", {"prompt": ""}, "prompt: It must not be empty."),
        ("chat", {"messages": [{"role": "user"}, {"content": "a"}]}, "messages[1].role: It is missing."),
        ("chat", {"messages": "a"}, "messages: It has the wrong type."),
        ("responses", {"prompt": "a"}, "input: It is missing. The model takes input."),
        ("", {"anything": ""}, ""),
    ],
)
def test_fault_names_its_member(schema, request_, message):
    assert Inputs(schema).fault(json.dumps(request_).encode()) == message


PLAN = SplitPlan("@cf/baai/bge-m3", 100, 1_000_000, "a", "jsonl", "plain", inputs="bge-m3")


def cut_of(*records, plan=PLAN):
    (found,) = cut(plan, Checkpoint(), 0, [b"".join(record + b"\n" for record in records)])
    return found


def test_records_without_input_are_not_sent():
    good = [json.dumps({"text": f"a{number}", "external_reference": f"r{number}"}).encode() for number in range(40)]

    found = cut_of(*good[:20], b'{"text": "", "external_reference": "bad"}', *good[20:], b'{"contexts": []}')

    assert (found.sendable, len(found.rows)) == (41, 42)
    assert {index: (one.code, one.message) for index, one in found.rows.faults.items()} == {
        20: ("bad_record", "Line 21: text: It must not be empty.")
    }
    assert bytes(found.rows.references[20]) == b'"bad"'
    assert b'"text": ""' not in found.body


def test_older_jobs_are_cut_as_they_were_begun():
    assert cut_of(b'{"text": ""}', plan=replace(PLAN, inputs="")).sendable == 1


@pytest.mark.parametrize(
    "record", [b'{"text":"a","x":"\xff"}', b'{"text":"a","x":"\\ud800"}', b'{"text":"a",}', b"[1]"]
)
@pytest.mark.parametrize("count", [1, 40])
def test_what_no_input_is_read_from_is_judged_too(record, count):
    """Whether it stands among many records or few."""
    found = cut_of(*[b'{"text":"a"}'] * count, record)

    assert (found.sendable, len(found.rows)) == (count, count + 1)

"""Requests without an input."""

import base64
import json
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from dropbatch.core import names
from dropbatch.core.formats.base import Converted, RecordFault
from dropbatch.core.formats.table import Form, reader_of
from dropbatch.core.models import Model, facts_of, find_model
from dropbatch.core.plan import Checkpoint, SplitPlan
from dropbatch.core.read.attachments import UNNAMED, attach, marked, names_any
from dropbatch.core.read.cut import read_batches
from dropbatch.core.read.inputs import Inputs
from local.workers_ai import Behaviour
from local.workers_ai.models.schemas import problem
from tests.support.converted import BGE, CHAT, GPT, HELLO, KIMI, LLAMA, SCOUT, target_of
from tests.support.uploads import plan_of

GEMMA = "@cf/google/gemma-4-26b-a4b-it"
MODELS = (*CHAT, BGE, "@cf/baai/bge-m3", "@cf/meta/m2m100-1.2b")
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
    inputs, behaviour = Inputs(found), Behaviour()
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


TAKES = "The model takes messages or prompt."
LOW = {"prompt": "a", "reasoning_effort": "low"}
MOST = {"input": "a", "reasoning": {"effort": "max"}}
IMAGE = {"type": "input_image", "image_url": "x"}
SEEN = {"input": [{"role": "user", "content": [IMAGE]}]}


@pytest.mark.parametrize(
    ("schema", "request_", "message"),
    [
        ("bge", {"text": ""}, "text: It must not be empty."),
        ("bge", {"text": ["a", ""]}, "text[1]: It must not be empty."),
        ("bge", {"instruction": "a"}, "text: It is missing. The model takes text."),
        ("bge-m3", {"input": "a"}, "text: It is missing. The model takes text or contexts."),
        ("chat", {"text": "a"}, f"messages: It is missing. {TAKES}"),
        ("chat", {"prompt": ""}, "prompt: It must not be empty."),
        ("chat", {"messages": [HELLO, {"content": "a"}]}, "messages[1].role: It is missing."),
        ("chat", {"messages": [{"role": "user"}]}, "messages[0].content: It is missing."),
        ("chat", {"messages": [], "prompt": "a"}, f"prompt: It is beside messages. {TAKES}"),
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
        (KIMI, LOW, "reasoning_effort: It must be one of high, none."),
        (GPT, MOST, "reasoning.effort: It must be one of low, medium, high."),
        (GEMMA, LOW, "reasoning_effort: It must be left out."),
        (KIMI, {"prompt": "a", "reasoning_effort": "none"}, ""),
        ("@cf/zai-org/glm-9", {"prompt": "a", "reasoning_effort": "utmost"}, ""),
        (LLAMA, {"prompt": "a", "image": "AAAA"}, f"image: {LLAMA} takes only text, no images."),
        (LLAMA, {"messages": [HELLO], "image": [1]}, f"image: {LLAMA} takes only text, no images."),
        (BGE, {"text": "a", "image": "AAAA"}, f"image: {BGE} takes only text, no images."),
        (SCOUT, {"prompt": "a", "image": "AAAA"}, ""),
        (GPT, SEEN, f"input[0].content[0].type: {GPT} takes only text, no images."),
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
        *((name, True) for name in (PLAN.model, f"workers-ai/{PLAN.model}")),
        *((name, True) for name in ("gpt-4o", "", None, "@cf/x")),
        *((f"{prefix}@cf/baai/bge-base-en-v1.5", False) for prefix in ("", "workers-ai/")),
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


STREAMED = "stream: answers are written to a file, so nothing can be streamed. Leave it out."
SEVERAL = "n: Workers AI gives one answer per request. Write a record for each answer you want."
EARLIER = "A batch has no earlier answers. Write the whole conversation in the record."
BGE_M3 = PLAN.model
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
    inputs = Inputs(find_model(model))
    assert message_of(inputs.fault(json.dumps(request_).encode())) == message


@pytest.mark.parametrize("text", [b"", b'"text":"",'])
def test_no_depth_of_nesting_stops_the_cut(text):
    """Of the functions that read a record, some can follow one level more than others."""
    for depth in range(850, 1_000):
        record = b'{%b"x":%b1%b}' % (text, b"[" * depth, b"]" * depth)
        assert cut_of(record).sendable == 0, depth


PNG, WAV = b"\x89PNG\r\n\x1a\nabc", b"RIFF\x01\x02\x03\x04WAVEabc"
CONTENTS = {"a.png": PNG, 'ä "b".png': PNG, "a.wav": WAV, "a.txt": b"text"}
SEEING, TURBO = "@cf/meta/llama-4-scout-17b-16e-instruct", "@cf/openai/whisper-large-v3-turbo"


def text(content: bytes, kind: str = "") -> str:
    return (f"data:{kind};base64," if kind else "") + base64.b64encode(content).decode()


def attached(record: bytes, model: str = SEEING, contents=CONTENTS):
    def load(wanted):
        return (contents.get(name, f"{name} is missing.") for name in wanted)

    (found,) = attach([Converted(marked(record), b"7")], load, find_model(model))
    return found


URL, SOUND, PICTURE = text(PNG, "image/png"), {"data": text(WAV)}, {"image": list(PNG)}


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (b'{"url":{"s3":"a.png"}}', {"url": URL}),
        (b'{"x":{"url" :\t{ "s3" : "\\u00e4 \\"b\\".png" } } }', {"x": {"url": URL}}),
        (b'{"a":[{"data":{"s3":"a.wav"}},{"image":{"s3":"a.png"}}]}', {"a": [SOUND, PICTURE]}),
        (b'{"image":{"s3":"a.png"}}', PICTURE),
        (b'{"image_url":{"s3":"a.png"}}', {"image_url": URL}),
    ],
)
def test_content_stands_for_what_names_it(record, wanted):
    found = attached(record)

    assert json.loads(found.request) == wanted
    assert found.reference == b"7"


IN_CHAT = b'{"messages":[{"role":"user","content":[{"image_url":{"url":{"s3":"a.png"}}}]}]}'


@pytest.mark.parametrize("record", [b'{"prompt":"a","image":{"s3":"a.png"}}', IN_CHAT])
def test_record_that_names_an_object_fails_alone_where_none_is_read(record):
    upload = b'{"prompt":"a"}\n' * 20 + record + b'\n{"prompt":"a"}\n'
    plan = replace(plan_of((99, 9_999)), model=SEEING, format="native")
    for reader in (None, reader_of(Form("native"), target_of(SEEING))):
        load = partial(pytest.fail, "read")
        (found,) = read_batches(plan, Checkpoint(), 0, [upload], reader, load)
        (fault,) = found.rows.faults
        assert (fault, found.rows[fault].message) == (20, f"Line 21: {UNNAMED}")


def test_audio_is_base64_for_a_model_whose_schema_says_so():
    assert json.loads(attached(b'{"audio":{"s3":"a.wav"}}', TURBO).request) == {"audio": text(WAV)}
    whisper = attached(b'{"audio":{"s3":"a.wav"}}', "@cf/openai/whisper")
    assert json.loads(whisper.request) == {"audio": list(WAV)}


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (b'{"url":{"s3":"b.png"}}', "url: b.png is missing."),
        (b'{"url":{"s3":"a.wav"}}', "url: 'a.wav' is audio/wav. Take image/png"),
        (b'{"audio":{"s3":"a.png"}}', "audio: 'a.png' is image/png. Take audio/wav"),
        (b'{"data":{"s3":"a.txt"}}', "data: 'a.txt' is of no known type"),
        (b"[%b]" % b",".join([b'{"url":{"s3":"a.png"}}'] * 101), "s3: The record names more"),
    ],
)
def test_record_whose_object_does_not_fit_fails_alone(record, words):
    found = attached(record)
    assert isinstance(found, RecordFault)
    assert (found.code, found.reference) == ("bad_record", b"7")
    assert found.message.startswith(words)


@pytest.mark.parametrize(
    ("size", "words"),
    [(7_500_000, "s3: Its objects make it larger"), (7_500_001, "url: 'a.png' has more than")],
)
def test_record_that_gets_too_large_fails_alone(size, words):
    found = attached(b'{"url":{"s3":"a.png"}}', contents={"a.png": PNG.ljust(size)})
    assert (found.code, found.message[: len(words)]) == ("too_large", words)


def test_record_names_a_hundred_objects():
    found = attached(b"[%b]" % b",".join([b'{"url":{"s3":"a.png"}}'] * 100))
    assert json.loads(found.request) == [{"url": URL}] * 100


@pytest.mark.parametrize(
    "record",
    [
        b'{"text":"{\\"url\\":{\\"s3\\":\\"a.png\\"}}"}',
        b'{"parameters":{"s3":"a.png"}}',
        b'{"url":{"s3":"a.png","other":1}}',
        b'{"url":{"s3":7}}',
    ],
)
def test_what_only_looks_like_a_name_is_left_as_it_is(record):
    assert not names_any(record)
    assert attached(record).request == record


def test_contents_of_a_record_that_fails_are_not_those_of_the_next():
    requests = [
        Converted(marked(b'{"url":{"s3":"a.txt"},"x":{"url":{"s3":"a.png"}}}'), b"1"),
        RecordFault("bad_record", "x: y"),
        Converted(marked(b'{"data":{"s3":"a.wav"}}'), b"2"),
    ]
    first, _, last = attach(requests, lambda found: map(CONTENTS.get, found), find_model(SEEING))
    assert first.code == "bad_record"
    assert json.loads(last.request) == SOUND


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("images/a.PNG", True),
        ("set/images/b/a.jpeg", True),
        ("audio/a.mp3", True),
        ("a.png", False),
        ("images/a.jsonl", False),
        ("my-images/a.png", False),
        ("images/a.png.jsonl", False),
    ],
)
def test_pictures_and_sounds_in_their_folders_are_no_uploads(path, is_one):
    assert names.is_attachment(path) is is_one
    assert names.is_upload(names.INBOX + path) is not is_one

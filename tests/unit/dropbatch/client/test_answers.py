"""An answer is the same in every dialect: its text without thoughts, its vector, how it ended."""

import csv
import io
import json
import pickle

import pytest

from dropbatch.client.client import Client
from dropbatch.client.job import Job, JobOptions
from dropbatch.client.records import Record, records_of
from dropbatch.client.stack import Stack
from dropbatch.core.formats.answers import flaw_of, json_in, read_answer
from dropbatch.core.formats.base import BatchFacts, Outcome
from dropbatch.core.formats.table import Form, writer_of
from dropbatch.core.options import OPTIONS
from dropbatch.errors import JobFailed
from tests.support.converted import BGE, LLAMA, target_of

CHAT = [{"role": "user", "content": "x"}]
RECORDS = {
    "native": {"messages": CHAT},
    "openai chat": {"custom_id": "a", "url": "/v1/chat/completions", "body": {"messages": CHAT}},
    "openai text": {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}},
    "openai responses": {"custom_id": "a", "url": "/v1/responses", "body": {"input": "x"}},
    "anthropic": {"custom_id": "a", "params": {"messages": CHAT}},
    "bedrock claude": {"modelInput": {"messages": CHAT, "anthropic_version": "b"}},
    "bedrock converse": {"modelInput": {"messages": CHAT, "inferenceConfig": {}}},
    "bedrock chat": {"modelInput": {"messages": CHAT}},
    "bedrock titan": {"modelInput": {"inputText": "x"}},
    "bedrock llama": {"modelInput": {"prompt": "x", "max_gen_len": 5}},
    "bedrock mistral": {"modelInput": {"prompt": "x", "max_tokens": 5}},
    "csv": None,
}
EMBEDDINGS_OF_OPENAI = {"custom_id": "a", "url": "/v1/embeddings", "body": {"input": "x"}}
EMBEDDINGS = {
    "native": {"text": "x"},
    "openai": EMBEDDINGS_OF_OPENAI,
    "openai base64": {**EMBEDDINGS_OF_OPENAI, "body": {"input": "x", "encoding_format": "base64"}},
    "bedrock titan": {"modelInput": {"inputText": "x"}},
    "bedrock cohere": {"modelInput": {"texts": ["x"]}},
    "bedrock cohere by type": {"modelInput": {"texts": ["x"], "embedding_types": ["float"]}},
    "csv": None,
}


def record_of(name, line, result, model=LLAMA):
    """The record that the library reads from the line of an answer."""
    format_ = name.partition(" ")[0]
    form = Form(format_, b"text" if format_ == "csv" else b"")
    body = b"x" if line is None else json.dumps(line).encode()
    answer = json.dumps(result).encode()
    written = b'{"id":0,"success":true,"result":%b}\n' % answer
    if writer := writer_of(form, target_of(model)):
        written = writer.line(BatchFacts("j", model), Outcome(0, b"null", body, answer))
    opening = form.columns.added_header() if format_ == "csv" else b""
    (record,) = records_of([opening + written], [], format_)
    return record


def chat(content, finish="stop", **more):
    message = {"role": "assistant", "content": content, **more}
    return {"choices": [{"message": message, "finish_reason": finish}]}


def test_text_and_ending_are_the_same_in_every_dialect(subtests):
    for name, line in RECORDS.items():
        with subtests.test(name):
            good = record_of(name, line, chat("<think>hm</think>\n\nGood day"))
            assert (good.text, good.finish_reason, good.flaw) == ("Good day", "stop", None)
            assert type(good.result) is dict
            cut = record_of(name, line, chat("Good d", "length"))
            found = cut.text, cut.finish_reason, cut.flaw.code, cut.success
            assert found == ("Good d", "length", "truncated_answer", True)
            none = record_of(name, line, chat(None, "length", reasoning_content="hm"))
            assert (none.text, none.flaw.code) == ("", "empty_answer")
            assert "Raise max_tokens" in none.flaw.message


def test_vector_is_the_same_in_every_dialect(subtests):
    for name, line in EMBEDDINGS.items():
        with subtests.test(name):
            record = record_of(name, line, {"shape": [1, 2], "data": [[0.5, -1.25]]}, BGE)
            assert (record.embedding, record.flaw) == ([0.5, -1.25], None)
            assert type(record.result) is dict


def test_calls_are_an_answer_in_every_dialect(subtests):
    call = {"id": "c", "type": "function", "function": {"name": "tide", "arguments": '{"at":1}'}}
    for name in ("native", "openai chat", "anthropic", "bedrock claude", "bedrock converse", "csv"):
        with subtests.test(name):
            record = record_of(name, RECORDS[name], chat(None, "tool_calls", tool_calls=[call]))
            assert json.loads(record.text) == [{"name": "tide", "arguments": {"at": 1}}]
            assert record.flaw is None


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"response": "Hi"}, ""),
        ({"response": None}, "empty_answer"),
        ({"response": " \n"}, "empty_answer"),
        ({"translated_text": ""}, "empty_answer"),
        ({"response": "<think>hm"}, "empty_answer"),
        ({"response": "hm</think>"}, "empty_answer"),
        ({"response": "use <think> and </think> so"}, ""),
        ({"response": '{"a": 1}'}, ""),
        ({"response": '{"a": "b'}, "truncated_answer"),
        ({"response": '```json\n{"a": "b'}, "truncated_answer"),
        ({"response": "[Note: not JSON"}, ""),
        ({"response": {"a": 1}}, ""),
        ({"response": [{"id": 0, "score": 1.0}]}, ""),
        ({"shape": [1, 1], "data": [[1]]}, ""),
        ([{"label": "x", "score": 1.0}], ""),
        ({"audio": "AAAA"}, ""),
        ({"output": [], "status": "incomplete"}, "empty_answer"),
    ],
)
def test_answer_that_is_none_has_a_code(result, code):
    assert flaw_of(read_answer(json.dumps(result).encode()))[0] == code


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1}',
        '<think>{"a":2}</think>\n{"a":1}',
        '```json\n{"a":1}\n```',
        'Here it is:\n```\n{"a":1}\n```\nDone.',
    ],
)
def test_json_is_read_past_thoughts_and_fences(text):
    assert json_in(text) == '{"a":1}'
    form = Form("csv", b"text", answers=("a",))
    answer = json.dumps({"response": text}).encode()
    line = writer_of(form, target_of(LLAMA)).line(
        BatchFacts("j", LLAMA), Outcome(0, b"null", b"x", answer)
    )
    (row,) = csv.reader(io.StringIO(line.decode(), newline=""))
    assert row[2:] == ["1", "", "", ""]


def test_repr_is_one_line():
    stack = Stack("dropbatch", "bucket", {"BucketName": "bucket"}, None)
    job = Job.at(stack, "a.jsonl", "20261121T093000Z-00000000")
    client = object.__new__(Client)
    client.stack = stack
    record = Record(3, "r", success=True, result={"response": "a\nb" * 200}, error=None)
    for one in (stack, job, client, record):
        assert "\n" not in repr(one)
        assert len(repr(one)) < 120
    assert repr(record).startswith("<Record 3 'r' 'a\\nb")


def test_stack_and_failure_can_be_pickled():
    stack = Stack("dropbatch", "bucket", {"BucketName": "bucket"}, print)
    job = Job.at(stack, "a.jsonl", "20261121T093000Z-00000000")
    error = pickle.loads(pickle.dumps(JobFailed("It failed.", job, {"code": "x", "message": "y"})))
    assert (str(error), error.job, error.error["code"]) == ("It failed.", job, "x")
    assert error.job.stack.bucket == "bucket"


def test_type_checkers_know_every_option():
    assert JobOptions.__annotations__.keys() == OPTIONS.keys()

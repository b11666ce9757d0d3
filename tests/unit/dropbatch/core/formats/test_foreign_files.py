"""Files as people have them (tests/files/foreign.json), their requests and the answers' lines.

`python -m tests.unit.dropbatch.core.formats.test_foreign_files` writes what is expected anew.
"""

import json
from collections import Counter
from pathlib import Path

import pytest
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from dropbatch.core.formats.base import BatchFacts, Converted, Outcome
from dropbatch.core.formats.detect import Head, detect_format
from dropbatch.core.formats.table import FORMATS, Form, reader_of, writer_of
from dropbatch.core.formats.tables import TableWriter
from dropbatch.core.models import find_model
from dropbatch.core.plan import _delimiter, _elements, _first_row
from dropbatch.core.read.form import detect_form
from dropbatch.core.read.rows import read_rows
from local.workers_ai import Behaviour
from local.workers_ai.models.schemas import problem
from tests.support.converted import target_of
from tests.support.vendors import VENDORS, run

FILES = Path(__file__).parents[4] / "files"
TABLE = FILES / "foreign.json"
CASES = json.loads(TABLE.read_text("utf-8"))
MESSAGE = {"role": "assistant", "content": "Bad.", "reasoning_content": "hm"}
TOKEN = {"token": "Bad", "logprob": -0.5, "bytes": None, "top_logprobs": []}
CHOICE = {"index": 0, "message": MESSAGE, "logprobs": {"content": [TOKEN]}, "finish_reason": "stop"}
WORDS = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Bad."}]}
THOUGHT = {"type": "reasoning_text", "text": "hm"}
ANSWERS = {
    "embeddings": {"shape": [2, 2], "data": [[0.5, -0.25], [1, 0]]},
    "chat": {
        "id": "chatcmpl-1",
        "choices": [CHOICE],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 4,
            "total_tokens": 13,
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    },
    "input": {
        "id": "resp_1",
        "output": [{"type": "reasoning", "id": "rs_1", "content": [THOUGHT]}, WORDS],
        "usage": {"input_tokens": 9, "output_tokens": 4, "total_tokens": 13},
    },
    "text": {
        "response": "Bad.",
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    },
}
"""Answers of Workers AI, by what the model is."""


def answer_of(model):
    known = find_model(model)
    if known.task == "embeddings":
        return ANSWERS["embeddings"]
    if known.shape == "input":
        return ANSWERS["input"]
    return ANSWERS["chat" if known.schema in {"chat", "deepseek", "qwen3"} else "text"]


def read(name, content):
    """The form of a file, and its records."""
    form, start = detect_form(content, complete=True)
    elements = _elements(form, content[start:]) if form == "array" else None
    format_ = detect_format(f"inbox/{name}", Head(content, form=form, elements=elements))
    if elements:
        return Form(format_), [json.dumps(json.loads(one)).encode() for one in elements]
    if not FORMATS[format_].is_table:
        return Form(format_), content.splitlines()
    bom = b"\xef\xbb\xbf" if content.startswith(b"\xef\xbb\xbf") else b""
    content = content.removeprefix(bom)
    delimiter = _delimiter(format_, content)
    header, size, _ = _first_row(content, delimiter.encode())
    windows = read_rows([content[size:]], delimiter.encode())
    rows = [row for window in windows for row in window.records if row]
    return Form(format_, bom + header, delimiter), rows


def made_of(name, model, content):
    """What a file's records become: its format, requests or faults, and lines of answers."""
    form, records = read(name, content.encode())
    target = target_of(model)
    facts = BatchFacts("20261121T093000Z-5f3a9c1e", model, "req-1", 1_795_253_400)
    writer, converted = writer_of(form, target), reader_of(form, target).convert(records)
    made = []
    for id_, (record, one) in enumerate(zip(records, converted, strict=True)):
        if isinstance(one, Converted):
            outcome = Outcome(id_, one.reference, record, json.dumps(answer_of(model)).encode())
            shown = {"request": json.loads(one.request)}
        else:
            outcome = Outcome(id_, one.reference, record, None, one.code, one.message)
            shown = {"fault": [one.code, one.message]}
        line = writer.line(facts, outcome) if writer else None
        if line is not None:
            shown["line"] = line.decode() if isinstance(writer, TableWriter) else json.loads(line)
        made.append(shown)
    return {"model": model, "content": content, "format": form.format, "records": made}


def test_files_records_become_what_is_expected(subtests):
    assert len(CASES) >= 40
    for name, wanted in CASES.items():
        with subtests.test(name):
            assert made_of(name, wanted["model"], wanted["content"]) == wanted


def test_each_request_fits_published_schema(subtests):
    for name, wanted in CASES.items():
        with subtests.test(name):
            for record in wanted["records"]:
                if "request" in record:
                    assert problem(wanted["model"], record["request"], "", Behaviour()) is None


def records_of(format_):
    files = [one["records"] for one in CASES.values() if one["format"] == format_]
    return [record for records in files for record in records]


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
    read = run("vendors_types.py", FILES / "vendors.json", TABLE, python=VENDORS)

    requests = Counter()
    for name, lines in json.loads((FILES / "vendors.json").read_text("utf-8")).items():
        requests[name.partition("-")[0]] += len(lines)
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


if __name__ == "__main__":
    made = {name: made_of(name, one["model"], one["content"]) for name, one in CASES.items()}
    TABLE.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8")

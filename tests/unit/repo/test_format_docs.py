"""The examples of docs/formats.md are real."""

import json
import re
from pathlib import Path

from dropbatch.core.formats.base import BatchFacts, Outcome
from dropbatch.core.formats.table import Form, file_names, reader_of, writer_of
from dropbatch.core.read.rows import read_rows
from tests.support.converted import target_of

PAGE = (Path(__file__).parents[3] / "docs" / "formats.md").read_text("utf-8")
MODEL = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
FACTS = BatchFacts("20261121T093000Z-5f3a9c1e", MODEL, "768f15b7", 1_795_253_400)
USAGE = {"prompt_tokens": 14, "completion_tokens": 6, "total_tokens": 20}


def shown(section, kind):
    """The examples of a section, as bytes."""
    _, _, text = PAGE.partition(f"\n## {section}\n")
    text = text.partition("\n## ")[0]
    return [one.encode() for one in re.findall(rf"```{kind}\n(.*?\n)```", text, re.DOTALL)]


def answer(text, finish=None):
    said = {"finish_reason": finish} if finish else {}
    return json.dumps({"response": text, "usage": USAGE} | said).encode()


def test_openais_examples_are_real():
    record, request, line, refused = shown("openai", "json")
    form, target = Form("openai"), target_of(MODEL)
    (converted,) = reader_of(form, target).convert([record.strip()])
    assert converted.request + b"\n" == request
    writer = writer_of(form, target)
    assert (
        writer.line(FACTS, Outcome(0, b"null", record.strip(), answer("Good day, harbour.")))
        == line
    )
    bad = b'{"custom_id":"request-2","body":{"messages":[],"n":2}}'
    (fault,) = reader_of(form, target).convert([bad])
    assert (
        writer.line(FACTS, Outcome(1, b"null", bad, None, fault.code, f"Line 2: {fault.message}"))
        == refused
    )


def test_bedrocks_examples_are_real():
    record, line = shown("bedrock", "json")
    writer = writer_of(Form("bedrock"), target_of(MODEL))
    assert (
        writer.line(FACTS, Outcome(0, b"null", record.strip(), answer("Good day, harbour.")))
        == line
    )


def test_tables_examples_are_real():
    table, output = shown("csv and tsv", "csv")
    header, *rows = [row for window in read_rows([table], b",") for row in window.records]
    form = Form("csv", header)
    writer = writer_of(form, target_of(MODEL))
    answers = [answer("Good day, harbour.", "stop"), answer("1 2", "length")]
    lines = [
        writer.line(FACTS, Outcome(id_, b"null", row, given))
        for id_, (row, given) in enumerate(zip(rows, answers, strict=True))
    ]
    assert file_names(form, "inbox/a.csv").output_opening + b"".join(lines) == output

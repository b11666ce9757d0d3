"""`python -m bench.formats`: compares splitting and joining of each format with native records; writes formats.md."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.timing import ratio, take_turns
from dropbatch.formats.base import BatchFacts
from dropbatch.formats.registry import Form, describer_of, reader_of, target_of, writer_of
from dropbatch.records.convert import cut_converted
from dropbatch.records.cut import Cut, cut
from dropbatch.records.plan import Checkpoint, SplitPlan
from dropbatch.records.reading import RANGE_BYTES
from functions.poll.batch.join import Answered, join, sort_answers
from functions.poll.batch.join_originals import Originals, join_originals
from shared.workers_ai.results import parse_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MODEL = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
TEXT = "The ferry leaves at noon, and the harbour is quiet. " * 20
FACTS = BatchFacts("20261121T093000Z-5f3a9c1e", MODEL, "request", 1_795_253_400.0)
MESSAGES = [{"role": "user", "content": TEXT}]
RECORDS: dict[str, Callable[[int], str]] = {
    "native": lambda n: json.dumps({"messages": MESSAGES, "external_reference": f"r{n}"}),
    "openai": lambda n: json.dumps(
        {"custom_id": f"r{n}", "url": "/v1/chat/completions", "body": {"messages": MESSAGES}}
    ),
    "anthropic": lambda n: json.dumps({"custom_id": f"r{n}", "params": {"messages": MESSAGES, "max_tokens": 100}}),
    "gemini": lambda n: json.dumps(
        {"key": f"r{n}", "request": {"contents": [{"role": "user", "parts": [{"text": TEXT}]}]}}
    ),
    "bedrock": lambda n: json.dumps({"recordId": f"r{n}", "modelInput": {"messages": MESSAGES, "max_tokens": 100}}),
    "csv": lambda n: f'r{n},"{TEXT}"',
    "tsv": lambda n: f"r{n}\t{TEXT}",
    "text": lambda n: f"{n} {TEXT}",
}
HEADERS = {"csv": b"id,text", "tsv": b"id\ttext"}
WRITTEN = Path(__file__).with_name("formats.md")
INTRODUCTION = """\
# Formats compared with native records

Written by `python -m bench.formats`; do not edit. CPU time relative to native records: the median of rounds that take
turns in one process, with the minimum and the maximum in brackets. A record is a text of about 1 KB, answered with a
short text. S3 is not included.

*Split* reads the upload and stages its batches. *Join* reads a reply and creates the lines of the output. A native
record passes through as bytes; a record in another format is decoded and encoded again in both directions.

| format | split, times native | join, times native |
| --- | --- | --- |
"""


def cuts(format_: str, content: bytes) -> Iterator[Cut | Checkpoint]:
    """The batches of an upload."""
    form = "rows" if format_ in HEADERS else "jsonl"
    plan = SplitPlan(MODEL, 5_000, 9_500_000, "a", form, "plain", 0, 500, format_, 0, format_ != "native")
    blocks = (content[at : at + RANGE_BYTES] for at in range(0, len(content), RANGE_BYTES))
    if not plan.converts:
        return cut(plan, Checkpoint(), 0, blocks)
    reader = reader_of(Form(format_, HEADERS.get(format_, b"")), target_of(MODEL))
    return cut_converted(plan, Checkpoint(), 0, blocks, reader)


def count(format_: str, content: bytes) -> int:
    """Number of records of an upload that can be sent."""
    return sum(one.sendable for one in cuts(format_, content) if isinstance(one, Cut))


def lines(format_: str, one: Cut, reply: bytes) -> int:
    """Size of a batch's output in bytes."""
    answers = sort_answers(parse_answer(reply), one.rows.references_sent())
    if format_ == "native":
        return sum(map(len, join(Answered(one.rows, 0, answers), lambda _: b"")))
    form = Form(format_, HEADERS.get(format_, b""))
    originals, writer = Originals(one.originals, describer_of(form)), writer_of(form, target_of(MODEL))
    write = partial(writer.line, FACTS) if writer else None
    return sum(map(len, join_originals(Answered(one.rows, 0, answers), originals, write)))


def main(records: int = 20_000, rounds: int = 5) -> None:
    """Write the table: the CPU time of each format as a ratio to native records."""
    reading: dict[str, Callable[[], object]] = {}
    joining: dict[str, Callable[[], object]] = {}
    for name, record in RECORDS.items():
        content = "".join(f"{record(number)}\n" for number in range(records)).encode()
        reading[name] = partial(count, name, content)
        one = next(cuts(name, content))
        assert isinstance(one, Cut)
        result = {"response": "It does.", "usage": {"prompt_tokens": 250, "completion_tokens": 4, "total_tokens": 254}}
        items = [{"id": place, "success": True, "result": result} for place in range(one.sendable)]
        joining[name] = partial(lines, name, one, json.dumps({"responses": items}).encode())
    read, joined = take_turns(reading, rounds), take_turns(joining, rounds * 4)
    rows = [
        f"| `{name}` | {ratio(read, name, 'native').text()} | {ratio(joined, name, 'native').text()} |\n"
        for name in RECORDS
        if name != "native"
    ]
    WRITTEN.write_text(INTRODUCTION + "".join(rows))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

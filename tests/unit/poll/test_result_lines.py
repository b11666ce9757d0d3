"""Every line of a result file survives its readers, and half of a surrogate pair."""

import csv
import io
import json
import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import IO, Any, NamedTuple

import httpx
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.formats.table import FORMATS, Form, file_names, reader_of
from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint, SplitPlan
from dropbatch.core.read.cut import read_batches
from functions.poll.collect import StoredReply, collect
from shared import keys
from shared.models import Batch, BatchState, Job, Records, Upload
from shared.staged_batch import encode_index
from shared.workers_ai.results import parse_answer
from tests.support import vendors
from tests.support.converted import LLAMA, target_of
from tests.support.examples import examples

JOB = "20261121T093000Z-5f3a9c1e"


class ResultFiles(NamedTuple):
    """The content of an upload's result files."""

    output: bytes
    errors: bytes
    retry: bytes


def result_files(
    format_: str, header: bytes, content: bytes, model: str, answer: Callable[[Any], Any]
) -> ResultFiles:
    """What a job of one upload leaves, if `answer` gives the members of each request's item."""
    form, is_table = Form(format_, header), FORMATS[format_].is_table
    shape = "rows" if is_table else "jsonl"
    delimiter, converts = FORMATS[format_].delimiter.decode(), format_ != "native"
    plan = SplitPlan(model, 500, 9_500_000, "a", shape, "plain", format=format_)
    plan = replace(plan, converts=converts, delimiter=delimiter)
    upload = Upload("b", "inbox/a", "v", "e", 1)
    known = {"job_id": JOB, "created_at": 0.0}
    job = Job(**known, state=JobState.IN_PROGRESS, upload=upload, plan=plan, lease_until=1.0)
    reader = reader_of(form, target_of(model)) if plan.converts else None
    store = _Store({keys.header(JOB): header})
    services: Any = SimpleNamespace(
        store=store, ledger=SimpleNamespace(finish_batch=lambda batch, *_: batch), now=lambda: 0.0
    )
    for cut in read_batches(plan, Checkpoint(line=int(is_table)), 0, [content], reader):
        records = Records(
            first_id=cut.first_id,
            requests=len(cut.rows),
            sendable=cut.sendable,
            body_size=len(cut.body),
            originals_size=len(cut.originals),
        )
        # It is submitted no more, whatever fails.
        number = f"{len(store.parts):08d}"
        batch = Batch(**known, number=number, state=BatchState.QUEUED, records=records, given_up=3)
        store.objects[keys.staged(JOB, batch.number)] = (
            cut.body + cut.originals + encode_index(cut.rows)
        )
        requests = json.loads(cut.body)["requests"] if cut.body else []
        items = [
            {"id": id_, "external_reference": one.get("external_reference"), **answer(one)}
            for id_, one in enumerate(requests)
        ]
        reply = parse_answer(json.dumps({"responses": items}, ensure_ascii=False).encode())
        assert collect(services, job, batch, StoredReply("reply", reply))
    names = file_names(form, "inbox/a")
    openings = (names.output_opening, b"", names.retry_opening if is_table else b"")
    return ResultFiles(
        *(first + b"".join(part[at] for part in store.parts) for at, first in enumerate(openings))
    )


class _Store:
    """Staged objects to read, and parts to write."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.parts: list[tuple[bytes, ...]] = []

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self.objects[key][start : None if length is None else start + length]

    def put_if_absent(self, _key: str, spool: IO[bytes], metadata: dict[str, str]) -> bool:
        sizes = json.loads(metadata["part"])
        self.parts.append(tuple(spool.read(sizes[name]) for name in ("output", "errors", "retry")))
        return True


# ── half of a surrogate pair fails its record alone, in every format of JSON ──────────────────────
HALF = "cut \ud83d"
MESSAGE = {
    "native": "Line 2: messages[0].content: ",
    "objects": "Line 2: messages[0].content: ",
    "openai": "Line 2: body.messages[0].content: ",
    "anthropic": "Line 2: params.messages[0].content: ",
    "bedrock": "Line 2: modelInput.messages[0].content: ",
}


def record_of(format_, name, text):
    messages = [{"role": "user", "content": text}]
    chat = {"messages": messages, "max_tokens": 9}
    return {
        "native": {"messages": messages, "external_reference": name},
        "objects": {"messages": messages, "external_reference": name},
        "openai": {"custom_id": name, "url": "/v1/chat/completions", "body": chat},
        "anthropic": {"custom_id": name, "params": chat},
        "bedrock": {"recordId": name, "modelInput": chat},
    }[format_]


def files_of(format_, *records):
    content = b"".join(json.dumps(one).encode() + b"\r\n" for one in records)
    fine = {"success": True, "result": {"response": "fine"}}
    return result_files(format_, b"", content, LLAMA, lambda _: fine)


def test_every_format_of_json_is_here():
    assert set(MESSAGE) == {name for name, known in FORMATS.items() if known.is_json}


@pytest.mark.parametrize("format_", MESSAGE)
@pytest.mark.parametrize(("name", "kept"), [("b", "b"), (HALF, "cut \ufffd")])
def test_record_fails_alone_with_reference_and_retry(format_, name, kept):
    whole = [record_of(format_, one, "fine") for one in "ac"]
    broken = record_of(format_, name, HALF)

    output, errors, retry = files_of(format_, whole[0], broken, whole[1])

    lines = [json.loads(line) for line in output.splitlines()]
    assert len(lines) == 3
    (failed,) = [json.loads(line) for line in errors.splitlines()]
    assert (failed["id"], failed["external_reference"], failed["line"]) == (1, kept, 2)
    assert failed["error"]["code"] == "bad_record"
    assert r"half of a surrogate pair (\ud83d)" in failed["error"]["message"]
    if name == "b":
        assert failed["error"]["message"].startswith(MESSAGE[format_])
    assert json.loads(failed["request"]) == broken
    assert retry == json.dumps(broken).encode() + b"\n"
    for member in ("external_reference", "custom_id", "key", "recordId"):
        assert lines[1].get(member, kept) == kept
    assert b"\\ud83d" not in output.replace(rb"(\\ud83d)", b"")


@pytest.mark.parametrize(
    "written", [rb'{"text":"\ud83d"', rb'["\ud83d"]', rb'{"a":"\ud83d","b":nan}']
)
def test_record_that_is_no_object_without_it_is_unreadable(written):
    _, errors, retry = result_files("native", b"", written, LLAMA, lambda _: {})

    assert (json.loads(errors)["error"]["code"], retry) == ("invalid_json", b"")


def test_long_record_is_retried_whole():
    broken = record_of("native", "b", HALF + "x" * 1_000_000)

    _, _, retry = files_of("native", broken)

    assert retry == json.dumps(broken).encode() + b"\n"


# ── every line of a result file survives the readers that people use ──────────────────────────────
BREAKS = "\x85\u2028\u2029\x0b\x0c\x1c\x1d\x1e\x1f"
"""What `str.splitlines` takes for the end of a line besides LF and CR, and one that it does not."""
FAILS = "fails"

letters = st.sampled_from([*BREAKS, *'ab \n\r\t"\\,é']) | st.characters(codec="utf-8")
texts = st.lists(letters, max_size=9).map("".join)
JSON_LINES = sorted(name for name, known in FORMATS.items() if not known.delimiter)
TABLES = sorted(FORMATS.keys() - JSON_LINES)


def answer_of(request):
    """An answer that repeats the text, or a failure that quotes it."""
    text = request["prompt"] if "prompt" in request else request["messages"][-1]["content"]
    if text.startswith(FAILS):
        return {"success": False, "error": {"code": 5006, "message": f"bad: {text}"}}
    return {"success": True, "result": {"response": text}}


def files_with(format_, written):
    """The result files of records with these texts: rows, lines, or JSON that escapes nothing."""
    if format_ == "text":
        content = "".join(f"{text}\n" for text in written).encode()
    elif format_ in TABLES:
        rows = io.StringIO(newline="")
        form = {"quoting": csv.QUOTE_ALL, "lineterminator": "\n"}
        delimiter = FORMATS[format_].delimiter.decode()
        csv.writer(rows, delimiter=delimiter, **form).writerows(enumerate(written))
        content = rows.getvalue().encode()
    else:
        lines = (json.dumps(record_of(format_, text, text), ensure_ascii=False) for text in written)
        content = "".join(f"{line}\n" for line in lines).encode()
    header = FORMATS[format_].delimiter.join([b"id", b"text"]) if format_ in TABLES else b""
    return result_files(format_, header, content, LLAMA, answer_of)


def lines_of_response(content, size=7):
    """As OpenAI's users read a file: `client.files.content(…).iter_lines()`."""
    blocks = (content[at : at + size] for at in range(0, len(content), size))
    return [line for line in httpx.Response(200, content=blocks).iter_lines() if line]


JSON_READERS = {
    "splitlines": lambda content: map(json.loads, content.decode().splitlines()),
    "iter_lines": lambda content: map(json.loads, lines_of_response(content)),
    "open": lambda content: map(json.loads, io.TextIOWrapper(io.BytesIO(content), "utf-8")),
    "pandas": lambda content: pd.read_json(io.BytesIO(content), lines=True, dtype=False).to_dict(
        "records"
    ),
    "polars": lambda content: pl.read_ndjson(content, infer_schema_length=None).to_dicts(),
}


@pytest.mark.parametrize("format_", JSON_LINES)
@examples(40)
@given(written=st.lists(st.tuples(st.booleans(), texts), min_size=1, max_size=5))
def test_json_lines_survive_every_reader(format_, written):
    whole = [f"{FAILS if fails else 'says '}{text}." for fails, text in written]
    if format_ == "text":
        whole = [text.replace("\n", " ").replace("\r", " ") for text in whole]

    output, errors, _ = files_with(format_, whole)

    for content, count in ((output, len(whole)), (errors, sum(fails for fails, _ in written))):
        lines = [json.loads(line) for line in content.split(b"\n") if line]
        assert len(lines) == count
        for name, read in JSON_READERS.items() if count else ():
            found = list(read(content))
            assert len(found) == count, name
            if name in {"splitlines", "iter_lines", "open"}:
                assert found == lines, name
    if format_ == "native":
        assert [line["external_reference"] for line in JSON_READERS["splitlines"](output)] == whole


@pytest.mark.parametrize("format_", TABLES)
@examples(40)
@given(written=st.lists(st.tuples(st.booleans(), texts), min_size=1, max_size=5))
def test_rows_survive_every_reader(format_, written):
    whole = [f"{FAILS if fails else 'says '}{text}." for fails, text in written]
    delimiter = FORMATS[format_].delimiter.decode()

    output, errors, _ = files_with(format_, whole)

    answers = ["" if text.startswith(FAILS) else text for text in whole]
    rows = list(csv.DictReader(io.StringIO(output.decode(), newline=""), delimiter=delimiter))
    frame = pd.read_csv(
        io.BytesIO(output), sep=delimiter, dtype=str, keep_default_na=False, lineterminator="\n"
    )
    table = pl.read_csv(output, separator=delimiter, infer_schema=False).fill_null("")
    for found in (rows, frame.to_dict("records"), table.to_dicts()):
        assert [row["text"] for row in found] == whole
        assert [row["answer"] for row in found] == answers
    assert len(list(JSON_READERS["splitlines"](errors))) == answers.count("")


def some_texts(format_, count):
    """Texts with every odd letter; each third fails."""
    dice = random.Random("readers")
    odd = map(chr, (0x7F, 0x80, 0xA0, 0xFEFF, 0xFFFD, 0x1F600, 0x10FFFF))
    letters = [*BREAKS, *'ab \n\r\t"\\,é', *odd]
    words = ["".join(dice.choices(letters, k=dice.randrange(9))) for _ in range(count)]
    whole = [f"{'says' if number % 3 else FAILS} {word}." for number, word in enumerate(words)]
    if format_ != "text":
        return whole
    return [text.replace("\n", " ").replace("\r", " ") for text in whole]


@pytest.mark.slow
def test_duckdb_and_jq_read_every_file(tmp_path):
    expected = {}
    for format_ in sorted(FORMATS):
        whole = some_texts(format_, 300)
        output, errors, _ = files_with(format_, whole)
        for kind, content in (("output", output), ("errors", errors)):
            is_table = format_ in TABLES and kind == "output"
            name = f"{format_}.{kind}.{format_ if is_table else 'jsonl'}"
            (tmp_path / name).write_bytes(content)
            lines = [] if is_table else [json.loads(one) for one in content.split(b"\n") if one]
            expected[name] = whole if is_table else lines

    found = vendors.run("readers_read.py", tmp_path)

    assert found.keys() == expected.keys()
    for name, readers in found.items():
        for reader, lines in readers.items():
            assert lines == expected[name], (name, reader)


@pytest.mark.slow
@pytest.mark.parametrize("format_", ["openai", "anthropic"])
def test_vendors_own_types_take_every_line(format_):
    """OpenAI has none for the lines of failures."""
    whole = some_texts(format_, 100)

    output, _, _ = files_with(format_, whole)

    read = vendors.vendors_read(format_, JSON_READERS["splitlines"](output))
    answered = [text for text in whole if not text.startswith(FAILS)]
    assert sum(read.values()) == len(answered if format_ == "openai" else whole), read

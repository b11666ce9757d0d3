"""The cut and the join of converted formats: as many lines out as records in, in order."""

import csv
import io
import json
import time
from functools import partial
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core.formats.base import BatchFacts
from dropbatch.core.formats.table import FORMATS, Form, describer_of, reader_of, writer_of
from dropbatch.core.plan import Checkpoint, SplitPlan
from dropbatch.core.read.cut import read_batches
from dropbatch.core.read.index import record_spans
from dropbatch.errors import UploadRefused
from functions.poll.join import Answered, Originals, join_originals, sort_answers
from shared.staged_batch import decode_index, encode_index, original_spans
from shared.workers_ai.results import parse_answer
from tests.support.converted import target_of
from tests.support.examples import examples
from tests.support.uploads import in_blocks

BGE, LLAMA = "@cf/baai/bge-m3", "@cf/meta/llama-3.3-70b-instruct-fp8-fast"
FACTS = BatchFacts("20261121T093000Z-5f3a9c1e", BGE, "request", 1_795_253_400.0)

texts = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="\x00"), max_size=12
)
sizes = st.tuples(st.integers(1, 5), st.integers(60, 400))


def plan_of(format_, size, start=0, lines=0, form="jsonl"):
    known = {"format": format_, "delimiter": FORMATS[format_].delimiter.decode()}
    return SplitPlan(
        "m", *size, "a", form, "plain", start, start_line=lines, converts=True, **known
    )


def cuts_of(plan, data, reader, block):
    """All batches; each again from where the one before it ends, as a later turn would cut it."""

    def read(place, number=0):
        return read_batches(plan, place, number, in_blocks(data[place.offset :], block), reader)

    cuts = list(read(Checkpoint(plan.start, plan.start_line)))
    for number, (before, after) in enumerate(pairwise(cuts), 1):
        again = next(read(before.end, number))
        assert (again.body, again.originals, again.end) == (after.body, after.originals, after.end)
    return cuts


def lines_of(cuts, form, model, fails=lambda _: False):
    """Output, errors and retry lines of all batches."""
    output, errors, retry = [], [], []
    for one in cuts:
        rows = decode_index(encode_index(one.rows))
        spans = [span for span in record_spans(rows) if span[1]]
        sent = [one.body[start : start + length] for start, length in spans]
        assert one.body == (b'{"requests":[%b]}' % b",".join(sent) if sent else b"")
        answer = {"result": {"response": 'a, "b"\nc'}, "success": True}
        refused = {"success": False, "error": "refused"}
        items = [
            {"id": place, **(refused if fails(request) else answer)}
            for place, request in enumerate(sent)
        ]
        reply = json.dumps({"responses": items}).encode()
        answers = sort_answers(parse_answer(reply), rows.references_sent())
        originals = Originals(one.originals, describer_of(form))
        writer = writer_of(form, target_of(model))
        write = partial(writer.line, FACTS) if writer else None
        for line in join_originals(Answered(rows, one.first_id, answers), originals, write):
            if isinstance(line, bytes):
                output.append(line)
            else:
                output.append(line.output)
                errors.append(msgspec.json.decode(line.error))
                retry += [line.retry] if line.retry else []
    return output, errors, retry


def check_batches(plan, cuts):
    """Each keeps to its limits, unless it is a record that travels alone."""
    place = 0
    for one in cuts:
        rows = one.rows
        assert one.first_id == place
        place += len(rows)
        assert len(rows) <= plan.max_requests
        assert len(rows) == 1 or max(len(one.originals), len(one.body)) <= plan.max_bytes
        assert sum(length for _, length in original_spans(rows)) == len(one.originals)
    return place


fields = st.one_of(
    texts, st.sampled_from(['"', 'a"b', "a,b", "a\nb", "a\r\nb", ",", "", " x ", "ß" * 40])
)


@st.composite
def tables(draw):
    """Bytes of a table's rows, the rows that a reader finds, and which of them are ragged."""
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    rows = draw(st.lists(st.lists(fields, min_size=1, max_size=4), max_size=9))
    content = io.StringIO(newline="")
    for row in rows:
        quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        csv.writer(content, lineterminator=ending, quoting=quoting).writerow(row)
        content.write(draw(st.sampled_from(["", "", ending])))
    return content.getvalue().encode(), rows


@examples(60)
@given(table=tables(), size=sizes, block=st.integers(1, 40), bom=st.booleans(), data=st.data())
def test_any_table_comes_back_and_can_be_cut_again(table, size, block, bom, data):
    content, rows = table
    head = b"\xef\xbb\xbf" * bom + b"id,text\n"
    form, target = Form("csv", b"id,text"), target_of(BGE)
    plan = plan_of("csv", size, len(head), 1, "rows")
    failing = {row[1] for row in rows if len(row) == 2 and (not row[1] or data.draw(st.booleans()))}

    cuts = cuts_of(plan, head + content, reader_of(form, target), block)
    output, errors, retry = lines_of(
        cuts, form, BGE, lambda request: msgspec.json.decode(request)["text"] in failing
    )

    assert check_batches(plan, cuts) == len(output) == len(rows)
    found = list(csv.reader(io.StringIO(b"".join(output).decode(), newline="")))
    assert [len(row) for row in found] == [6] * len(rows)
    for row, wanted in zip(found, rows, strict=True):
        assert row[:2] == [*wanted, "", ""][:2]
        failed = len(wanted) != 2 or wanted[1] in failing
        assert (row[4] != "") == failed
        assert row[2] == ("" if failed else 'a, "b"\nc')
    bad = [row for row in rows if len(row) != 2 or row[1] in failing]
    assert len(errors) == len(bad)
    again = list(csv.reader(io.StringIO(b"".join(retry).decode(), newline="")))
    assert again == [row for row in bad if len(row) == 2 and row[1]], "those that can be sent"
    assert all(line.removesuffix(b"\n") in content for line in retry)


def openai_record(text):
    return {"custom_id": text, "body": {"messages": [{"role": "user", "content": text}]}}


def bedrock_record(text):
    return {"recordId": text, "modelInput": {"prompt": text, "max_gen_len": 7}}


odd_lines = ["", "  ", "nonsense", "[]", "{", '{"custom_id":1,"body":{}}', '{"body":{"n":2}}']
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
)
lines = st.one_of(
    texts.map(openai_record).map(json.dumps),
    texts.map(openai_record).map(partial(json.dumps, ensure_ascii=False)),
    texts.map(bedrock_record).map(json.dumps),
    any_json.map(json.dumps),
    st.sampled_from(odd_lines),
)


@pytest.mark.parametrize(
    "format_", sorted(name for name, known in FORMATS.items() if known.is_json)
)
@examples(60)
@given(upload=st.lists(lines, max_size=9), size=sizes, block=st.integers(1, 60), crlf=st.booleans())
def test_any_json_lines_come_back_byte_for_byte(format_, upload, size, block, crlf):
    content = ("\r\n" if crlf else "\n").join(upload).encode()
    form = Form(format_)
    reader = reader_of(form, target_of(LLAMA, defaults={"top_k": msgspec.Raw(b"3")}))
    plan = plan_of(format_, size)

    cuts = cuts_of(plan, content, reader, block)
    output, errors, retry = lines_of(cuts, form, LLAMA, lambda request: len(request) % 3 == 0)

    records = [line for line in upload if line.strip(" \t\r")]
    assert check_batches(plan, cuts) == len(output) == len(records)
    assert all(isinstance(msgspec.json.decode(line), dict) for line in output)
    if format_ == "openai":
        ids = [msgspec.json.decode(line)["id"] for line in output]
        assert ids == [f"batch_req_{FACTS.job_id}_{number}" for number in range(len(records))]
    again = [one for one in errors if one["error"]["code"] != "bad_record"]
    ids = [one["id"] for one in again if isinstance(one["request"], dict)]
    assert retry == [records[id_].encode() + b"\n" for id_ in ids]
    assert [one["line"] for one in errors] == sorted(one["line"] for one in errors)


@examples(40)
@given(
    upload=st.lists(texts.filter(lambda text: "\n" not in text), max_size=9),
    size=sizes,
    block=st.integers(1, 40),
)
def test_any_text_has_line_for_each_nonblank(upload, size, block):
    form = Form("text")
    plan, reader = plan_of("text", size), reader_of(form, target_of(BGE, "to: {text}"))

    cuts = cuts_of(plan, "\n".join(upload).encode(), reader, block)
    output, _, retry = lines_of(cuts, form, BGE, lambda _: True)

    records = [text.removesuffix("\r").encode() for text in upload if text.strip(" \t\r")]
    assert check_batches(plan, cuts) == len(output) == len(records)
    assert retry == [record + b"\n" for record in records]


def test_rows_before_unclosed_quote_are_cut():
    plan = plan_of("csv", (10, 1_000), 0, 1, "rows")
    reader = reader_of(Form("csv", b"text"), target_of(BGE))
    with pytest.raises(UploadRefused, match="line 3") as caught:
        list(read_batches(plan, Checkpoint(0, 1), 0, [b'one\n"two'], reader))
    assert caught.value.code == "broken_document"


@pytest.mark.slow
def test_million_quoted_rows_use_flat_memory():
    row = b'7,"hello,\r\nthere"\r\n'
    blocks = (row * 1_000 for _ in range(1_000))
    plan = plan_of("csv", (5_000, 9_500_000), 0, 1, "rows")
    reader = reader_of(Form("csv", b"id,text"), target_of(BGE))

    total = sendable = 0
    for one in read_batches(plan, Checkpoint(0, 1), 0, blocks, reader):
        total, sendable = total + len(one.rows), sendable + one.sendable
        assert one.rows[len(one.rows) - 1].line == total * 2

    assert total == sendable == 1_000_000
    assert (one.end.offset, one.end.line) == (len(row) * 1_000_000, 2_000_001)


RECORD_OF = {
    "native": b'{"text":"a"}',
    "text": b"some text",
    "openai": b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"input":"x"}}',
    "csv": b'"a\nb"',
}


def cut_all(format_, data):
    form, delimiter = ("rows", ",") if format_ == "csv" else ("jsonl", "")
    plan = SplitPlan(BGE, 500, 9_500_000, "a", form, "plain", format=format_, delimiter=delimiter)
    known = Form(format_, b"text" if format_ == "csv" else b"")
    reader = reader_of(known, target_of(BGE)) if format_ != "native" else None
    return list(read_batches(plan, Checkpoint(), 0, in_blocks(data, 8 << 20), reader))


UNITS = {
    "LF": b"\n",
    "CRLF": b"\r\n",
    "space": b" \n",
    "tabs": b"\t\t\r\n",
    "a record now and then": b"\n" * 60_000 + b"%b\n",
}


@pytest.mark.parametrize(
    ("format_", "unit"),
    [
        *(("native", unit) for unit in UNITS),
        *(("text", "tabs"), ("openai", "CRLF"), ("csv", "LF"), ("csv", "a record now and then")),
    ],
)
def test_20_mb_of_blank_lines_take_under_a_second(format_, unit):
    unit = UNITS[unit].replace(b"%b", RECORD_OF[format_])
    data = unit * (20_000_000 // len(unit)) + RECORD_OF[format_]
    begun = time.process_time()

    found = cut_all(format_, data)

    assert time.process_time() - begun < 1
    last = found[-1]
    line = data.count(b"\n") + 1 - RECORD_OF[format_].count(b"\n")
    assert last.rows[len(last.rows) - 1].line == line
    assert last.end.offset >= len(data)

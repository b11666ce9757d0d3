"""The cut and the join of converted formats: as many lines out as records in, in order."""

import csv
import io
import json
from dataclasses import replace
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
    most, room = size
    plan = SplitPlan(
        "m", most, room, "a", form, "plain", start, format=format_, start_line=lines, converts=True
    )
    return replace(plan, delimiter=FORMATS[format_].delimiter.decode())


def cuts_of(plan, data, reader, block):
    """All batches; each again from where the one before it ends, as a later turn would cut it."""
    cuts = list(
        read_batches(
            plan,
            Checkpoint(plan.start, plan.start_line),
            0,
            in_blocks(data[plan.start :], block),
            reader,
        )
    )
    for number, (before, after) in enumerate(pairwise(cuts), 1):
        again = next(
            read_batches(
                plan, before.end, number, in_blocks(data[before.end.offset :], block), reader
            )
        )
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
        items = [
            {"id": place, "success": False, "error": "refused"}
            if fails(request)
            else {"id": place, "success": True, "result": {"response": 'a, "b"\nc'}}
            for place, request in enumerate(sent)
        ]
        answers = sort_answers(
            parse_answer(json.dumps({"responses": items}).encode()), rows.references_sent()
        )
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
        assert len(rows) == 1 or (
            len(one.originals) <= plan.max_bytes and len(one.body) <= plan.max_bytes
        )
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
        csv.writer(
            content,
            lineterminator=ending,
            quoting=draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
        ).writerow(row)
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


lines = st.one_of(
    texts.map(
        lambda text: json.dumps(
            {"custom_id": text, "body": {"messages": [{"role": "user", "content": text}]}}
        )
    ),
    texts.map(
        lambda text: json.dumps({"custom_id": "x", "body": {"messages": text}}, ensure_ascii=False)
    ),
    texts.map(
        lambda text: json.dumps(
            {"recordId": text, "modelInput": {"prompt": text, "max_gen_len": 7}}
        )
    ),
    st.recursive(
        st.none() | st.booleans() | st.integers() | texts,
        lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    ).map(json.dumps),
    st.sampled_from(
        ["", "  ", "nonsense", "[]", "{", '{"custom_id":1,"body":{}}', '{"body":{"n":2}}']
    ),
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
    again = [
        one
        for one in errors
        if isinstance(one["request"], dict) and one["error"]["code"] != "bad_record"
    ]
    assert retry == [records[one["id"]].encode() + b"\n" for one in again]
    assert [one["line"] for one in errors] == sorted(one["line"] for one in errors)


@examples(40)
@given(
    upload=st.lists(texts.filter(lambda text: "\n" not in text), max_size=9),
    size=sizes,
    block=st.integers(1, 40),
)
def test_any_text_has_line_for_each_nonblank(upload, size, block):
    form = Form("text")
    plan = plan_of("text", size)

    cuts = cuts_of(
        plan, "\n".join(upload).encode(), reader_of(form, target_of(BGE, "to: {text}")), block
    )
    output, _, retry = lines_of(cuts, form, BGE, lambda _: True)

    records = [text.removesuffix("\r").encode() for text in upload if text.strip(" \t\r")]
    assert check_batches(plan, cuts) == len(output) == len(records)
    assert retry == [record + b"\n" for record in records]


def test_rows_before_unclosed_quote_are_cut():
    plan = plan_of("csv", (10, 1_000), 0, 1, "rows")
    found = []
    with pytest.raises(UploadRefused, match="line 3") as caught:
        found += read_batches(
            plan,
            Checkpoint(0, 1),
            0,
            [b'one\n"two'],
            reader_of(Form("csv", b"text"), target_of(BGE)),
        )
    assert caught.value.code == "broken_document"


@pytest.mark.slow
def test_million_quoted_rows_use_flat_memory():
    row = b'7,"hello,\r\nthere"\r\n'
    blocks = (row * 1_000 for _ in range(1_000))
    plan = plan_of("csv", (5_000, 9_500_000), 0, 1, "rows")

    total = sendable = 0
    for one in read_batches(
        plan, Checkpoint(0, 1), 0, blocks, reader_of(Form("csv", b"id,text"), target_of(BGE))
    ):
        total, sendable = total + len(one.rows), sendable + one.sendable
        assert one.rows[len(one.rows) - 1].line == total * 2

    assert total == sendable == 1_000_000
    assert (one.end.offset, one.end.line) == (len(row) * 1_000_000, 2_000_001)

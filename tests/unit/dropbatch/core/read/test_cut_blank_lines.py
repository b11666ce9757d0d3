"""Blank lines: skipped without being decoded."""

import time

import pytest
from hypothesis import strategies as st

from dropbatch.core.formats.table import Form, reader_of
from dropbatch.core.plan import Checkpoint, SplitPlan
from dropbatch.core.read.cut import read_batches
from tests.support.converted import target_of
from tests.support.uploads import in_blocks

BGE = "@cf/baai/bge-m3"
FORMS = {"native": b"", "text": b"", "openai": b"", "csv": b"text"}
RECORDS = {
    "native": b'{"text":"a"}',
    "text": b"some text",
    "openai": b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"input":"x"}}',
    "csv": b'"a\nb"',
}


def cut_all(format_, data, *, block=8 << 20, start=None, number=0, most=500):
    form, delimiter = ("rows", ",") if format_ == "csv" else ("jsonl", "")
    plan = SplitPlan(BGE, most, 9_500_000, "a", form, "plain", format=format_, delimiter=delimiter)
    start = start or Checkpoint()
    blocks = in_blocks(data[start.offset :], block)
    reader = None
    if format_ != "native":
        reader = reader_of(Form(format_, FORMS[format_]), target_of(BGE))
    return list(read_batches(plan, start, number, blocks, reader))


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
        (format_, name)
        for format_ in FORMS
        for name in UNITS
        if format_ != "csv" or name not in {"space", "tabs"}
    ],
)
def test_20_mb_of_blank_lines_take_under_a_second(format_, unit):
    """In a table, a line of spaces is a row with a blank field."""
    unit = UNITS[unit].replace(b"%b", RECORDS[format_])
    data = unit * (20_000_000 // len(unit)) + RECORDS[format_]
    begun = time.process_time()

    found = cut_all(format_, data)

    assert time.process_time() - begun < 1
    last = found[-1]
    assert last.rows[len(last.rows) - 1].line == data.count(b"\n") + 1 - RECORDS[format_].count(
        b"\n"
    )
    assert last.end.offset >= len(data)


blank = st.sampled_from([b"", b"", b"\r", b" ", b" \t", b" " * 30])
stretches = st.tuples(blank, st.one_of(st.integers(0, 3), st.integers(0, 60)))


@st.composite
def uploads(draw, format_):
    """An upload with stretches of blank lines, and the line of each record."""
    lines = []
    for _ in range(draw(st.integers(0, 6))):
        line, times = draw(stretches)
        lines += [(line if format_ != "csv" else line.strip(b" \t")) for _ in range(times)]
        lines += [RECORDS[format_]] * draw(st.integers(0, 3))
    data = b"\n".join(lines)
    expected, line = [], 1
    for one in lines:
        expected += [line] if one.strip() else []
        line += 1 + one.count(b"\n")
    return data, expected

"""Blank lines: skipped without being decoded.

And a place among many of them is where a later turn may continue.
"""

import time
from itertools import groupby

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dropbatch.core.formats.table import Form, reader_of
from dropbatch.core.plan import Checkpoint, SplitPlan
from dropbatch.core.read import cut
from dropbatch.core.read.cut import Cut, read_batches
from tests.support.converted import target_of
from tests.support.uploads import in_blocks, seen, small_limits

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


def batches(found):
    return [one for one in found if isinstance(one, Cut)]


def lines_of(found):
    return [row.line for one in batches(found) for row in one.rows]


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
    last = batches(found)[-1]
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


@pytest.fixture(scope="module")
def small():
    with small_limits(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "MAX_BLANK_BYTES", 50)
        yield


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("format_", FORMS)
@given(data=st.data(), block=st.integers(1, 300), most=st.integers(1, 4))
def test_any_place_among_blanks_continues_alike(format_, data, block, most):
    content, lines = data.draw(uploads(format_))
    found = cut_all(format_, content, block=block, most=most)
    assert lines_of(found) == lines
    assert seen(batches(found)) == seen(batches(cut_all(format_, content, most=most)))
    for at, place in enumerate(found):
        if isinstance(place, Checkpoint):
            number = len(batches(found[:at]))
            again = cut_all(format_, content, block=block, start=place, number=number, most=most)
            assert seen(batches(again)) == seen(batches(found[at:]))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("format_", FORMS)
@pytest.mark.parametrize(("count", "ends"), [(49, [3]), (50, [1, 2])])
def test_batch_ends_before_long_blanks(format_, count, ends):
    record = RECORDS[format_] + b"\n"
    content = record + b"\n" * count + record + record
    for block in (7, 64, 1 << 20):
        found = cut_all(format_, content, block=block)
        assert [len(one.rows) for one in batches(found)] == ends


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("format_", FORMS)
def test_blanks_before_first_record_are_no_batch(format_):
    """The first batches are small, however many blank lines there are before them."""
    records = (RECORDS[format_] + b"\n") * 12
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dropbatch.core.read.cut.max_records", lambda _plan, number: number + 1)
        found = [cut_all(format_, b"\n" * blanks + records) for blanks in (0, 60, 900)]

    assert [[len(one.rows) for one in batches(cuts)] for cuts in found] == [[1, 2, 3, 4, 2]] * 3


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("format_", FORMS)
def test_each_place_lies_after_records_before_it(format_):
    record = RECORDS[format_] + b"\n"
    content = b"\n" * 200 + record + b"\n" * 200
    found = cut_all(format_, content, block=60)
    kinds = [(kind, len(list(ones))) for kind, ones in groupby(map(type, found))]
    assert [kind for kind, _ in kinds] == [Checkpoint, Cut, Checkpoint]
    places = [one for one in found if isinstance(one, Checkpoint)]
    assert {(place.offset <= 200, place.record) for place in places} == {(True, 0), (False, 1)}
    for place in places:
        assert content[: place.offset].count(b"\n") == place.line


@example(text=b" \n \n x\n")
@given(text=st.lists(st.sampled_from([b" ", b"\t", b"\r", b"\n", b"x"]), max_size=80).map(b"".join))
def test_indented_text_is_not_blank(text):
    expected = [at for at, line in enumerate(text.split(b"\n"), 1) if line.strip(b" \t\r")]
    for block in (1, 5, 1 << 20):
        assert lines_of(cut_all("text", text, block=block)) == expected

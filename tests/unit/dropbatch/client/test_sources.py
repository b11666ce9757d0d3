"""What can be submitted, as bytes: frames of every type of column, held in little memory."""

import csv
import io
import json
import os
import re
import tracemalloc
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from dropbatch.client.again import retry_path
from dropbatch.client.sources import CHUNK_BYTES, open_source
from dropbatch.client.validate import validate
from dropbatch.errors import Error, UsageError

ROWS = 80_000
TEXT = "x" * 300
AT = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)


def content(frame):
    return open_source(frame).stream.read().decode()


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (pa.array(["a", None, ""]), ['"a"', "", '""']),
        (pa.array(["a", None, "a"]).dictionary_encode(), ['"a"', "", '"a"']),
        (pa.array(["a", None], pa.string_view()), ['"a"', ""]),
        (pa.array(["a", None], pa.large_string()), ['"a"', ""]),
        (pa.array([1, None]), ["1", ""]),
        (pa.array([1.5, None]), ["1.5", ""]),
        (pa.array([True, None]), ["true", ""]),
        (pa.array([Decimal("1.50"), None]), ["1.50", ""]),
        (pa.array([AT, None], pa.timestamp("s", "UTC")), ["2026-11-21 09:30:00Z", ""]),
        (pa.array([None, None]), ["", ""]),
    ],
)
def test_cells_are_as_arrow_writes_them(column, cells):
    assert content(pa.table({"n": range(len(column)), "c": column})).split("\n")[1:-1] == [
        f"{number},{cell}" for number, cell in enumerate(cells)
    ]


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (["a", None, 3], "column text"),
        ([1, "a"], "column text"),
        ([1j, 2], "type complex"),
        ([2**70], "too large"),
        (["cut " + chr(0xD83D)], "surrogates not allowed"),
    ],
)
def test_frame_that_arrow_cannot_read_says_why(cells, says):
    frame = pd.DataFrame({"text": pd.Series(cells, dtype=object)})
    with pytest.raises(UsageError, match=f"The frame cannot be read: .*{says}.*one type"):
        open_source(frame)


@pytest.mark.parametrize("cells", [["a", None, "", "b"], [None, 1, 2.5, None], [None, None]])
def test_every_row_of_only_column_is_a_record(cells):
    frame = pd.DataFrame({"text": cells})

    report = validate(frame, None, {"model": "@cf/baai/bge-small-en-v1.5"})

    assert report["records"] == len(frame)


@pytest.mark.parametrize(("name", "column"), [("review", "review"), ("id", "text"), (None, "text")])
def test_series_of_texts_is_input_whatever_its_name(name, column):
    texts = pd.Series(["a"], name=name)
    assert content(texts) == f'"{column}"\n"a"\n'
    assert validate(texts, None, {"model": "@cf/baai/bge-m3"})["error"] is None


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"text": "x"}, "A dict cannot be submitted"),
        ("no-such-file.jsonl", "no-such-file.jsonl cannot be read"),
        (pa.table({"a": [[1]]}), "Column 'a' cannot be sent: it is nested"),
        (pa.table({"text": ["a"], "messages": [["a"]]}), "'messages' cannot be sent: it is nested"),
        (pa.table({"id": [1], "a": [[1]]}), "'a' cannot be sent: .* Without it, 'id' is left"),
        (pa.table({"tags": [["x"]], "title": ["t"]}), "'tags' cannot be sent: .* 'title' is left"),
        (pa.table([[1], [2]], names=["a", "a"]), "Two columns have the name 'a'"),
        (io.StringIO("{}"), "must be open for bytes"),
        (pd.Series([1]), "A Series of int64 cannot be submitted. Give one of texts"),
        (pa.chunked_array([[1]]), "A ChunkedArray of int64 cannot be submitted"),
        (b"text", "A bytes cannot be submitted"),
        ([{"text": "x"}, "x"], "Record 2 must be a dict, such as .*, not str"),
        ([{"text": "x"}, {"a": [{"b": object()}]}], r"Record 2: a\[0\].b is a object, which can"),
        ([{"text": float("nan")}], "Record 1: text is nan, .* Write None, .* the frame itself"),
        ([{"text": "x", "top_p": float("inf")}], "Record 1: top_p is inf, .* Write a number"),
        ([{"text": pd.NA}], "Record 1: text is <NA>"),
        ([{"max_tokens": Decimal(3)}], r"Record 1: max_tokens is a Decimal. Write float"),
        ([{"text": [b"x"]}], r"Record 1: text\[0\] has bytes. Write their text, or base64"),
        ([{"stop": {"a"}}], "Record 1: stop is a set, which has no order. Write a list"),
        ([{"text": timedelta(1)}], "Record 1: text is a timedelta"),
        ([{"text": "x", None: ["y"]}], r"Record 1 has a member without a name: \['y'\]"),
    ],
)
def test_what_cannot_be_sent_is_refused(source, says):
    with pytest.raises(UsageError, match=says):
        content(source)


WRITTEN = [
    (np.int64(3), 3),
    (np.float32(1.5), 1.5),
    (np.array([1, 2]), [1, 2]),
    (np.str_("a"), "a"),
    (AT, "2026-11-21T09:30:00Z"),
    (date(2026, 11, 21), "2026-11-21"),
    (time(9, 30), "09:30:00"),
    (pd.Timestamp("2026-11-21"), "2026-11-21T00:00:00"),
    (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (None, None),
]


def test_numbers_of_numpy_and_times_are_written_as_usual():
    record = {number: value for number, (value, _) in enumerate(WRITTEN)}
    wanted = {str(number): written for number, (_, written) in enumerate(WRITTEN)}
    assert json.loads(content([record])) == wanted


def test_half_of_pair_of_surrogates_does_not_end_upload():
    assert content([{"text": "cut \ud83d", "é": 1}, {"text": "é"}]) == (
        '{"text":"cut \\ud83d","\\u00e9":1}\n{"text":"é"}\n'
    )


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        (pd.Series([98765432101, None]), ["98765432101", ""]),
        (pd.Series([98765432101, None], dtype="Int64"), ["98765432101", ""]),
        (pd.Series([9007199254740993, 2]), ["9007199254740993", "2"]),
        (pd.Series([12345678901.0, 0.5]), ['"12345678901"', '"0.5"']),
        (pd.Series([1.25, None], dtype="float32"), ["1.25", ""]),
        (pd.Series([3, 4], dtype="float16"), ["3", "4"]),
        (pl.Series([float("nan"), 1e15]), ["", "1000000000000000"]),
        (pl.Series([float("inf"), 1e20]), ["inf", "1e+20"]),
        (pl.Series([None, None], dtype=pl.Float64), ["", ""]),
    ],
)
def test_whole_numbers_stay_whole(column, cells):
    make = pl.DataFrame if isinstance(column, pl.Series) else pd.DataFrame
    assert content(make({"text": ["a", "b"], "id": column})).split("\n")[1:-1] == [
        f'"a",{cells[0]}',
        f'"b",{cells[1]}',
    ]


ODD = {
    "list": pa.array([[1], []]),
    "struct": pa.array([{"a": 1}, None]),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "duration": pa.array([timedelta(1), None]),
    "interval": pa.array([pa.MonthDayNano([1, 1, 1]), None]),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"0" * 16, None], pa.binary(16))),
    "bytes": pa.array([b"\xff", None]),
    "pixels": pa.array([b"\xff", None], pa.binary(1)),
}


@pytest.mark.parametrize("kind", ODD)
def test_column_that_is_no_cell_is_left_out_unless_needed(kind, tmp_path):
    table = pa.table({"id": [1, 2], "text": ["a", "b"], "odd": ODD[kind]})
    parquet.write_table(table, tmp_path / "a.pq") if kind != "interval" else None

    for source in (table, *tmp_path.iterdir()):
        opened = open_source(source)
        assert opened.stream.read() == b'"id","text"\n1,"a"\n2,"b"\n'
        (note,) = opened.notes
        assert re.match("Column 'odd' is left out: .* a cell is text or a number", note)
    with pytest.raises(UsageError, match=r"'odd' cannot be sent: .* a cell is text or a number"):
        open_source(table, "{text} {odd}")


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_bytes_are_no_input_though_they_are_text(make):
    with pytest.raises(UsageError, match="Column 'text' cannot be sent: it has bytes"):
        open_source(make({"id": [1, 2], "text": [b"a", b"b"]}))


CHATS = [[{"role": "user", "content": "Hi é"}], [{"role": "user", "content": "b", "name": "x"}]]


@pytest.mark.parametrize("make", [pa.table, pd.DataFrame, "parquet"])
def test_list_of_messages_is_chat(make, tmp_path):
    columns = {"id": [1, 2], "prompt": ["not", "this"], "messages": CHATS}
    if make == "parquet":
        parquet.write_table(pa.table(columns), tmp_path / "a.pq")
    source = tmp_path / "a.pq" if make == "parquet" else make(columns)
    report = validate(source, None, {"model": "@cf/meta/llama-3.3-70b-instruct-fp8-fast"})

    assert (report["error"], report["bad"], report["not_sent"]) == (None, 0, ["prompt"])
    assert json.loads(report["first"]) == {"messages": CHATS[0], "external_reference": "1"}


class Dataset:
    """As one of Hugging Face's: rows are dicts, and it has features."""

    features = ("id", "title", "body")

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


ROWS_OF_DATA = [
    {"id": "11", "title": "Pier", "body": "Long."},
    {"id": "12", "title": "Mole", "body": "Short."},
]
AS_CSV = io.StringIO("id,title,body\n11,Pier,Long.\n12,Mole,Short.\n")
AS_LINES = io.BytesIO("".join(json.dumps(one) + "\n" for one in ROWS_OF_DATA).encode())


@pytest.mark.parametrize(
    "source",
    [ROWS_OF_DATA, iter(ROWS_OF_DATA), csv.DictReader(AS_CSV), Dataset(ROWS_OF_DATA), AS_LINES],
)
def test_template_names_members_of_rows_from_any_source(source, tmp_path):
    (tmp_path / "prompt.txt").write_text("{title}:\n{body}\n")
    options = {"model": "@cf/baai/bge-m3", "template": tmp_path / "prompt.txt"}
    report = validate(source, None, options)

    assert (report["format"], report["records"], report["bad"]) == ("objects", 2, 0)
    assert json.loads(report["first"]) == {"text": "Pier:\nLong.", "external_reference": "11"}


@pytest.mark.parametrize("make", [Dataset, iter])
def test_dataset_without_template_is_table(make):
    rows = [{"id": 1, "text": "a", "label": 0}]
    report = validate(make(rows), None, {"model": "@cf/baai/bge-m3"})
    is_table = make is Dataset
    assert report["format"] == ("objects" if is_table else "native")
    assert report["not_sent"] == (["label"] if is_table else [])


def test_template_that_cannot_be_read_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"template: .*none\.txt cannot be read"):
        validate(iter(ROWS_OF_DATA), None, {"template": tmp_path / "none.txt"})


TABLE = pa.table({"id": [1, 2], "text": ["a", "b"], "odd": [[1], [2]]})


def stream_of(table, begin=pa.ipc.new_stream):
    file = io.BytesIO()
    with begin(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    return file.getvalue()


def file_of(table):
    return stream_of(table, pa.ipc.new_file)


def parquet_of(table):
    file = io.BytesIO()
    parquet.write_table(table, file)
    return file.getvalue()


@pytest.mark.parametrize("make", [stream_of, file_of, parquet_of])
@pytest.mark.parametrize("name", ["data-00000-of-00001.arrow", "a.PARQUET", "a.bin"])
def test_file_is_known_by_its_first_bytes(tmp_path, make, name):
    (tmp_path / name).write_bytes(make(TABLE))

    opened = open_source(tmp_path / name)

    assert (opened.name, opened.options) == (f"{name.rpartition('.')[0]}.csv", {"format": "csv"})
    assert opened.stream.read() == b'"id","text"\n1,"a"\n2,"b"\n'
    with (tmp_path / name).open("rb") as file:
        assert open_source(file).stream.read() == b'"id","text"\n1,"a"\n2,"b"\n'
        file.seek(0)
        assert open_source(file).name == opened.name
    unnamed = open_source(io.BytesIO(make(TABLE)))
    assert (unnamed.name[-4:], unnamed.stream.read()) == (".csv", b'"id","text"\n1,"a"\n2,"b"\n')


@pytest.mark.parametrize(
    ("name", "written", "says"),
    [
        ("a.parquet", b"no table", "a.parquet: It cannot be read"),
        ("a.arrow", b"no table", "a.arrow: It cannot be read"),
        ("a.arrow", stream_of(TABLE)[:-200], "cannot be read after row 1"),
    ],
)
def test_file_that_is_damaged_is_refused(tmp_path, name, written, says):
    (tmp_path / name).write_bytes(written)
    with pytest.raises(UsageError, match=says):
        open_source(tmp_path / name).stream.read()


TEXTS = ['a "b", c', "two\nlines", ""]


@pytest.mark.parametrize(
    ("texts", "column"),
    [
        (TEXTS, "text"),
        (iter(TEXTS), "text"),
        (pd.Series(TEXTS, name="review"), "review"),
        (pd.Series(TEXTS, dtype="category"), "text"),
        (pl.Series("review", TEXTS), "review"),
        (pa.chunked_array([TEXTS]), "text"),
    ],
)
def test_texts_are_a_table_of_one_column(texts, column):
    source = open_source(texts)
    read = pd.read_csv(source.stream, keep_default_na=False)

    assert (list(read.columns), read[column].tolist()) == ([column], TEXTS)
    assert source.options == {"format": "csv"}


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("left", [0, 10, CHUNK_BYTES])
def test_file_that_becomes_shorter_is_no_upload(tmp_path, own, left):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 3 * CHUNK_BYTES)
    with path.open("rb") as file, open_source(file if own else path).stream as stream:
        stream.read(2 * CHUNK_BYTES)
        os.truncate(path, left)

        with pytest.raises(
            Error, match=f"a.jsonl became shorter .*it had {3 * CHUNK_BYTES:,} bytes"
        ):
            list(iter(lambda: stream.read(CHUNK_BYTES), b""))
        assert not file.closed


def big(tmp_path, kind):
    columns = {"id": list(range(ROWS)), "text": [TEXT] * ROWS}
    if kind == "parquet":
        parquet.write_table(pa.table(columns), tmp_path / "big.parquet", row_group_size=ROWS)
        return tmp_path / "big.parquet"
    return pl.DataFrame(columns) if kind == "polars" else pa.table(columns)


@pytest.mark.parametrize("kind", ["arrow", "polars", "parquet"])
def test_large_frame_is_never_held_as_text(tmp_path, kind):
    frame = big(tmp_path, kind)
    tracemalloc.start()
    size = 0
    with open_source(frame).stream as stream:
        while part := stream.read(CHUNK_BYTES):
            size += len(part)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert size > ROWS * len(TEXT)
    assert peak < 12 * CHUNK_BYTES


RETRIES = {
    "a.jsonl": "a.retry.jsonl",
    "x/a.jsonl.gz": "x/a.retry.jsonl",
    "x/a.retry.jsonl": "x/a.retry.jsonl",
    f"x/{'é' * 446}.jsonl": f"x/{'é' * 443}.retry.jsonl",
}


def test_path_of_retry():
    assert {path: retry_path(path, ".jsonl") for path in RETRIES} == RETRIES

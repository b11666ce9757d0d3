"""What can be submitted, as bytes: frames of every type of column, and how much is held in memory."""

import io
import os
import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from dropbatch.client.check import check_source
from dropbatch.client.retries import retry_path
from dropbatch.client.sources import CHUNK_BYTES, open_source
from dropbatch.errors import Error, UsageError

ROWS = 200_000
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
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_cells_are_as_arrow_writes_them(column, cells):
    assert content(pa.table({"n": range(len(column)), "c": column})).split("\n")[1:-1] == [
        f"{number},{cell}" for number, cell in enumerate(cells)
    ]


def test_frame_arrives_as_it_was_given():
    table = pa.table(
        {"id": ["1", "2", "3"], "title": ['a 5" pipe', "two\nlines, and a comma", None], "n": [1, 2, None]}
    )
    read = csv.read_csv(
        io.BytesIO(content(table).encode()),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=table.schema, strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )
    assert read == table


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b"])])
def test_polars_categories_are_texts(kind):
    assert content(pl.DataFrame({"n": [1, 2, 3], "c": ["b", None, "a"]}, {"n": pl.Int8, "c": kind})) == (
        '"n","c"\n1,"b"\n2,\n3,"a"\n'
    )


@pytest.mark.parametrize(
    ("cells", "says"), [(["a", 3], "column text"), ([1, "a"], "column text"), ([1j, 2], "column text"), ([2**70], "")]
)
def test_column_that_is_no_column_is_named(cells, says):
    with pytest.raises(UsageError, match=f"The frame cannot be read: .*{says}.*Give each column one type"):
        open_source(pd.DataFrame({"text": cells}))


@pytest.mark.parametrize("cells", [["a", None, "", "b"], [None, 1, 2.5, None], [None, None]])
def test_every_row_of_only_column_is_a_record(cells):
    frame = pd.DataFrame({"text": cells})

    report = check_source(frame, None, {"model": "@cf/baai/bge-small-en-v1.5"})

    assert report["records"] == len(frame)


def test_index_is_sent_if_it_has_a_name():
    frame = pd.DataFrame({"title": ["a", "b"]}, index=[7, 9])

    assert content(frame) == '"title"\n"a"\n"b"\n'
    assert content(frame.rename_axis("sku")) == '"title","sku"\n"a",7\n"b",9\n'


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"text": "x"}, "A dict cannot be submitted"),
        ("no-such-file.jsonl", "no-such-file.jsonl cannot be read"),
        (pa.table({"a": [[1]]}), "Column 'a' is nested"),
        (pa.table([[1], [2]], names=["a", "a"]), "Two columns have the name 'a'"),
        (io.StringIO("{}"), "must be open for bytes"),
        (pd.Series([1]), "A Series of int64 cannot be submitted. Give one of texts"),
        (pa.chunked_array([[1]]), "A ChunkedArray of int64 cannot be submitted"),
        (b"text", "A bytes cannot be submitted"),
    ],
)
def test_what_cannot_be_sent_is_refused(source, says):
    with pytest.raises(UsageError, match=says):
        open_source(source)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ([{"text": "x"}, "x"], "Record 2 must be a dict, such as .*, not str"),
        ([{"text": object()}], "Record 1 cannot be written as JSON"),
        (pa.table({"a": pa.array([b"\xff"], pa.binary_view())}), "cannot be written as CSV"),
    ],
)
def test_what_cannot_be_written_is_refused(source, says):
    with pytest.raises(UsageError, match=says):
        content(source)


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
    ids=["list", "iterator", "pandas", "categories", "polars", "arrow"],
)
def test_texts_are_a_table_of_one_column(texts, column):
    source = open_source(texts)
    read = pd.read_csv(source.stream, keep_default_na=False)

    assert (list(read.columns), read[column].tolist()) == ([column], TEXTS)
    assert source.options == {"format": "csv"}


@pytest.mark.parametrize(
    ("texts", "says"),
    [(["a", None], "Record 2 must be a text, as the first one, not None"), (["a", "\ud800"], "Record 2 has a char")],
)
def test_what_is_no_text_is_named(texts, says):
    with pytest.raises(UsageError, match=says):
        content(texts)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("left", [0, 10, CHUNK_BYTES])
def test_file_that_becomes_shorter_is_no_upload(tmp_path, own, left):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 3 * CHUNK_BYTES)
    with path.open("rb") as file, open_source(file if own else path).stream as stream:
        stream.read(2 * CHUNK_BYTES)
        os.truncate(path, left)

        with pytest.raises(Error, match=f"a.jsonl became shorter .*it had {3 * CHUNK_BYTES:,} bytes"):
            list(iter(lambda: stream.read(CHUNK_BYTES), b""))
        assert not file.closed


def test_file_that_grows_is_read_to_its_end(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"x" * 10)
    with open_source(path).stream as stream:
        with path.open("ab") as more:
            more.write(b"y")
        assert stream.read() == b"x" * 10 + b"y"


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


def test_records_are_made_when_they_are_sent():
    made = []

    def records():
        for number in range(100_000):
            made.append(number)
            yield {"text": TEXT}

    with open_source(records()).stream as stream:
        stream.read(1)
        assert len(made) < 2 * CHUNK_BYTES // len(TEXT)


@pytest.mark.parametrize(
    ("path", "retry"),
    [
        ("a.jsonl", "a.retry.jsonl"),
        ("x/a.jsonl.gz", "x/a.retry.jsonl"),
        ("x/a.retry.jsonl", "x/a.retry.jsonl"),
        (f"x/{'é' * 446}.jsonl", f"x/{'é' * 443}.retry.jsonl"),
    ],
    ids=["plain", "packed", "again", "long"],
)
def test_path_of_retry(path, retry):
    assert retry_path(path, ".jsonl") == retry

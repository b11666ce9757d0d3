"""A table's own columns beside its answers."""

import io
import json

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from dropbatch.client import arrow as columns
from dropbatch.client.arrow import record_batches
from dropbatch.client.export import export
from dropbatch.client.records import ResultFiles
from dropbatch.client.sources import open_source


def answered(table, vectors=None, failed=()):
    """The files of a job of a table: its rows, each with an answer."""
    head, *rows = (
        pd.read_csv(io.BytesIO(table), header=None, dtype=str, keep_default_na=False)
        .to_numpy()
        .tolist()
    )
    lines = table.split(b"\n")
    assert len(lines) == len(rows) + 2, "no line ends in the cells"
    taken = set(head)
    ends = [
        next(one for one in (name, f"{name}_2") if one not in taken)
        for name in ("answer", "finish_reason", "error_code", "error_message")
    ]
    out = [lines[0] + b"," + ",".join(ends).encode()]
    for at, line in enumerate(lines[1:-1]):
        if at in failed:
            out.append(line + b",,,rejected,why")
            continue
        answer = {"shape": [1, 2], "data": [vectors[at]]} if vectors else None
        cell = json.dumps(answer).replace('"', '""') if vectors else f"answer {at}"
        out.append(line + f',"{cell}",,,'.encode())
    errors = b"".join(
        b'{"id":%d,"error":{"code":"rejected","message":"why"}}\n' % at for at in sorted(failed)
    )
    return ResultFiles(lambda: [b"\n".join(out) + b"\n"], lambda: [errors], "csv")


def back(frame, **more):
    return record_batches(
        answered(open_source(frame).stream.read(), **more), columns=True
    ).read_all()


def test_frame_comes_back_with_its_answers():
    frame = pa.table(
        {
            "id": [9876543210123, 2, None],
            "title": ["a, b", None, ""],
            "zip": ["007", "1", "2"],
            "stars": [1.5, None, 1e-7],
            "good": [True, None, False],
        }
    )

    found = back(frame, vectors=[[1.0, 2.0], None, [3.0, 4.0]], failed=[1])

    own = found.select(frame.schema.names)
    assert {str(one.type) for one in own.schema} == {"string"}
    assert [list(row.values()) for row in own.to_pylist()] == [
        ["9876543210123", "a, b", "007", "1.5", "true"],
        ["2", None, "1", None, None],
        [None, "", "2", "1e-7", "false"],
    ]
    assert found.schema.names[5:] == [
        *("success", "embedding", "finish_reason", "error_code", "error_message")
    ]
    assert found["success"].to_pylist() == [True, False, True]
    assert found["embedding"].to_pylist() == [[1.0, 2.0], None, [3.0, 4.0]]


CELL = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=6)
COLUMN = st.lists(st.one_of(st.none(), CELL), min_size=3, max_size=3).map(
    lambda cells: pa.array(cells, pa.string())
)


@given(st.lists(COLUMN, min_size=2, max_size=4), st.integers(1, 4))
def test_values_of_every_column_survive(found, chunk):
    frame = pa.table(found, names=[f"c{at}" for at in range(len(found))])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "CHUNK_RECORDS", chunk)
        again = back(frame).select(frame.schema.names)

    assert again.to_pylist() == frame.to_pylist()


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_exports_have_tables_columns(tmp_path, kind):
    files = answered(b"sku,text,embedding\n1,a,x\n2,b,y\n", vectors=[[1.0, 2.0], [3.0, 4.0]])

    path = export(kind, files, tmp_path, {"job_id": "j", "model": "m"}).path

    read = {
        "parquet": lambda: parquet.read_table(path).to_pandas(),
        "csv": lambda: pd.read_csv(path, dtype={"sku": str}),
    }[kind]()
    assert (read["sku"].tolist(), read["embedding"].tolist()) == (["1", "2"], ["x", "y"])
    vectors = [
        json.loads(one) if isinstance(one, str) else list(one) for one in read["embedding_2"]
    ]
    assert vectors == [[1.0, 2.0], [3.0, 4.0]]

"""Results as columns, beside a table's own."""

import json
import re

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.client import arrow as columns
from dropbatch.client.arrow import record_batches
from dropbatch.client.download import check_kinds
from dropbatch.client.export import export
from dropbatch.client.records import ResultFiles
from dropbatch.client.sources import open_source
from dropbatch.errors import Error, UsageError


def native(id_, vector=None, reference=None, code="inference_failed"):
    line = {"id": id_, "external_reference": reference, "success": vector is not None}
    if vector is None:
        line["error"] = {"code": code, "message": "why"}
    else:
        line["result"] = {"shape": [1, len(vector)], "data": [vector], "pooling": "mean"}
    return line


def lines(*records):
    return "".join(json.dumps(one) + "\n" for one in records).encode()


def source(output, errors=b"", format_="native"):
    if format_ == "native":
        found = map(json.loads, output.splitlines())
        errors = lines(*(one for one in found if not one["success"]))
    return ResultFiles(lambda: [output], lambda: [errors], format_)


def table_of(output, errors=b"", format_="native"):
    return record_batches(source(output, errors, format_)).read_all()


THREE = lines(native(0, [1, 0.25, 2.5], "a"), native(1, None, 7), native(2, [4, 5, 6]))


def test_embeddings_have_fixed_length():
    table = table_of(THREE)

    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 3)
    assert [list(row.values()) for row in table.to_pylist()] == [
        [0, "a", True, [1.0, 0.25, 2.5], None, None, None],
        [1, "7", False, None, None, "inference_failed", "why"],
        [2, None, True, [4.0, 5.0, 6.0], None, None, None],
    ]


EMBEDDED = {"status_code": 200, "body": {"data": [{"embedding": [1, 2]}]}}
TITAN = {"embedding": [1, 2], "inputTextTokenCount": 1}
BODIES = {
    "openai": {"custom_id": "a", "response": EMBEDDED, "error": None},
    "bedrock": {"modelInput": {}, "modelOutput": TITAN, "recordId": "a"},
}


@pytest.mark.parametrize("format_", BODIES)
def test_embeddings_of_other_formats(format_):
    table = table_of(lines(BODIES[format_]), format_=format_)

    assert table.column("embedding").to_pylist() == [[1.0, 2.0]]
    assert table.column("external_reference").to_pylist() == ["a"]


def exported(kind, folder, output=THREE):
    manifest = {"model": "@cf/baai/bge-m3", "job_id": "20261121T093000Z-0a1b2c3d"}
    return export(kind, source(output), folder, manifest)


def vectors_in(folder):
    lines = (folder / "output.vectorize.ndjson").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_vectorize_leaves_failures_out(tmp_path):
    done = exported("vectorize", tmp_path)

    written = vectors_in(tmp_path)
    assert (done.records, done.left_out, done.renamed) == (2, 1, 1)
    assert written[0] == {
        "id": "a",
        "values": [1.0, 0.25, 2.5],
        "metadata": {"model": "@cf/baai/bge-m3", "record": 0},
    }
    assert written[1]["id"] == "20261121T093000Z-0a1b2c3d-2"


def test_ids_for_vectorize_are_short_and_unique(tmp_path):
    """A long id has Vectorize refuse the file; of two vectors with one id it keeps one."""
    references = ["x", "x", "é" * 32, "é" * 33, None, "", 7, "7", "k" * 11_000, "\u2028\x85"]
    output = lines(*(native(number, [1, 2], one) for number, one in enumerate(references)))

    done = exported("vectorize", tmp_path, output)

    written = vectors_in(tmp_path)
    own = "20261121T093000Z-0a1b2c3d-{}".format
    ids = ["x", own(1), "é" * 32, *map(own, (3, 4, 5)), "7", own(7), own(8), "\u2028\x85"]
    assert [one["id"] for one in written] == ids
    kept = [one["metadata"].get("external_reference") for one in written]
    assert kept == [None, "x", None, "é" * 33, None, None, None, "7", None, None]
    assert (done.records, done.renamed) == (10, 6)
    assert max(len(json.dumps(one["metadata"])) for one in written) <= 10_240


def good(result):
    return {"id": 0, "external_reference": None, "success": True, "result": result}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (native(0, [0.5] * 1_537), "1,537 numbers; Vectorize takes up to 1,536"),
        (good({"response": "Hi"}), "no embeddings"),
        (good({"data": [[1], [2]]}), "Record 0 has 2 vectors"),
    ],
)
def test_answer_that_is_no_vector_for_vectorize_is_refused(tmp_path, line, says):
    with pytest.raises(Error, match=says):
        exported("vectorize", tmp_path, lines(line))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [("npy", "gone since 0.9. In Python: numpy.save"), ("xls", "one of parquet, csv, vectorize")],
)
def test_other_exports_are_refused_with_the_way_out(kind, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        check_kinds([kind])


@pytest.mark.parametrize("format_", ["native", "openai"])
def test_first_answer_decides_however_late(format_, monkeypatch):
    monkeypatch.setattr(columns, "CHUNK_RECORDS", 4)
    failed = [native(at) for at in range(20)]
    errors = lines(*failed)
    good = native(20, [1, 2])
    if format_ == "openai":
        failed = [{"custom_id": None, "response": None, "error": {"code": "x", "message": ""}}] * 20
        good = BODIES["openai"]

    table = table_of(lines(*failed, good), errors, format_)

    assert table.column("embedding").to_pylist() == [*[None] * 20, [1.0, 2.0]]


def answered(table, vectors=None, failed=()):
    """The files of a job of a table: its rows, each with an answer."""
    lines = table.split(b"\n")
    out = [lines[0] + b",answer,finish_reason,error_code,error_message"]
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
    names = ("id", "title", "zip", "stars", "good")
    ids, titles = [9876543210123, 2, None], ["a, b", None, ""]
    numbers = ["007", "1", "2"], [1.5, None, 1e-7], [True, None, False]
    frame = pa.table([ids, titles, *numbers], names=names)

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
